"""The hot path: count every step and measure every wait for a batch.

State is in module globals and in the cells of the pulse page, as nothing is cheaper in Python:
about a quarter of a microsecond per step. Everything rare goes through `_slow_*`.
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

_put = Struct("=qqqq").pack_into  # steps, when, batches, wait: cells that follow one another
_OFFSET = STEPS * 8

SECOND = 1_000_000_000
LONG_WAIT = 100_000_000  # a wait from here on has a span of its own
SHORT_WAIT = 200_000  # a wait below this is not worth a look at the device
_SDK_OPTIMIZER = object()  # the leader when the loop itself tells its steps
SDK = id(_SDK_OPTIMIZER)


class _Source:
    """An iterator that was read since the last step, and of whose batches none was trained on."""

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
        self.gradients_written: Callable[[], bool] = lambda: False  # since the last read of it

    @property
    def exhausted(self) -> bool:
        """Nothing more can be read of it."""
        return self.stopped or self.ref() is None


cells = pulse.anonymous()
_page: Any = cells.obj  # the same memory, for stores of several cells at once
steps = 0
_batches = 0
_wait = 0  # ns of short waits in the current window
_waiting_in = 0  # the thread that waits for a batch now
step_thread = 0  # the thread that makes the steps; 0 before the first
step_thread_in_journal = 0  # the same as it is called in the journal
_fast = 0  # the same, or 0 while something wants to see the next event
_counted_optimizer = -1  # id of the optimizer whose steps count
_flush_at = 0
_summary_due = 0  # when the next summary line is; a step before that may take the slow path too
_slow_wait_from = LONG_WAIT  # waits from here on take the slow path
_wait_mask = -1  # a mask: 0 where short waits hide behind a device's queue
_other_optimizers: dict[int, tuple[int, int]] = {}  # optimizers that step beside it
_training_iterators: dict[int, Any] = {}  # iterators of which batches were trained on, by id
_undecided_sources: list[_Source] = []  # iterators of which that is not known yet
_new_iterators: list[tuple[int, int]] = []  # and when such iterators were made
_emit: Callable[..., None] = lambda *_, **__: None  # noqa: E731
_open: Callable[[], None] = lambda: None  # noqa: E731
_guard: Callable[..., Any] = lambda hook, call, *args: call(*args)  # noqa: E731
_thread: Callable[[], int] = lambda: 0  # noqa: E731
# A weak reference to the leader.
_counted_optimizer_ref: Callable[[], Any] = lambda: None  # noqa: E731

# Called in the slow path; set by hooks that care. Each gets times in ns.
on_first_step: list[Callable[[int], None]] = []
on_step: list[Callable[[int], None]] = []
before_flush: list[Callable[[], None]] = []
on_read: list[Callable[[int, int, Any, bool], bool]] = []  # True: it was not for training
on_wait: list[Callable[[int, int, Any, bool], bool]] = []  # True: this wait is accounted for
on_evaluation: list[Callable[[int, int], None]] = []  # what was read in between was not trained on
mark_device: Callable[[], Any] | None = None  # while waits are long on a device with a queue


def bind(
    emit: Callable[..., None],
    open_journal: Callable[[], None],
    guard: Callable[..., Any],
    thread: Callable[[], int],
) -> None:
    """The recorder offers itself (it imports this module, not the other way round)."""
    global _emit, _open, _guard, _thread
    _emit, _open, _guard, _thread = emit, open_journal, guard, thread


def attach_page(page: memoryview) -> None:
    """The journal is open: go on in its pulse page."""
    global cells, _page
    for index in range(STEPS, pulse.CELLS):
        page[index] = max(page[index], cells[index])
    cells, _page = page, page.obj


def reset_after_fork() -> None:
    """After a fork: the page is the parent's."""
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
    """After every `step` of every optimizer."""
    global steps
    if id(optimizer) != _counted_optimizer and not _guard("steps", _choose_optimizer, optimizer):
        return
    t = monotonic_ns()
    steps += 1
    _put(_page, _OFFSET, steps, t, _batches, _wait)
    if t >= _flush_at:
        _guard("steps", _slow_step, t)


def count_step() -> None:
    """`headway.step()`: the loop counts its own steps, optimizers no longer do."""
    global _counted_optimizer
    _counted_optimizer = SDK
    optimizer_stepped(_SDK_OPTIMIZER)


