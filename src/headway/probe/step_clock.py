"""The hot path: count every step and measure every wait for a batch.

State is in module globals and in the cells of the pulse page, the fastest storage in Python: about
a quarter of a microsecond per step. Everything rare is in `_slow_*`.
"""

from __future__ import annotations

import functools
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterator
from struct import Struct
from threading import main_thread
from time import monotonic_ns
from typing import Any

from headway.journal import pulse
from headway.journal.pulse import LAST_STEP, STEPS, WAIT, WAITING

_put = Struct("=qqqq").pack_into  # steps, time, batches, wait: consecutive cells
_OFFSET = STEPS * 8

SECOND = 1_000_000_000
LONG_WAIT = 100_000_000  # ns; a wait of at least this has its own span
SHORT_WAIT = 200_000  # ns; below this the device is not queried
_SDK_OPTIMIZER = object()  # stands for the optimizer if the loop calls `headway.step()`
SDK = id(_SDK_OPTIMIZER)


class _Source:
    """An iterator read since the last step, without a batch that is known to be for training."""

    __slots__ = (
        "batch_count",
        "batches",
        "first",
        "gradients_written",
        "last",
        "ref",
        "spans",
        "stopped",
        "trained",
        "wait",
    )

    def __init__(self, iterator: Any, first: int) -> None:
        try:
            self.ref: Callable[[], Any] = weakref.ref(iterator)
        except TypeError:
            self.ref = lambda: iterator
        self.first, self.last = first, first
        self.batches = self.batch_count = self.wait = 0
        self.spans: list[tuple[str, int, int]] = []
        self.stopped = self.trained = False
        self.gradients_written: Callable[[], bool] = lambda: False  # since the last read

    @property
    def exhausted(self) -> bool:
        """Whether nothing more can be read from it."""
        return self.stopped or self.ref() is None


cells = pulse.anonymous()
_page: Any = cells.obj  # the same memory, to store several cells at once
steps = 0
_batches = 0
_wait = 0  # ns of short waits in the current window
_waiting_in = 0  # the thread that waits for a batch
step_thread = 0  # the thread that makes the steps; 0 before the first
step_thread_in_journal = 0  # its id in the journal
_fast = 0  # `step_thread`, or 0 to send the next events through the slow path
_counted_optimizer = -1  # id of the optimizer whose steps count
_flush_at = 0
_summary_due = 0  # time of the next summary line; earlier steps may take the slow path too
_slow_wait_from = LONG_WAIT  # longer waits take the slow path
_wait_mask = -1  # 0 while short waits are hidden by the queue of a device
_other_optimizers: dict[int, tuple[int, int]] = {}  # id -> (steps when last seen, count)
_training_iterators: dict[int, Any] = {}  # iterators for training, by id
_undecided_sources: list[_Source] = []  # iterators for training or evaluation, not known yet
_new_iterators: list[tuple[int, int]] = []  # start and end of creating such iterators
_emit: Callable[..., None] = lambda *_, **__: None  # noqa: E731
_open: Callable[[], None] = lambda: None  # noqa: E731
_guard: Callable[..., Any] = lambda hook, call, *args: call(*args)  # noqa: E731
_thread: Callable[[], int] = lambda: 0  # noqa: E731
# A weak reference to the optimizer whose steps count.
_counted_optimizer_ref: Callable[[], Any] = lambda: None  # noqa: E731

# Callbacks of hooks, called in the slow path with times in ns.
on_first_step: list[Callable[[int], None]] = []
on_step: list[Callable[[int], None]] = []
before_flush: list[Callable[[], None]] = []
on_read: list[Callable[[int, int, Any, bool], bool]] = []  # True: not for training
on_wait: list[Callable[[int, int, Any, bool], bool]] = []  # True: already counted
on_evaluation: list[Callable[[int, int], None]] = []  # an interval without training
mark_device: Callable[[], Any] | None = None  # set while waits are long and a device has a queue


