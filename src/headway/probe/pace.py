"""The hot path: every step and every wait for a batch.

State is in module globals and in the cells of the pulse page, as nothing is cheaper in Python:
about a quarter of a microsecond for a step. Everything rare goes through `_slow_*`.
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
_AT = STEPS * 8

SECOND = 1_000_000_000
LONG_WAIT = 100_000_000  # a wait from here on has a span of its own
SHORT_WAIT = 200_000  # a wait below this is not worth a look at the device
_TELLER = object()  # the leader when the loop itself tells its steps
SDK = id(_TELLER)

cells = pulse.anonymous()
_page: Any = cells.obj  # the same memory, for stores of several cells at once
steps = 0
_batches = 0
_wait = 0  # ns of short waits in the current window
_waiting_in = 0  # the thread that waits for a batch now
stepper = 0  # the thread that makes the steps; 0 before the first
stepping_thread = 0  # the same as it is called in the journal
_fast = 0  # the same, or 0 while something wants to see the next event
_leader = -1  # id of the optimizer whose steps count
_flush_at = 0
_look_at = LONG_WAIT  # waits from here on take the slow path
_counted = -1  # a mask: 0 where short waits hide behind a device's queue
_others: dict[int, tuple[int, int]] = {}  # optimizers that step beside it
_emit: Callable[..., None] = lambda *_, **__: None  # noqa: E731
_open: Callable[[], None] = lambda: None  # noqa: E731
_guard: Callable[..., Any] = lambda hook, call, *args: call(*args)  # noqa: E731
_thread: Callable[[], int] = lambda: 0  # noqa: E731
# A weak reference to the leader.
_leader_alive: Callable[[], Any] = lambda: None  # noqa: E731

# Called in the slow path; set by hooks that care. Each gets times in ns.
on_first_step: list[Callable[[int], None]] = []
on_step: list[Callable[[int], None]] = []
before_flush: list[Callable[[], None]] = []
on_wait: list[Callable[[int, int, Any, bool], bool]] = []  # True: this wait is accounted for
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


def adopt(page: memoryview) -> None:
    """The journal is open: go on in its pulse page."""
    global cells, _page
    for index in range(STEPS, pulse.CELLS):
        page[index] = max(page[index], cells[index])
    cells, _page = page, page.obj


def forget() -> None:
    """After a fork: the page is the parent's."""
    global cells, _page, steps, stepper, _fast, _flush_at, _batches, _wait, _waiting_in
    global _leader, _leader_alive
    cells = pulse.anonymous()
    _page = cells.obj
    steps = stepper = _fast = _flush_at = _batches = _wait = _waiting_in = 0
    _leader, _leader_alive = -1, lambda: None
    _others.clear()


def optimizer_stepped(optimizer: Any, *_: Any) -> None:
    """After every `step` of every optimizer."""
    global steps
    if id(optimizer) != _leader and not _elect(optimizer):
        return
    t = monotonic_ns()
    steps += 1
    _put(_page, _AT, steps, t, _batches, _wait)
    if t >= _flush_at:
        _guard("steps", _slow_step, t)


def told_step() -> None:
    """`headway.step()`: the loop counts its own steps, optimizers no longer do."""
    global _leader
    _leader = SDK
    optimizer_stepped(_TELLER)


