"""When each fault of a plan is due: pure functions of the plan, its seed and earlier occurrences.

Every fault has a random stream of its own, so that an additional fault does not change the others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from headway.chaos.plan import Fault, FaultPlan

MAX_OCCURRENCES = 100  # maximum occurrences of one fault in an attempt


@dataclass(frozen=True, slots=True)
class Moment:
    """One fault at one moment of an attempt."""

    fault: Fault
    keys: tuple[str, ...]  # of its occurrences; the first unclaimed one applies
    step: int | None = None  # of the rank, counted in this attempt
    after_s: float | None = None  # since the start of this attempt
    draw: float | None = None  # selects a random rank, as a share of the world


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultHistory:
    """What the schedule of an attempt depends on."""

    claimed: Mapping[int, frozenset[str]]  # claimed keys, by fault number
    earlier: Mapping[int, int]  # occurrences of a recurring fault before this launch
    ran_s: Mapping[int, float]  # seconds that this launch has run, by fault number
    steps: Mapping[int, Mapping[int, int]]  # the same in steps of each rank


def plan_moments(plan: FaultPlan, attempt: int, history: FaultHistory) -> list[Moment]:
    """Everything that is planned for this attempt."""
    moments: list[Moment] = []
    for fault in plan.faults:
        if applies_to(fault, attempt):
            moments += _fault_moments(fault, plan.seed, attempt, history)
    return moments


def applies_to(fault: Fault, attempt: int) -> bool:
    """Whether the fault applies to this attempt."""
    return fault.attempts is None or attempt in fault.attempts


def _fault_moments(
    fault: Fault, seed: int, attempt: int, history: FaultHistory
) -> Iterator[Moment]:
    claimed = history.claimed.get(fault.number, frozenset())
    if fault.recurring:
        yield from _recurring(fault, seed, claimed, history)
        return
    if fault.at_step is not None and fault.attempts is None:
        keys = [f"k{k}" for k in range(fault.times or 1)]
    else:
        keys = [f"a{attempt}"]
        if fault.times is not None and len(claimed) >= fault.times:
            return
    if fault.on_restart and attempt == 0:
        return
    free = tuple(key for key in keys if key not in claimed)
    if free:
        draw = _draw(fault, seed, free[0])
        yield Moment(fault, free, step=fault.at_step, after_s=fault.after_s, draw=draw)


def _recurring(
    fault: Fault, seed: int, claimed: frozenset[str], history: FaultHistory
) -> Iterator[Moment]:
    """A recurring fault is counted over all attempts of this launch."""
    earlier = history.earlier.get(fault.number, 0)
    by_time = fault.every_s is not None
    so_far = (
        history.ran_s.get(fault.number, 0.0)
        if by_time
        else _steps_of(fault, history.steps.get(fault.number, {}))
    )
    begin, remaining = 0.0, MAX_OCCURRENCES
    for k, due in enumerate(due_points(fault, seed)):
        if not remaining or (fault.times is not None and k >= fault.times):
            return
        if k < earlier:
            begin = due
            continue
        key, distance = f"k{k}", due - begin - so_far
        if distance <= 0 or key in claimed:
            continue
        remaining -= 1
        draw = _draw(fault, seed, key)
        if by_time:
            yield Moment(fault, (key,), after_s=distance, draw=draw)
        else:
            yield Moment(fault, (key,), step=round(distance), draw=draw)


def due_points(fault: Fault, seed: int) -> Iterator[float]:
    """Seconds or steps of the run at which a recurring fault is due."""
    source = random.Random(f"{seed}:{fault.number}:when")
    if fault.every_s is not None:
        mean = fault.every_s
        return accumulate(iter(lambda: source.expovariate(1 / mean), None))
    assert fault.steps_between is not None
    low, high = fault.steps_between
    return accumulate(iter(lambda: float(source.randint(low, high)), None))


def _steps_of(fault: Fault, steps: Mapping[int, int]) -> int:
    """Steps of the rank, or of the run, which are the same in synchronous training."""
    if isinstance(fault.who, int):
        return steps.get(fault.who, 0)
    return max(steps.values(), default=0)


def _draw(fault: Fault, seed: int, key: str) -> float | None:
    if fault.who != "random":
        return None
    return round(random.Random(f"{seed}:{fault.number}:{key}:who").random(), 6)


def drawn_rank(draw: float, world: int) -> int:
    """The rank that a draw selects in a world of that size."""
    return int(draw * world)


def describe_schedule(plan: FaultPlan) -> Iterator[str]:
    """The schedule in words, as far as it is known before a job runs."""
    nothing = FaultHistory(claimed={}, earlier={}, ran_s={}, steps={})
    for fault in plan.faults:
        yield f"{fault.number}. {fault.text}"
        if not (fault.recurring or fault.who == "random"):
            continue
        moments = list(_fault_moments(fault, plan.seed, (fault.attempts or (0,))[0], nothing))
        for moment in moments[:10]:
            yield f"     {_describe_moment(moment)}"
        if len(moments) > 10:
            yield "     ..."


def _describe_moment(moment: Moment) -> str:
    text = f"step {moment.step}" if moment.step is not None else f"{moment.after_s:.3f} s"
    if moment.draw is None:
        return text
    examples = ", ".join(
        f"rank {drawn_rank(moment.draw, world)} of {world}" for world in (2, 8, 64)
    )
    return f"{text}: {examples}"
