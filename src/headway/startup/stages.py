"""Declare the stages of a start and run those that do not depend on each other in parallel.

Stages run in threads, in processes, and in the main thread in one fixed order.
"""

from __future__ import annotations

import contextvars
import hashlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from headway import sdk
from headway.errors import HeadwayError
from headway.startup.stage_graph import (
    Stage,
    StageError,
    StageFailed,
    StageLate,
    Where,
    declare,
    order,
)
from headway.startup.stage_process import StageProcess, StageRaised, WorkerLost
from headway.torch_threads import TorchThread, interrupt

__all__ = ["Results", "Stage", "StageError", "StageFailed", "StageLate", "Stages"]

GRACE_S = 1.0  # wait for running threads after another stage failed
PATIENCE_S = 5.0  # the same at the end of the process
_agreements = itertools.count()  # each run of stages is compared between ranks by its own key

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
    """Declare and run the stages of a start.

    stages = Stages()

    @stages.stage(where="main")
    def device_init(): ...

    @stages.stage(needs=["device_init"])
    def get_first_batch_data(preproc_creation): ...

    results = stages.run()

    Arguments are the results of the stages with the same names. `where` is `thread` for stages that
    wait for disks and networks or compute outside Python, `process` for Python code, and `main` for
    everything that must run in the main thread: CUDA contexts, process groups, communication. Main
    stages run in one order, the same on all ranks. With `seed`, each main stage seeds torch's
    random numbers, so that they do not depend on other stages.
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
        """Declare a function as a stage; `name` defaults to the function's name."""

        def decorate(call: F) -> F:
            self.add(call, name, needs=needs, where=where, deadline=deadline)
            return call

        return decorate

    def add(
        self,
        call: Callable[..., Any],
        name: str | None = None,
        *,
        needs: Sequence[str] = (),
        where: Where = "thread",
        deadline: float | None = None,
    ) -> None:
        """Declare a stage without a decorator."""
        self._stages.append(declare(call, name or call.__name__, needs, where, deadline))

    def run(self, *, overlap: bool = True, **inputs: Any) -> Results:
        """Run all stages, one at a time if not `overlap`; `inputs` are values for arguments."""
        ordered = order(self._stages, tuple(inputs))
        start = time.monotonic()
        runner = StageRunner(ordered, inputs, seed=self.seed, overlap=overlap)
        values = runner.run()
        return Results(values, runner.seconds(), time.monotonic() - start)