def watched(fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`fetch`, the `__next__` of a loader, with its waits noted."""

    @functools.wraps(fetch)
    def __next__(self: Any) -> Any:
        global _batches, _wait, _waiting_in
        thread = get_ident()
        if thread == _waiting_in:  # a loader inside a loader
            return fetch(self)
        tail = mark_device() if mark_device is not None else None
        _waiting_in = thread
        cells[WAITING] = start = monotonic_ns()
        try:
            batch = fetch(self)
        except BaseException as error:
            _waiting_in = cells[WAITING] = 0
            ended = isinstance(error, StopIteration)
            _guard("data", _slow_wait, start, monotonic_ns(), tail, ended)
            raise
        waited = monotonic_ns() - start
        _waiting_in = cells[WAITING] = 0
        _batches += 1
        if waited > _look_at or thread != _fast or not grad_enabled():
            _guard("data", _slow_wait, start, start + waited, tail, False)
        else:
            _wait += waited & _counted
        return batch

    return __next__


def track(source: Any) -> Iterator[Any]:
    """Any iterable, with its waits noted: `headway.track(loader)`."""
    start = monotonic_ns()
    iterator = iter(source)  # may take as long as the first batch
    made_iterator(start, monotonic_ns())
    while True:
        try:
            batch = _next(iterator)
        except StopIteration:
            return
        yield batch


def made_iterator(start: int, end: int) -> None:
    """Making a loader's iterator starts its workers: a wait for data before the first batch."""
    thread = get_ident()
    if thread == _waiting_in or end - start < SHORT_WAIT or (steps and thread != stepper):
        return
    if not any(call(start, end, None, True) for call in on_wait):
        _emit("span", start, end=end, name="data_iter", th=_thread())


_next = watched(next)


def grad_enabled() -> bool:
    """torch's own, once torch is there."""
    return True


def look_at_short_waits() -> None:
    """There is a device with a queue: a wait may be hidden behind it, the shortest surely are."""
    global _look_at, _counted
    _look_at, _counted = SHORT_WAIT, 0


def watch_closely() -> None:
    """Until `relax`, every step and every batch takes the slow path."""
    global _fast, _flush_at
    _fast = _flush_at = 0


def relax() -> None:
    """Back to the fast path."""
    global _fast, _flush_at
    _fast = stepper
    _flush_at = monotonic_ns() + SECOND


def add_wait(ns: int) -> None:
    """A short wait that turned out to be a stall."""
    global _wait
    _wait += ns
    cells[WAIT] = _wait


def not_for_training() -> None:
    """The batch that was read last is one of an evaluation."""
    global _batches
    _batches -= 1


def waiting() -> bool:
    """Whether this thread is inside a wait for data."""
    return get_ident() == _waiting_in


def flush() -> None:
    """Write what the current window holds."""
    global _wait
    for call in before_flush:
        call()
    window = cells[pulse.WINDOW]
    if steps <= window:
        return
    end = cells[LAST_STEP]
    _emit(
        "steps",
        cells[pulse.WINDOW_AT],
        end=end,
        first=window + 1,
        last=steps,
        wait=_wait,
        batches=_batches - cells[pulse.WINDOW_BATCHES],
    )
    cells[pulse.WINDOW] = steps
    cells[pulse.WINDOW_AT] = end
    cells[WAIT] = _wait = 0
    cells[pulse.WINDOW_BATCHES] = _batches


def _elect(optimizer: Any) -> bool:
    """Whose steps count: the first optimizer's, or one that steps while it stands still."""
    global _leader, _leader_alive, steps
    if _leader == SDK:
        return False
    candidate = id(optimizer)
    if len(_others) > 10_000:  # of optimizers that are long gone
        _others.clear()
    seen_at, count = _others.get(candidate, (steps, 0))
    count = count + 1 if seen_at == steps else 1
    _others[candidate] = (steps, count)
    if _leader_alive() is not None and count < 3:
        return False
    steps += count - 1  # those that were held back
    _leader = candidate
    try:
        _leader_alive = weakref.ref(optimizer)
    except TypeError:
        _leader_alive = lambda: _leader  # noqa: E731
    _others.pop(candidate, None)
    return True


def _slow_step(t: int) -> None:
    global stepper, stepping_thread
    if stepper == 0:
        stepping_thread = _thread()
        # Autograd's C++ threads may make the steps: they work for the main thread, which waits.
        stepper = get_ident() if stepping_thread else main_thread().ident or get_ident()
        _open()
        if stepping_thread:
            _emit("stepping", t, th=stepping_thread)
        for call in on_first_step:
            call(t)
    for call in on_step:
        call(t)
    flush()
    relax()


def _slow_wait(start: int, end: int, tail: Any, ended: bool) -> None:
    """`ended`: there was no batch."""
    if any(call(start, end, tail, ended) for call in on_wait):
        return
    if steps and get_ident() != stepper:
        return  # a thread that reads ahead: nobody waits for it
    if not steps or end - start >= LONG_WAIT:
        _emit("span", start, end=end, name="data_wait", th=_thread(), last=ended)
    else:
        add_wait(end - start)
