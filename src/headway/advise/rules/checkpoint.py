"""Rules for checkpoints: saves in the background and the interval between saves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from headway.advise.model import Confidence, Evidence, Proposal, Saving
from headway.advise.replay import time_in
from headway.checkpoint import interval
from headway.format import count, duration
from headway.ledger.buckets import EFFECTIVE, LOST
from headway.ledger.checkpoints import HOUR_S, IntervalInputs, ledger_interval_inputs
from headway.ledger.model import Ledger
from headway.ledger.segments import Intervals, length, subtract, take_first, take_last, union
from headway.taxonomy import WASTE
from headway.units import NS

BLOCK_BUCKETS = ("waste.checkpoint_block",)


class RemainingSaveTime(NamedTuple):
    """What a save still blocks once it is written behind."""

    ns: int
    confidence: Confidence
    why: str


def propose_async_checkpoint(evidence: Evidence) -> Iterator[Proposal]:
    """Every save that blocked longer is brought down to what one written behind takes."""
    ledger = evidence.ledger
    blocked = time_in(ledger, BLOCK_BUCKETS)
    if not blocked or ledger.saved or (ledger.behind and ledger.behind.saves):
        return
    left = _remaining_save_time(evidence)
    saves = ledger.saves or len(blocked)
    yield Proposal(
        title="Write checkpoints behind the training",
        cuts=(Saving(take=_after_first(blocked, left.ns * saves // len(blocked))),),
        confidence=left.confidence,
        why=f"{count(saves, 'save')} blocked {duration(length(blocked) // saves)} each; {left.why}",
        flags=("--async-save",),
        code=(
            'checkpointer = headway.checkpoint.Checkpointer("checkpoints", state)  # or this one',
        ),
        see="docs/async-save.md",
    )


def _after_first(blocked: Intervals, ns: int) -> Intervals:
    """Each stretch without so much of its beginning."""
    return subtract(blocked, union(*(take_first((one,), ns) for one in blocked)))


def _remaining_save_time(evidence: Evidence) -> RemainingSaveTime:
    """As other runs of this job have measured it."""
    found = []
    for seen in evidence.others:
        behind = seen.ledger.behind
        blocked = length(time_in(seen.ledger, BLOCK_BUCKETS))
        if seen.ledger.saves and (seen.ledger.saved or (behind and behind.saves)):
            waited = behind.waited // max(len(seen.ledger.ranks), 1) if behind else 0
            found.append((blocked + waited) // seen.ledger.saves)
    if found:
        ns = round(statistics.median(found))
        return RemainingSaveTime(
            ns, "high", f"one written behind blocks {duration(ns)} in this job"
        )
    told = "at most: what the copy in memory takes is not measured in this job"
    return RemainingSaveTime(0, "low", told)


BLOCK_BUCKET = "waste.checkpoint_block"
LOOP_BUCKETS = (EFFECTIVE, LOST, *(f"waste.{name}" for name in WASTE))


@dataclass(frozen=True)
class Loop:
    """The time in which a run could lose something to its interval; seconds."""

    seconds: float
    known: IntervalInputs

    def expected(self, every: float) -> float:
        """What such an interval loses of this run, at the mean of the rate."""
        known = self.known
        mtbf = HOUR_S / known.per_hour if known.failures else math.inf
        share = interval.wasted(every, cost=known.cost, mtbf=mtbf, durable=known.durable)
        return share * self.seconds


def propose_interval(evidence: Evidence) -> Iterator[Proposal]:
    """What was lost, less what the best interval would lose of the same run."""
    ledger = evidence.ledger
    rolled, blocked = time_in(ledger, (LOST,)), time_in(ledger, (BLOCK_BUCKET,))
    if rolled and not ledger.saves:
        yield _first_checkpoint(ledger, rolled)
    known, seconds = ledger_interval_inputs(ledger), length(time_in(ledger, LOOP_BUCKETS)) / NS
    if known is None or not seconds or not known.cost:
        return
    loop = Loop(seconds, known)
    best = known.best().interval
    if ledger.recommended_interval is not None:  # the one that the report shows
        best = ledger.recommended_interval / NS
    here = (length(rolled) + length(blocked)) / NS
    won = round((here - loop.expected(best)) * NS)
    now = (ledger.save_interval or 0) / NS
    oftener = not now or best < now
    if won <= 0 or not best or (oftener and not known.failures):
        return
    steps = max(1, round(best * ledger.steps / seconds)) if ledger.steps else 0
    every = f"every {duration(round(best * NS))}" + (f", {steps:,} steps" if steps else "")
    every += "" if known.failures else ", or longer"
    yield Proposal(
        title=f"Save {'more' if oftener else 'less'} often: {every}",
        cuts=(Saving(take=take_last(rolled if oftener else blocked, won)),),
        confidence=_confidence(loop, here),
        why=_interval_reason(ledger, known, now),
        code=(f"Checkpointer(store, state, interval={best:.3g})  # or a Tuner",),
        see="docs/checkpoint.md#interval",
    )


def _first_checkpoint(ledger: Ledger, rolled: Intervals) -> Proposal:
    return Proposal(
        title="Save checkpoints, and go on from them",
        cuts=(Saving(take=rolled),),
        confidence="low",
        why=f"{count(len(ledger.failures), 'failure')} lost {duration(length(rolled))} of "
        "training, and no save was seen; at most: what saves would cost is not measured",
        code=('checkpointer = headway.checkpoint.Checkpointer("checkpoints", state)',),
        see="docs/checkpoint.md#checkpointer",
    )


def _confidence(loop: Loop, here: float) -> Confidence:
    """Whether the best interval wins wherever in its credible interval the rate lies."""
    known = loop.known
    if not known.failures:
        return "low"
    ends = known.rate.credible()
    sure = all(loop.expected(known.best(rate).interval) < here for rate in ends)
    return "medium" if sure else "low"


def _interval_reason(ledger: Ledger, known: IntervalInputs, now: float) -> str:
    since = f"; now every {_format_seconds(now)}" if now else ""
    mtbf = HOUR_S / known.per_hour
    young, daly = interval.young(known.cost, mtbf), interval.daly(known.cost, mtbf)
    if not known.failures:
        told = f"no failure in {duration(ledger.wall)}, so how often it fails is not known: below "
        told += (
            f"{known.per_hour:.3g} an hour (95 %), for which Young says {_format_seconds(young)}"
        )
        return told + since
    times = ledger.time_to_recover
    recover = sum(times) / len(times) / NS if times else 0.0
    exact = interval.best(
        cost=known.cost, mtbf=mtbf, durable=known.durable, recover=recover, exact=True
    )
    low, high = known.rate.credible()
    ends = sorted(known.best(rate).interval for rate in (low, high))
    told = f"{count(known.failures, 'failure')} in this run: {known.per_hour:.3g} an hour, between "
    told += f"{low:.3g} and {high:.3g} (95 %), for which {_format_seconds(ends[0])} to "
    told += f"{_format_seconds(ends[1])} is best; Young {_format_seconds(young)}, "
    told += f"Daly {_format_seconds(daly)}, with {_format_seconds(recover)} to recover "
    told += f"{_format_seconds(exact.interval)} and {100 * exact.wasted:.1f} % lost"
    return told + since


def _format_seconds(seconds: float) -> str:
    return duration(round(seconds * NS))