def bind(
    emit: Callable[..., None],
    open_journal: Callable[[], None],
    guard: Callable[..., Any],
    thread: Callable[[], int],
) -> None:
    """Set the functions of the recorder, which imports this module."""
    global _emit, _open, _guard, _thread
    _emit, _open, _guard, _thread = emit, open_journal, guard, thread


def attach_page(page: memoryview) -> None:
    """Continue in the pulse page of the journal."""
    global cells, _page
    for index in range(STEPS, pulse.CELLS):
        page[index] = max(page[index], cells[index])
    cells, _page = page, page.obj


def reset_after_fork() -> None:
    """Reset in a forked child: the page belongs to the parent."""
    global cells, _page, steps, step_thread, _fast, _flush_at, _batches, _wait, _waiting_in
    global _counted_optimizer, _counted_optimizer_ref, _summary_due
    cells = pulse.anonymous()
    _page = cells.obj
    steps = step_thread = _fast = _flush_at = _summary_due = _batches = _wait = _waiting_in = 0
    _counted_optimizer, _counted_optimizer_ref = -1, lambda: None
    _other_optimizers.clear()
    _training_iterators.clear()
    _undecided_sources.clear()
    _new_iterators.clear()


def optimizer_stepped(optimizer: Any, *_: Any) -> None:
    """Called after every `step` of every optimizer."""
    global steps
    if id(optimizer) != _counted_optimizer and not _guard("steps", _choose_optimizer, optimizer):
        return
    t = monotonic_ns()
    steps += 1
    _put(_page, _OFFSET, steps, t, _batches, _wait)
    if t >= _flush_at:
        _guard("steps", _slow_step, t)


def count_step() -> None:
    """`headway.step()`: count a step; steps of optimizers are not counted any more."""
    global _counted_optimizer
    _counted_optimizer = SDK
    optimizer_stepped(_SDK_OPTIMIZER)