def timed_fetch(fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`fetch`, the `__next__` of a loader, with its waits noted."""

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
    """Any iterable, with its waits noted: `headway.track(loader)`."""
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
    """Making a loader's iterator starts its workers: a wait for data before the first batch."""
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
    """torch's own, once torch is there."""
    return True


def gradients() -> Callable[[], bool]:
    """Whether a backward pass has written gradients since this call; by torch, once it is there."""
    return lambda: False


def counted_optimizer() -> Any:
    """The optimizer whose steps count, if there is one."""
    return _counted_optimizer_ref() if _counted_optimizer != SDK else None


def inspect_short_waits() -> None:
    """There is a device with a queue: a wait may be hidden behind it, the shortest surely are."""
    global _slow_wait_from, _wait_mask
    _slow_wait_from, _wait_mask = SHORT_WAIT, 0


def force_slow_path() -> None:
    """Until `resume_fast_path`, every step and every batch takes the slow path."""
    global _fast, _flush_at, _summary_due
    _fast = _flush_at = _summary_due = 0


def resume_fast_path() -> None:
    """Back to the fast path."""
    global _fast, _flush_at, _summary_due
    _fast = step_thread
    _flush_at = _summary_due = monotonic_ns() + SECOND


def _inspect_next_step() -> None:
    global _flush_at
    _flush_at = 0


def add_wait(ns: int, end: int) -> None:
    """A short wait until `end` that turned out to be a stall."""
    global _wait
    _wait += ns
    if end <= cells[LAST_STEP]:
        cells[WAIT] += ns


def not_for_training() -> None:
    """The batch that was read last is one of an evaluation."""
    global _batches
    _batches -= 1


def is_waiting() -> bool:
    """Whether this thread is inside a wait for data."""
    return get_ident() == _waiting_in


def flush() -> None:
    """Write what the current window holds; what was read after its last step is of the next."""
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
    """Whether batches that were read since the last step were for training.

    An iterator that was read to its end (or dropped) without a step is an evaluation, unless
    gradients were written between its batches, or it may be what this step was made with.
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
            if stepped:  # the page has them already
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
    """Whether this step may have been made with that loader: it has no other batch.

    Not if steps were made without batches: this is a loop that gets its data in another way.
    """
    others = _batches - source.batches
    return others >= steps - 1 or (source.batches == 1 and not source.stopped)


def _mark_training(ref: Callable[[], Any]) -> None:
    """Batches of this iterator are trained on, for as long as it lives."""
    iterator = ref()
    key = id(iterator)
    if iterator is None:
        return
    try:
        # The next iterator may be made at the same place.
        _training_iterators[key] = weakref.ref(
            iterator, functools.partial(_training_iterators.pop, key)
        )
    except TypeError:
        _training_iterators[key] = None


def _note_undecided_read(iterator: Any, start: int, end: int, ended: bool, last: bool) -> _Source:
    """Note a read of which it is not known whether it is for training."""
    previous = _batches - (not ended)
    for known in _undecided_sources:
        # What was read last, by this iterator or by the one before it, was trained on.
        if (known.batch_count == previous or known.ref() is iterator) and known.gradients_written():
            known.trained = True
    source = next((known for known in _undecided_sources if known.ref() is iterator), None)
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
    """Whose steps count: the first optimizer's, or one that steps while it stands still."""
    global _counted_optimizer, _counted_optimizer_ref, steps
    if _counted_optimizer == SDK:
        return False
    candidate = id(optimizer)
    if len(_other_optimizers) > 10_000:  # of optimizers that are long gone
        _other_optimizers.clear()
    counted_at, count = _other_optimizers.get(candidate, (steps, 0))
    count = count + 1 if counted_at == steps else 1
    _other_optimizers[candidate] = (steps, count)
    if _counted_optimizer_ref() is not None and count < 3:
        return False
    steps += count - 1  # those that were held back
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
        # Autograd's C++ threads may make the steps: they work for the main thread, which waits.
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
    """`ended`: there was no batch; `last`: as there are no more."""
    is_training = id(iterator) in _training_iterators
    if last:
        _training_iterators.pop(id(iterator), None)
    if any(call(start, end, marker, ended) for call in on_read):
        return
    if steps and get_ident() != step_thread:
        return  # a thread that reads ahead: nobody waits for it
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
