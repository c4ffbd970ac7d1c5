"""Calls for training loops that the hooks do not recognize; no-ops if nothing is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ContextDecorator
from typing import Any, TypeVar

from headway.probe import ENV_FOLDER, launcher_variable
from headway.taxonomy import START_STAGES, TRAINER_STAGES, WASTE

T = TypeVar("T")

# Span name of the user -> span name in the journal. Any other name is recorded as `blocked`.
_JOURNAL_NAMES = {
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
assert set(WASTE) <= set(_JOURNAL_NAMES)
_RESERVED_FIELDS = frozenset({"ev", "t", "id", "end", "name", "th", "what"})

# The module step_clock, from the first step on; None in a process that does not record.
_step_clock: Any = None


def active_recorder() -> Any:
    if not launcher_variable(ENV_FOLDER):
        return None
    from headway.probe.recorder import recorder

    return recorder


def step() -> None:
    """Report a finished training step. From then on, optimizer steps are not counted."""
    if _step_clock is None and not _bind():
        return
    _step_clock.count_step()


def _bind() -> bool:
    global _step_clock
    if active_recorder() is not None:
        from headway.probe import step_clock

        _step_clock = step_clock
    return _step_clock is not None


def track(source: Iterable[T]) -> Iterator[T]:
    """Iterate over `source`, any loader, and record the wait for each batch."""
    if active_recorder() is None:
        yield from source
        return
    from headway.probe import step_clock

    yield from step_clock.track(source)


class span(ContextDecorator):
    """Record time that is not training; a context manager and a decorator.

    `name` is the name of a bucket without its group, such as `evaluation`, or any other name:
    that is counted as `waste.blocked` (as `start.pre_train` before the first step).
    """

    def __init__(self, name: str, **fields: Any) -> None:
        self.name, self.fields = name, _allowed_fields(fields)
        self._opened: list[Any] = []

    def __enter__(self) -> span:
        recorder = active_recorder()
        if recorder is not None:
            from headway.probe import step_clock
            from headway.probe.recorder import guard

            guard("sdk", recorder.start)
            journal_name = _JOURNAL_NAMES.get(self.name, "blocked")
            fields = {"what": self.name, **self.fields}
            if journal_name == "checkpoint_save":
                fields["step"] = step_clock.steps
            elif journal_name == "checkpoint_load":  # the steps before it get their own line
                guard("sdk", step_clock.flush)
            self._opened.append(guard("sdk", lambda: recorder.begin(journal_name, **fields)))
        return self

    def __exit__(self, *_: object) -> None:
        recorder = active_recorder()
        opened = self._opened.pop() if self._opened else None
        if recorder is not None and opened is not None:
            from headway.probe.recorder import guard_end

            guard_end("sdk", recorder.end, opened)


def _allowed_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Drop fields that the journal reserves, and a `step` that is not a valid count."""
    from headway.journal.pulse import LIMIT

    step = fields.get("step")
    if step is not None and not (type(step) is int and 0 <= step < LIMIT):
        fields = {key: value for key, value in fields.items() if key != "step"}
    return {key: value for key, value in fields.items() if key not in _RESERVED_FIELDS}


def stage(name: str) -> span:
    """Record one of the seven stages of trainer initialization; see `span`."""
    if name not in TRAINER_STAGES:
        raise ValueError(f"{name!r} is not a stage; the stages are {', '.join(TRAINER_STAGES)}")
    return span(name)


def progress(*, samples: int | None = None, step: int | None = None) -> None:
    """Report progress: samples seen, or (before the first step) the step resumed from."""
    recorder = active_recorder()
    if recorder is not None:
        from headway.probe.recorder import guard

        guard("progress", _note_progress, recorder, samples, step)


def _note_progress(recorder: Any, samples: int | None, step: int | None) -> None:
    from headway.journal.pulse import LIMIT, SAMPLES
    from headway.probe import step_clock

    if samples is not None:
        step_clock.cells[SAMPLES] = min(max(int(samples), 0), LIMIT - 1)
    if step is not None:
        recorder.start()
        recorder.emit("progress", step=min(max(int(step), 0), LIMIT - 1))


def on_preempt(callback: Callable[[], object]) -> None:
    """Call `callback` once, in the main thread, when the job is about to be preempted.

    The notice is SIGTERM or SIGUSR1. The first signal no longer ends the process; a second does.
    """
    from headway.checkpoint.preemption import notice

    notice.add_callback(callback)
