"""The hot path: every step and every wait for a batch.

State is in module globals and in the cells of the pulse page, as nothing is cheaper in Python:
about a quarter of a microsecond for a step. Everything rare goes through `_slow_*`.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Any

from headway.journal import pulse
from headway.journal.pulse import BATCHES, LAST_STEP, STEPS, WAIT, WAITING

SECOND = 1_000_000_000
LONG_WAIT = 20_000_000  # a wait from here on has a span of its own
SHORT_WAIT = 200_000  # a wait below this is not worth a look at the device
SDK = 0  # the leader when the loop itself tells its steps

cells = pulse.anonymous()
steps = 0
stepper = 0  # the thread that makes the steps; 0 before the first
stepping_thread = 0  # the same as it is called in the journal
_fast = 0  # the same, or 0 while something wants to see the next event
_leader = -1  # id of the optimizer whose steps count
_flush_at = 0
_look_at = LONG_WAIT  # waits from here on take the slow path
_others: dict[int, tuple[int, int]] = {}  # optimizers that step beside it
_emit: Callable[..., None] = lambda *_, **__: None  # noqa: E731
_open: Callable[[], None] = lambda: None  # noqa: E731

# Called in the slow path; set by hooks that care. Each gets times in ns.
on_first_step: list[Callable[[int], None]] = []
on_step: list[Callable[[int], None]] = []
on_wait: list[Callable[[int, int, Any], bool]] = []  # True: this wait is accounted for
mark_device: Callable[[], Any] | None = None  # while waits are long on a device with a queue


def bind(emit: Callable[..., None], open_journal: Callable[[], None]) -> None:
    """The recorder offers itself (it imports this module, not the other way round)."""
    global _emit, _open
    _emit, _open = emit, open_journal


def adopt(page: memoryview) -> None:
    """The journal is open: go on in its pulse page."""
    global cells
    for index in range(STEPS, pulse.CELLS):
        page[index] = max(page[index], cells[index])
    cells = page


def forget() -> None:
    """After a fork: the page is the parent's."""
    global cells, steps, stepper, _fast, _leader, _flush_at
    cells = pulse.anonymous()
    steps = stepper = _fast = _flush_at = 0
    _leader = -1
    _others.clear()


def optimizer_stepped(optimizer: Any, *_: Any) -> None:
    """After every `step` of every optimizer."""
    global steps
    if id(optimizer) != _leader and not _elect(id(optimizer)):
        return
    t = monotonic_ns()
    steps += 1
    cells[LAST_STEP] = t
    cells[STEPS] = steps
    if t >= _flush_at:
        _slow_step(t)


def told_step() -> None:
    """`headway.step()`: the loop counts its own steps, optimizers no longer do."""
    global steps, _leader
    _leader = SDK
    t = monotonic_ns()
    steps += 1
    cells[LAST_STEP] = t
    cells[STEPS] = steps
    if t >= _flush_at:
        _slow_step(t)


def next_batch(fetch: Callable[[Any], Any], source: Any) -> Any:
    """One `next()` of a loader, with the wait for it."""
    if cells[WAITING]:  # a loader inside a loader
        return fetch(source)
    tail = mark_device() if mark_device is not None else None
    start = monotonic_ns()
    cells[WAITING] = start
    try:
        batch = fetch(source)
    except BaseException as error:
        cells[WAITING] = 0
        _slow_wait(start, monotonic_ns(), tail, ended=isinstance(error, StopIteration))
        raise
    waited = monotonic_ns() - start
    cells[WAITING] = 0
    cells[BATCHES] += 1
    if waited > _look_at or get_ident() != _fast or not grad_enabled():
        _slow_wait(start, start + waited, tail)
    else:
        cells[WAIT] += waited
    return batch


def track(source: Any) -> Iterator[Any]:
    """Any iterable, with its waits noted: `headway.track(loader)`."""
    start = monotonic_ns()
    iterator = iter(source)  # may take as long as the first batch
    made_iterator(start, monotonic_ns())
    while True:
        try:
            batch = next_batch(next, iterator)
        except StopIteration:
            return
        yield batch


def made_iterator(start: int, end: int) -> None:
    """Making a loader's iterator starts its workers: a wait for data before the first batch."""
    if cells[WAITING] or end - start < SHORT_WAIT or (steps and get_ident() != stepper):
        return
    if not any(call(start, end, None) for call in on_wait):
        _emit("span", start, end=end, name="data_iter", th=_thread_name())


def grad_enabled() -> bool:
    """torch's own, once torch is there."""
    return True


def look_at_short_waits() -> None:
    """There is a device with a queue: a wait may be hidden behind it."""
    global _look_at
    _look_at = SHORT_WAIT


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
    cells[WAIT] += ns


def flush() -> None:
    """Write what the current window holds."""
    window = cells[pulse.WINDOW]
    if steps <= window:
        return
    end = cells[LAST_STEP]
    batches = cells[BATCHES]
    _emit(
        "steps",
        cells[pulse.WINDOW_AT],
        end=end,
        first=window + 1,
        last=steps,
        wait=cells[WAIT],
        batches=max(batches - cells[pulse.WINDOW_BATCHES], 0),
    )
    cells[pulse.WINDOW] = steps
    cells[pulse.WINDOW_AT] = end
    cells[WAIT] = 0
    cells[pulse.WINDOW_BATCHES] = batches


def _elect(candidate: int) -> bool:
    """Whose steps count: the first optimizer's, or one that steps while it stands still."""
    global _leader
    if _leader == SDK:
        return False
    seen_at, count = _others.get(candidate, (steps, 0))
    count = count + 1 if seen_at == steps else 1
    _others[candidate] = (steps, count)
    if _leader != -1 and count < 3:
        return False
    _leader = candidate
    _others.pop(candidate, None)
    return True


def _slow_step(t: int) -> None:
    global stepper, stepping_thread
    if steps == 1:
        stepper, stepping_thread = get_ident(), _thread_name()
        _open()
        if stepping_thread:
            _emit("stepping", t, th=stepping_thread)
        for call in on_first_step:
            call(t)
    for call in on_step:
        call(t)
    flush()
    relax()


def _slow_wait(start: int, end: int, tail: Any, *, ended: bool = False) -> None:
    if any(call(start, end, tail) for call in on_wait):
        return
    if steps and get_ident() != stepper:
        return  # a thread that reads ahead: nobody waits for it
    if not steps or end - start >= LONG_WAIT:
        _emit("span", start, end=end, name="data_wait", th=_thread_name(), last=ended)
    else:
        cells[WAIT] += end - start


def _thread_name() -> int:
    """0 for the main thread, as everywhere in the journal."""
    import threading

    ident = get_ident()
    return 0 if ident == threading.main_thread().ident else ident