def timed_fetch(fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap `fetch`, the `__next__` of a loader, to record its waits."""

    @functools.wraps(fetch)
    def __next__(self: Any) -> Any:
        global _batches, _wait, _waiting_in
        thread = get_ident()
        if thread == _waiting_in:  # a loader inside a loader
            return fetch(self)
        marker = _guard("device", mark_device) if mark_device is not None else None
        _waiting_in = thread
        cells[WAITING] = start = monotonic_ns()
        try:
            batch = fetch(self)
        except BaseException as error:
            _waiting_in = cells[WAITING] = 0
            last = isinstance(error, StopIteration)
            _guard("data", _slow_wait, self, start, monotonic_ns(), marker, True, last)
            raise
        waited = monotonic_ns() - start
        _waiting_in = cells[WAITING] = 0
        _batches += 1
        if (
            waited > _slow_wait_from
            or thread != _fast
            or id(self) not in _training_iterators
            or not grad_enabled()
        ):
            _guard("data", _slow_wait, self, start, start + waited, marker, False, False)
        else:
            _wait += waited & _wait_mask
        return batch

    return __next__


def track(source: Any) -> Iterator[Any]:
    """`headway.track(loader)`: iterate over any iterable and record the waits."""
    start = monotonic_ns()
    iterator = iter(source)  # may take as long as the first batch
    _guard("data", note_new_iterator, start, monotonic_ns())
    while True:
        try:
            batch = _next(iterator)
        except StopIteration:
            return
        yield batch


def note_new_iterator(start: int, end: int) -> None:
    """Count the creation of an iterator as a wait for data: it starts the workers."""
    thread = get_ident()
    if thread == _waiting_in or end - start < SHORT_WAIT or (steps and thread != step_thread):
        return
    if any(call(start, end, None, True) for call in (*on_read, *on_wait)):
        return
    if steps:
        _new_iterators.append((start, end))
        _inspect_next_step()
    else:
        _emit("span", start, end=end, name="data_iter", th=_thread())


_next = timed_fetch(next)


def grad_enabled() -> bool:
    """Replaced by torch's own function when torch is imported."""
    return True


def gradients() -> Callable[[], bool]:
    """Return a check whether gradients were written since this call; replaced with torch."""
    return lambda: False


def counted_optimizer() -> Any:
    """The optimizer whose steps count, if there is one."""
    return _counted_optimizer_ref() if _counted_optimizer != SDK else None


def inspect_short_waits() -> None:
    """Compare short waits with the queue of the device, which hides the shortest ones."""
    global _slow_wait_from, _wait_mask
    _slow_wait_from, _wait_mask = SHORT_WAIT, 0


def force_slow_path() -> None:
    """Send every step and every batch through the slow path, until `resume_fast_path`."""
    global _fast, _flush_at, _summary_due
    _fast = _flush_at = _summary_due = 0


def resume_fast_path() -> None:
    global _fast, _flush_at, _summary_due
    _fast = step_thread
    _flush_at = _summary_due = monotonic_ns() + SECOND


def _inspect_next_step() -> None:
    global _flush_at
    _flush_at = 0


def add_wait(ns: int, end: int) -> None:
    """Add a short wait until `end`, found to be a stall later."""
    global _wait
    _wait += ns
    if end <= cells[LAST_STEP]:
        cells[WAIT] += ns


def not_for_training() -> None:
    """Do not count the last batch: it was read for an evaluation."""
    global _batches
    _batches -= 1


def is_waiting() -> bool:
    """Whether this thread is waiting for data."""
    return get_ident() == _waiting_in


def flush() -> None:
    """Write the current window of steps; batches read after its last step belong to the next."""
    global _wait
    if _undecided_sources or _new_iterators:
        _decide_sources(False)
    for call in before_flush:
        call()
    window = cells[pulse.WINDOW]
    if steps <= window:
        return
    end, wait, batches = cells[LAST_STEP], cells[WAIT], cells[pulse.BATCHES]
    _emit(
        "steps",
        cells[pulse.WINDOW_AT],
        end=end,
        first=window + 1,
        last=steps,
        wait=wait,
        batches=max(batches - cells[pulse.WINDOW_BATCHES], 0),
    )
    cells[pulse.WINDOW] = steps
    cells[pulse.WINDOW_AT] = end
    _wait = max(_wait - wait, 0)
    cells[WAIT] = 0
    cells[pulse.WINDOW_BATCHES] = batches


def _decide_sources(stepped: bool) -> None:
    """Decide whether batches that were read since the last step were for training.

    An iterator that was read to its end (or dropped) without a step is an evaluation, unless
    gradients were written between its batches, or this step may have used its batches.
    """
    global _batches
    count = _batches
    for source in list(_undecided_sources):
        latest = source.batch_count == count
        if not stepped and latest and source.gradients_written():
            source.trained = True
        if source.exhausted and not source.trained and not (stepped and latest and _needed(source)):
            _emit("span", source.first, end=source.last, name="evaluation", th=_thread())
            _batches -= source.batches
            if stepped:  # they are in the page already
                cells[pulse.BATCHES] -= source.batches
            for call in on_evaluation:
                call(source.first, source.last)
        elif stepped:
            for name, start, end in source.spans:
                _emit("span", start, end=end, name=name, th=_thread())
            add_wait(source.wait, source.last)
            _mark_training(source.ref)
        else:
            continue
        _undecided_sources.remove(source)
    for start, end in _new_iterators:
        _emit("span", start, end=end, name="data_iter", th=_thread())
    _new_iterators.clear()


def _needed(source: _Source) -> bool:
    """Whether this step may have used a batch of this source: there is no other batch.

    False if steps were made without batches: then the loop gets its data in another way.
    """
    others = _batches - source.batches
    return others >= steps - 1 or (source.batches == 1 and not source.stopped)


def _mark_training(ref: Callable[[], Any]) -> None:
    """Take all batches of this iterator for training."""
    iterator = ref()
    key = id(iterator)
    if iterator is None:
        return
    try:
        # Another iterator may get the same id later.
        _training_iterators[key] = weakref.ref(
            iterator, functools.partial(_training_iterators.pop, key)
        )
    except TypeError:
        _training_iterators[key] = None


def _note_undecided_read(iterator: Any, start: int, end: int, ended: bool, last: bool) -> _Source:
    """Record a read that may be for training or for an evaluation."""
    previous = _batches - (not ended)
    for other in _undecided_sources:
        # The previous batch, of this iterator or of the one before it, was trained on.
        if (other.batch_count == previous or other.ref() is iterator) and other.gradients_written():
            other.trained = True
    source = next((other for other in _undecided_sources if other.ref() is iterator), None)
    if source is None:
        source = _Source(iterator, start)
        for iter_start, iter_end in _new_iterators:
            source.first = min(source.first, iter_start)
            source.spans.append(("data_iter", iter_start, iter_end))
        _new_iterators.clear()
        _undecided_sources.append(source)
        _inspect_next_step()
    source.batches += not ended
    source.last, source.batch_count, source.stopped = end, _batches, last
    source.gradients_written = gradients()
    return source


def _choose_optimizer(optimizer: Any) -> bool:
    """Whether steps of `optimizer` count: it is the first, or steps while the first does not."""
    global _counted_optimizer, _counted_optimizer_ref, steps
    if _counted_optimizer == SDK:
        return False
    candidate = id(optimizer)
    if len(_other_optimizers) > 10_000:  # most of them do not exist any more
        _other_optimizers.clear()
    counted_at, count = _other_optimizers.get(candidate, (steps, 0))
    count = count + 1 if counted_at == steps else 1
    _other_optimizers[candidate] = (steps, count)
    if _counted_optimizer_ref() is not None and count < 3:
        return False
    steps += count - 1  # steps that were not counted before
    _counted_optimizer = candidate
    try:
        _counted_optimizer_ref = weakref.ref(optimizer)
    except TypeError:
        _counted_optimizer_ref = lambda: _counted_optimizer  # noqa: E731
    _other_optimizers.pop(candidate, None)
    return True


def _slow_step(t: int) -> None:
    global step_thread, step_thread_in_journal, _flush_at
    if step_thread == 0:
        step_thread_in_journal = _thread()
        # Autograd's C++ threads may make the steps, while the main thread waits for them.
        step_thread = get_ident() if step_thread_in_journal else main_thread().ident or get_ident()
        _open()
        if step_thread_in_journal:
            _emit("stepping", t, th=step_thread_in_journal)
        for call in on_first_step:
            call(t)
    due = _summary_due
    for call in on_step:
        call(t)
    if _undecided_sources or _new_iterators:
        _decide_sources(True)
    if t >= due:
        flush()
        resume_fast_path()
    else:
        _flush_at = _summary_due


def _slow_wait(iterator: Any, start: int, end: int, marker: Any, ended: bool, last: bool) -> None:
    """`ended`: the read returned no batch; `last`: because the iterator is exhausted."""
    is_training = id(iterator) in _training_iterators
    if last:
        _training_iterators.pop(id(iterator), None)
    if any(call(start, end, marker, ended) for call in on_read):
        return
    if steps and get_ident() != step_thread:
        return  # a thread that reads ahead: the loop does not wait for it
    source = (
        _note_undecided_read(iterator, start, end, ended, last)
        if steps and not is_training
        else None
    )
    if any(call(start, end, marker, ended) for call in on_wait):
        return
    if steps and end - start < LONG_WAIT:
        if source is None:
            add_wait(end - start, end)
        else:
            source.wait += end - start
    elif source is not None:
        source.spans.append(("data_wait", start, end))
    else:
        _emit("span", start, end=end, name="data_wait", th=_thread(), last=last)
