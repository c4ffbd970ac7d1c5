"""Declares stages, and runs them: threads, processes, and the main thread in one fixed order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from headway.startup.stages.graph import Stage, Where, declare, order
from headway.startup.stages.runner import StageRunner

F = TypeVar("F", bound=Callable[..., Any])


class Results(Mapping[str, Any]):
    """What the stages returned, by name: `results.model` or `results["model"]`."""

    def __init__(self, values: Mapping[str, Any], seconds: Mapping[str, float], took: float):
        self._values = dict(values)
        self.seconds = dict(seconds)
        self.took = took

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"there is no stage {name}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Stages:
    """A start, taken apart.

    stages = Stages()

    @stages.stage(where="main")
    def device_init(): ...

    @stages.stage(needs=["device_init"])
    def get_first_batch_data(preproc_creation): ...

    results = stages.run()

    Arguments are the results of the stages they are named after. `where` is `thread` for what waits
    for disks and networks or computes outside Python, `process` for work in Python itself, and
    `main` for what must be in the main thread: CUDA contexts, process groups, everything that
    communicates. Those run in one order, the same on all ranks. With `seed`, torch's random numbers
    begin anew in each stage of the main thread, so that they do not depend on the others.
    """

    def __init__(self, *, seed: int | None = None) -> None:
        self.seed = seed
        self._stages: list[Stage] = []

    def stage(
        self,
        name: str | None = None,
        *,
        needs: Sequence[str] = (),
        where: Where = "thread",
        deadline: float | None = None,
    ) -> Callable[[F], F]:
        """Declare a function as a stage; its name is the function's, if none is given."""

        def take(call: F) -> F:
            self.add(call, name, needs=needs, where=where, deadline=deadline)
            return call

        return take

    def add(
        self,
        call: Callable[..., Any],
        name: str | None = None,
        *,
        needs: Sequence[str] = (),
        where: Where = "thread",
        deadline: float | None = None,
    ) -> None:
        """The same without a decorator."""
        self._stages.append(declare(call, name or call.__name__, needs, where, deadline))

    def run(self, *, overlap: bool = True, **given: Any) -> Results:
        """Run them all; `given` are values that stages may take. Without `overlap` one by one."""
        ordered = order(self._stages, tuple(given))
        begun = time.monotonic()
        runner = StageRunner(ordered, given, seed=self.seed, overlap=overlap)
        values = runner.run()
        return Results(values, runner.seconds(), time.monotonic() - begun)
