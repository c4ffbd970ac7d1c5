"""For loops that the hooks cannot see. Without a recorder every call here costs next to nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ContextDecorator
from typing import Any, TypeVar

from headway.ledger.leaves import START_STAGES, TRAINER_STAGES, WASTE
from headway.probe import ENV_FOLDER

T = TypeVar("T")

# What a user may say -> what the journal calls it. Any other name is time the loop is blocked.
_NAMES = {
    **{stage: stage for stage in START_STAGES},
    "pt2_compile": "compile",
    "compile_ahead": "compile",  # by CompileAhead, on a fast batch
    "get_first_batch_data": "data_wait",
    "data_stall": "data_wait",
    "checkpoint_block": "checkpoint_save",
    "checkpoint_save": "checkpoint_save",
    "recompile": "compile",
    "publish": "publish",
    **{name: name for name in ("evaluation", "blocked")},
}
assert set(WASTE) <= set(_NAMES)


def _recording() -> Any:
    if not os.environ.get(ENV_FOLDER):
        return None
    from headway.probe.recorder import recorder

    return recorder


def step() -> None:
    """Say that a training step is done. Optimizers are no longer counted then."""
    if _recording() is not None:
        from headway.probe import pace
        from headway.probe.recorder import guard

        guard("sdk", pace.told_step)


def track(source: Iterable[T]) -> Iterator[T]:
    """Iterate over `source`, any loader, and note how long each batch was waited for."""
    if _recording() is None:
        yield from source
        return
    from headway.probe import pace

    yield from pace.track(source)


class span(ContextDecorator):
    """Time that is not training, under a leaf's name or your own: a `with` or a decorator.

    A name of your own lands in `waste.blocked` (in `pre_train` before the first step).
    """

    def __init__(self, name: str, **told: Any) -> None:
        self.name, self.told = name, told  # fields of the journal
        self._opened: list[Any] = []

    def __enter__(self) -> span:
        recorder = _recording()
        if recorder is not None:
            from headway.probe import pace
            from headway.probe.recorder import guard

            guard("sdk", recorder.start)
            known = _NAMES.get(self.name, "blocked")
            told = {"what": self.name, **self.told}
            if known == "checkpoint_save":
                told["step"] = pace.steps
            self._opened.append(guard("sdk", lambda: recorder.begin(known, **told)))
        return self

    def __exit__(self, *_: object) -> None:
        recorder = _recording()
        opened = self._opened.pop() if self._opened else None
        if recorder is not None and opened is not None:
            from headway.probe.recorder import guard

            guard("sdk", recorder.end, opened)


def stage(name: str) -> span:
    """One of the seven sub-stages of trainer initialisation, as a `with` or a decorator."""
    if name not in TRAINER_STAGES:
        raise ValueError(f"{name!r} is no stage; the stages are {', '.join(TRAINER_STAGES)}")
    return span(name)


def progress(*, samples: int | None = None, step: int | None = None) -> None:
    """Say how far the run is: samples seen, or (before the first step) the step resumed from."""
    recorder = _recording()
    if recorder is None:
        return
    from headway.journal.pulse import SAMPLES
    from headway.probe import pace

    if samples is not None:
        pace.cells[SAMPLES] = int(samples)
    if step is not None:
        recorder.start()
        recorder.emit("progress", step=int(step))


def on_preempt(callback: Callable[[], object]) -> None:
    """Have this called once, in the main thread, when the job is told that it will be ended.

    That is by SIGTERM or SIGUSR1, which then no longer end it; a second one later does.
    """
    from headway.checkpoint.preempt import notice

    notice.call(callback)