class StageRunner:
    """One run: the main thread runs its stages in order; each finished stage starts the threads
    that waited for it."""

    def __init__(
        self, stages: Sequence[Stage], inputs: Mapping[str, Any], *, seed: int | None, overlap: bool
    ) -> None:
        self.stages = stages
        self.values: dict[str, Any] = dict(inputs)
        self.seed = seed
        self.overlap = overlap
        self.spans: dict[str, tuple[int, int]] = {}  # begin and end, ns
        self._change = threading.Condition()
        self._started_at: dict[str, float] = {}
        self._threads: list[threading.Thread] = []
        self._workers: dict[str, StageProcess] = {}
        self._failure: BaseException | None = None
        self._ranks_checked = False
        self._main = threading.get_ident()

    def run(self) -> dict[str, Any]:
        """Run all stages and return their results, or raise the first error."""
        by_process = [stage for stage in self.stages if stage.where == "process"]
        if self.overlap:  # before any thread starts
            _check_forks(by_process)
            self._workers = {stage.name: StageProcess(stage) for stage in by_process}
        watch = threading.Thread(target=self._watch, name="headway-stages", daemon=True)
        watch.start()
        try:
            if self.overlap:
                self._start_ready()
            for stage in self.stages:
                if stage.where == "main" or not self.overlap:
                    self._wait_for(stage.needs)
                    self._execute(stage)
                    self._check_ranks()
            self._wait_for([stage.name for stage in self.stages])
        except BaseException as error:
            with self._change:
                self._failure = failure = self._failure or error
            raise failure from failure.__cause__
        finally:
            with self._change:
                self._failure = self._failure or _Finished()
                self._change.notify_all()
            watch.join()
            for worker in self._workers.values():
                worker.stop()
            for thread in self._threads:
                thread.join(GRACE_S)
        self._emit_graph()
        return self.values

    def seconds(self) -> dict[str, float]:
        """Duration of each stage."""
        return {name: (end - begin) / 1e9 for name, (begin, end) in self.spans.items()}

    # Waiting

    def _wait_for(self, names: Sequence[str]) -> None:
        with self._change:
            self._change.wait_for(lambda: self._failure or self._are_done(names))
            if self._failure:
                raise self._failure

    def _are_done(self, names: Sequence[str]) -> bool:
        return all(name in self.values for name in names)

    def _start_ready(self) -> None:
        """Start threads for the stages that are ready; called when a stage is done."""
        with self._change:
            if self._failure:
                return
            for stage in self.stages:
                waiting = stage.where != "main" and stage.name not in self._started_at
                if waiting and self._are_done(stage.needs):
                    self._started_at[stage.name] = time.monotonic()
                    self._threads.append(self._thread(stage))

    def _thread(self, stage: Stage) -> threading.Thread:
        context, device = contextvars.copy_context(), _device()

        def body() -> None:
            _set_device(device)
            try:
                context.run(self._execute, stage)
            except BaseException as error:
                with self._change:
                    self._failure = self._failure or error
                    self._change.notify_all()

        thread = TorchThread(body, name=f"stage-{stage.name}", patience_s=PATIENCE_S)
        thread.start()
        return thread

    # Doing

    def _execute(self, stage: Stage) -> None:
        start = time.monotonic_ns()
        with self._change:
            self._started_at[stage.name] = start / 1e9
            self._change.notify_all()  # for the deadline watcher
        try:
            with sdk.span(stage.name):
                value = self._call(stage)
        except StageLate:
            raise
        except StageRaised as error:
            last_line = str(error).strip().rpartition("\n")[2]
            raise StageFailed(stage.name, last_line) from error
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            code = error.code or None if isinstance(error, HeadwayError) else None
            raise StageFailed(stage.name, text, code=code) from error
        with self._change:
            self.spans[stage.name] = (start, time.monotonic_ns())
            self.values[stage.name] = value
            self._change.notify_all()
        if self.overlap:
            self._start_ready()

    def _call(self, stage: Stage) -> Any:
        arguments = [self.values[name] for name in stage.takes]
        worker = self._workers.get(stage.name)
        if worker is not None:
            try:
                return worker.run(arguments)
            except WorkerLost:
                if isinstance(self._failure, StageLate):  # killed because of its deadline
                    raise self._failure from None
                raise
        if self.seed is not None and stage.where == "main" and "torch" in sys.modules:
            sys.modules["torch"].manual_seed(_seed(self.seed, stage.name))
        return stage.call(*arguments)

    # Deadlines

    def _watch(self) -> None:
        """End the run at a missed deadline, and stop the process or main thread of that stage."""
        with self._change:
            while self._failure is None:
                due = self._due()
                if due is None:
                    self._change.wait()
                    continue
                stage, remaining = due
                if remaining > 0:
                    self._change.wait(remaining)
                    continue
                self._failure = StageLate(stage.name, stage.deadline or 0.0)
                self._change.notify_all()
                if stage.where == "main" or not self.overlap:
                    interrupt(self._main, _Interrupt)
                elif stage.name in self._workers:
                    self._workers[stage.name].stop()

    def _due(self) -> tuple[Stage, float] | None:
        """The stage with the earliest deadline, and the remaining time."""
        now = time.monotonic()
        running = [
            (stage, self._started_at[stage.name] + stage.deadline - now)
            for stage in self.stages
            if stage.deadline is not None
            and stage.name in self._started_at
            and stage.name not in self.values
        ]
        return min(running, key=lambda pair: pair[1], default=None)

    # Ranks

    def _check_ranks(self) -> None:
        """Check that all ranks declared the same main stages, once there is a process group."""
        distributed: Any = sys.modules.get("torch.distributed")
        if self._ranks_checked or distributed is None or not distributed.is_available():
            return
        if not distributed.is_initialized():
            return
        self._ranks_checked = True
        own = " ".join(stage.name for stage in self.stages if stage.where == "main")
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = distributed.distributed_c10d._get_default_store()
        key = f"headway/stages/{restart}/{next(_agreements)}"
        if distributed.get_rank() == 0:
            store.set(key, own)
            return
        rank0 = store.get(key).decode()
        if rank0 != own:
            raise StageError(
                f"rank {distributed.get_rank()} has the stages {own} in the main thread, "
                f"rank 0 has {rank0}; they must be the same on all ranks",
                code="stages-differ-between-ranks",
            )

    def _emit_graph(self) -> None:
        """Write the graph to the journal, for the report."""
        recorder = sdk.active_recorder()
        if recorder is not None:
            rows = [
                [stage.name, stage.where, list(stage.needs), *self.spans[stage.name]]
                for stage in self.stages
            ]
            recorder.emit("stages", stages=rows, overlap=self.overlap)


class _Interrupt(BaseException):
    """The stage in the main thread missed its deadline."""


class _Finished(Exception):
    """The run has ended without an error."""


def _check_forks(stages: Sequence[Stage]) -> None:
    """StageError if CUDA is initialized: a forked process could hang on its locks."""
    if stages and _device() is not None:
        raise StageError(
            f"the stage {stages[0].name} cannot run in a process because CUDA is already "
            "initialized; run the stages before anything uses the GPU, or use where='thread'",
            code="stage-process-after-cuda",
        )


def _seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def _device() -> int | None:
    """The GPU of this thread; a new thread would start with the first GPU."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda._initialized:
        return None
    device: int = torch.cuda.current_device()
    return device


def _set_device(device: int | None) -> None:
    if device is not None:
        sys.modules["torch"].cuda.set_device(device)
