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
BLOCK_BUCKET = "waste.checkpoint_block"
LOOP_BUCKETS = (EFFECTIVE, LOST, *(f"waste.{name}" for name in WASTE))


class RemainingSaveTime(NamedTuple):
    """The time that a background save still blocks."""

    ns: int
    confidence: Confidence
    why: str


def propose_async_checkpoint(evidence: Evidence) -> Iterator[Proposal]:
    """Shorten each save to the blocking time of a background save."""
    ledger = evidence.ledger
    blocked = time_in(ledger, BLOCK_BUCKETS)
    if not blocked or ledger.outcomes or (ledger.async_save and ledger.async_save.saves):
        return
    remaining = _remaining_save_time(evidence)
    saves = ledger.saves or len(blocked)
    yield Proposal(
        title="Write checkpoints in the background",
        savings=(Saving(intervals=_after_first(blocked, remaining.ns * saves // len(blocked))),),
        confidence=remaining.confidence,
        why=f"{count(saves, 'save')} blocked {duration(length(blocked) // saves)} each; "
        + remaining.why,
        flags=("--async-save",),
        code=(
            'checkpointer = headway.checkpoint.Checkpointer("checkpoints", state)  # alternative',
        ),
        see="docs/async-save.md",
    )


def _after_first(blocked: Intervals, ns: int) -> Intervals:
    """Each interval without its first `ns`."""
    return subtract(blocked, union(*(take_first((stretch,), ns) for stretch in blocked)))


def _remaining_save_time(evidence: Evidence) -> RemainingSaveTime:
    """Measured in other runs of the job."""
    per_save = []
    for run in evidence.others:
        behind = run.ledger.async_save
        blocked = length(time_in(run.ledger, BLOCK_BUCKETS))
        if run.ledger.saves and (run.ledger.outcomes or (behind and behind.saves)):
            waited = behind.wait // max(len(run.ledger.ranks), 1) if behind else 0
            per_save.append((blocked + waited) // run.ledger.saves)
    if per_save:
        ns = round(statistics.median(per_save))
        return RemainingSaveTime(ns, "high", f"a background save blocks {duration(ns)} in this job")
    reason = "upper bound: the time of the copy in memory is not measured in this job"
    return RemainingSaveTime(0, "low", reason)


@dataclass(frozen=True)
class Loop:
    """The training loop, where the checkpoint interval matters; seconds."""

    seconds: float
    known: IntervalInputs

    def expected(self, every: float) -> float:
        """Expected loss of this run with a checkpoint interval, at the mean failure rate."""
        inputs = self.known
        mtbf = HOUR_S / inputs.per_hour if inputs.failures else math.inf
        share = interval.wasted(every, cost=inputs.cost, mtbf=mtbf, durable=inputs.durable)
        return share * self.seconds


def propose_interval(evidence: Evidence) -> Iterator[Proposal]:
    """The lost time minus the expected loss with the best interval."""
    ledger = evidence.ledger
    rolled_back, blocked = time_in(ledger, (LOST,)), time_in(ledger, (BLOCK_BUCKET,))
    if rolled_back and not ledger.saves:
        yield _first_checkpoint(ledger, rolled_back)
    inputs, seconds = ledger_interval_inputs(ledger), length(time_in(ledger, LOOP_BUCKETS)) / NS
    if inputs is None or not seconds or not inputs.cost:
        return
    loop = Loop(seconds, inputs)
    best = inputs.best().interval
    if ledger.recommended_interval is not None:  # as in the report
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
        title="Save checkpoints and resume from them",
        savings=(Saving(intervals=rolled_back),),
        confidence="low",
        why=f"{count(len(ledger.failures), 'failure')} lost {duration(length(rolled_back))} of "
        "training without any save; upper bound: the cost of saves is not measured",
        code=('checkpointer = headway.checkpoint.Checkpointer("checkpoints", state)',),
        see="docs/checkpoint.md#checkpointer",
    )


def _confidence(loop: Loop, wasted: float) -> Confidence:
    """Medium if the best interval gains over the whole credible interval of the failure rate."""
    inputs = loop.known
    if not inputs.failures:
        return "low"
    ends = inputs.rate.credible()
    sure = all(loop.expected(inputs.best(rate).interval) < wasted for rate in ends)
    return "medium" if sure else "low"


def _interval_reason(ledger: Ledger, inputs: IntervalInputs, current: float) -> str:
    since = f"; currently every {_format_seconds(current)}" if current else ""
    mtbf = HOUR_S / inputs.per_hour
    young, daly = interval.young(inputs.cost, mtbf), interval.daly(inputs.cost, mtbf)
    if not inputs.failures:
        text = f"no failure in {duration(ledger.wall)}, so the failure rate is not known: below "
        text += (
            f"{inputs.per_hour:.3g} per hour (95 %), "
            f"for which Young's interval is {_format_seconds(young)}"
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
        f"{count(inputs.failures, 'failure')} in this run: {inputs.per_hour:.3g} per hour, between "
    )
    text += f"{low:.3g} and {high:.3g} (95 %), for which {_format_seconds(ends[0])} to "
    text += f"{_format_seconds(ends[1])} is best; Young {_format_seconds(young)}, "
    text += f"Daly {_format_seconds(daly)}; exact {_format_seconds(exact.interval)} with "
    text += f"{_format_seconds(recover)} to recover, {100 * exact.wasted:.1f} % lost"
    return text + since


def _format_seconds(seconds: float) -> str:
    return duration(round(seconds * NS))
