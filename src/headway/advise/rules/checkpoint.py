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
    remaining = _remaining_save_time(evidence)
    saves = ledger.saves or len(blocked)
    yield Proposal(
        title="Write checkpoints behind the training",
        savings=(Saving(intervals=_after_first(blocked, remaining.ns * saves // len(blocked))),),
        confidence=remaining.confidence,
        why=f"{count(saves, 'save')} blocked {duration(length(blocked) // saves)} each; "
        + remaining.why,
        flags=("--async-save",),
        code=(
            'checkpointer = headway.checkpoint.Checkpointer("checkpoints", state)  # or this one',
        ),
        see="docs/async-save.md",
    )


def _after_first(blocked: Intervals, ns: int) -> Intervals:
    """Each stretch without so much of its beginning."""
    return subtract(blocked, union(*(take_first((stretch,), ns) for stretch in blocked)))


def _remaining_save_time(evidence: Evidence) -> RemainingSaveTime:
    """As other runs of this job have measured it."""
    per_save = []
    for run in evidence.others:
        behind = run.ledger.behind
        blocked = length(time_in(run.ledger, BLOCK_BUCKETS))
        if run.ledger.saves and (run.ledger.saved or (behind and behind.saves)):
            waited = behind.waited // max(len(run.ledger.ranks), 1) if behind else 0
            per_save.append((blocked + waited) // run.ledger.saves)
    if per_save:
        ns = round(statistics.median(per_save))
        return RemainingSaveTime(
            ns, "high", f"one written behind blocks {duration(ns)} in this job"
        )
    reason = "at most: what the copy in memory takes is not measured in this job"
    return RemainingSaveTime(0, "low", reason)


BLOCK_BUCKET = "waste.checkpoint_block"
LOOP_BUCKETS = (EFFECTIVE, LOST, *(f"waste.{name}" for name in WASTE))


@dataclass(frozen=True)
class Loop:
    """The time in which a run could lose something to its interval; seconds."""

    seconds: float
    known: IntervalInputs

    def expected(self, every: float) -> float:
        """What such an interval loses of this run, at the mean of the rate."""
        inputs = self.known
        mtbf = HOUR_S / inputs.per_hour if inputs.failures else math.inf
        share = interval.wasted(every, cost=inputs.cost, mtbf=mtbf, durable=inputs.durable)
        return share * self.seconds


def propose_interval(evidence: Evidence) -> Iterator[Proposal]:
    """What was lost, less what the best interval would lose of the same run."""
    ledger = evidence.ledger
    rolled_back, blocked = time_in(ledger, (LOST,)), time_in(ledger, (BLOCK_BUCKET,))
    if rolled_back and not ledger.saves:
        yield _first_checkpoint(ledger, rolled_back)
    inputs, seconds = ledger_interval_inputs(ledger), length(time_in(ledger, LOOP_BUCKETS)) / NS
    if inputs is None or not seconds or not inputs.cost:
        return
    loop = Loop(seconds, inputs)
    best = inputs.best().interval
    if ledger.recommended_interval is not None:  # the one that the report shows
        best = ledger.recommended_interval / NS
    wasted = (length(rolled_back) + length(blocked)) / NS
    gained = round((wasted - loop.expected(best)) * NS)
    current = (ledger.save_interval or 0) / NS
    more_often = not current or best < current
    if gained <= 0 or not best or (more_often and not inputs.failures):
        return
    steps = max(1, round(best * ledger.steps / seconds)) if ledger.steps else 0
    every = f"every {duration(round(best * NS))}" + (f", {steps:,} steps" if steps else "")
    every += "" if inputs.failures else ", or longer"
    yield Proposal(
        title=f"Save {'more' if more_often else 'less'} often: {every}",
        savings=(Saving(intervals=take_last(rolled_back if more_often else blocked, gained)),),
        confidence=_confidence(loop, wasted),
        why=_interval_reason(ledger, inputs, current),
        code=(f"Checkpointer(store, state, interval={best:.3g})  # or a Tuner",),
        see="docs/checkpoint.md#interval",
    )


def _first_checkpoint(ledger: Ledger, rolled_back: Intervals) -> Proposal:
    return Proposal(
        title="Save checkpoints, and go on from them",
        savings=(Saving(intervals=rolled_back),),
        confidence="low",
        why=f"{count(len(ledger.failures), 'failure')} lost {duration(length(rolled_back))} of "
        "training, and no save was seen; at most: what saves would cost is not measured",
        code=('checkpointer = headway.checkpoint.Checkpointer("checkpoints", state)',),
        see="docs/checkpoint.md#checkpointer",
    )


def _confidence(loop: Loop, wasted: float) -> Confidence:
    """Whether the best interval wins wherever in its credible interval the rate lies."""
    inputs = loop.known
    if not inputs.failures:
        return "low"
    ends = inputs.rate.credible()
    sure = all(loop.expected(inputs.best(rate).interval) < wasted for rate in ends)
    return "medium" if sure else "low"


def _interval_reason(ledger: Ledger, inputs: IntervalInputs, current: float) -> str:
    since = f"; now every {_format_seconds(current)}" if current else ""
    mtbf = HOUR_S / inputs.per_hour
    young, daly = interval.young(inputs.cost, mtbf), interval.daly(inputs.cost, mtbf)
    if not inputs.failures:
        text = f"no failure in {duration(ledger.wall)}, so how often it fails is not known: below "
        text += (
            f"{inputs.per_hour:.3g} an hour (95 %), for which Young says {_format_seconds(young)}"
        )
        return text + since
    times = ledger.time_to_recover
    recover = sum(times) / len(times) / NS if times else 0.0
    exact = interval.best(
        cost=inputs.cost, mtbf=mtbf, durable=inputs.durable, recover=recover, exact=True
    )
    low, high = inputs.rate.credible()
    ends = sorted(inputs.best(rate).interval for rate in (low, high))
    text = (
        f"{count(inputs.failures, 'failure')} in this run: {inputs.per_hour:.3g} an hour, between "
    )
    text += f"{low:.3g} and {high:.3g} (95 %), for which {_format_seconds(ends[0])} to "
    text += f"{_format_seconds(ends[1])} is best; Young {_format_seconds(young)}, "
    text += f"Daly {_format_seconds(daly)}, with {_format_seconds(recover)} to recover "
    text += f"{_format_seconds(exact.interval)} and {100 * exact.wasted:.1f} % lost"
    return text + since


def _format_seconds(seconds: float) -> str:
    return duration(round(seconds * NS))
