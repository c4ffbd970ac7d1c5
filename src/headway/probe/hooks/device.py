"""The device: its initialization, and queued work that still runs while the host waits.

A GPU lags behind the host by its launch queue: a save, an evaluation or a wait for data begins on
the host while queued steps are still running. Two events measure that: the first is put into the
queue when the wait begins, and completes when the queued work has; the second, when the wait ends,
completes at once on an idle device. The time between them is the part of the wait in which the
device was idle. They are queried later, without waiting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from headway.probe import step_clock
from headway.probe.patching import enter, inside, is_in_loop, leave, wrap
from headway.probe.recorder import guard, guard_end, recorder

SPAN = "device_init"
MIN_DRAIN_NS = 1_000_000  # a shorter drain is noise


class _PendingWait(NamedTuple):
    """A wait whose second event may not have completed."""

    start: int
    end: int
    first: Any
    second: Any
    short: bool


_pending: list[_PendingWait] = []
_cuda: Any = None


def install(cuda: ModuleType) -> None:
    """torch.cuda"""
    if not hasattr(sys.modules["torch"]._C, "_cuda_init"):
        return  # a build without CUDA
    wrap(cuda, "_lazy_init", _lazy_init)
    step_clock.before_flush.append(lambda: guard("device", write_drains))
    step_clock.on_wait.append(lambda *wait: bool(guard("device", _note_wait, *wait)))
    step_clock.on_evaluation.append(lambda *interval: guard("device", _drop, *interval))


def _lazy_init(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    global _cuda
    cuda = sys.modules["torch.cuda"]
    if _cuda is not None or cuda.is_initialized() or inside(SPAN):
        return original(*args, **kwargs)
    guard("device", recorder.start)
    span = guard("device", enter, SPAN, "cuda")
    try:
        return original(*args, **kwargs)
    finally:
        guard_end("device", leave, SPAN, span)
        if cuda.is_initialized():
            _cuda = cuda
            step_clock.inspect_short_waits()


def mark_queue() -> Any:
    """Record an event at the end of the queue; None without a device."""
    if _cuda is None or _cuda.is_current_stream_capturing():  # not into a CUDA graph of the job
        return None
    event = _cuda.Event(enable_timing=True)
    event.record()
    return event


def note_drain(first: Any, start: int, end: int, *, short: bool = False) -> None:
    """Measure a wait from `start` to `end`; `first` is the event at its start."""
    second = mark_queue() if first is not None else None
    if second is not None:
        _pending.append(_PendingWait(start, end, first, second, short))


def write_drains() -> None:
    """Record the drains whose events have completed."""
    if not _pending or _cuda.is_current_stream_capturing():
        return
    while _pending and _pending[0].second.query():
        wait = _pending.pop(0)
        idle_ns = int(wait.first.elapsed_time(wait.second) * 1e6)
        length = wait.end - wait.start
        if wait.short:
            step_clock.add_wait(min(max(idle_ns, 0), length), wait.end)
        elif length - idle_ns >= MIN_DRAIN_NS:
            recorder.emit("drain", wait.start, ns=length - max(idle_ns, 0))


def _drop(start: int, end: int) -> None:
    """Drop short waits in an interval that was not training."""
    _pending[:] = [w for w in _pending if not (w.short and start <= w.start < end)]


def _note_wait(start: int, end: int, marker: Any, ended: bool) -> bool:
    """Check a wait for data in the loop; True if it was not a stall, or is counted later."""
    if _cuda is None or not is_in_loop() or _cuda.is_current_stream_capturing():
        return False
    short = end - start < step_clock.LONG_WAIT
    step_clock.mark_device = mark_queue if end - start >= step_clock.SHORT_WAIT else None
    if marker is not None:
        note_drain(marker, start, end, short=short)
        return short
    busy = not _cuda.current_stream().query()
    if busy and not short:
        recorder.emit("drain", start, ns=end - start)
    return busy and short
