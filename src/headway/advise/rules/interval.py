"""Saves that come too rarely lose training to failures; too often, they cost too much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headway.advise.intervals import Intervals, last, length
from headway.advise.model import Confidence, Cut, Evidence, Proposal
from headway.advise.replay import spent
from headway.checkpoint import interval
from headway.checkpoint.rate import UNKNOWN, FailureRate
from headway.ledger.leaves import EFFECTIVE, LOST, WASTE
from headway.ledger.model import NS, Ledger
from headway.report.words import count, duration

BLOCK = "waste.checkpoint_block"
LOOP = (EFFECTIVE, LOST, *(f"waste.{name}" for name in WASTE))


@dataclass(frozen=True)
class Loop:
    """What the law of the interval needs of a run; seconds, but for the counts."""

    seconds: float
    steps: int
    cost: float  # of a save
    durable: float
    recover: float
    rate: FailureRate
    failures: int

    def best(self, per_hour: float) -> interval.Best:
        """The interval that loses least at so many failures an hour."""
        return interval.best(cost=self.cost, mtbf=3600 / per_hour, durable=self.durable)

    def expected(self, every: float) -> float:
        """What such an interval loses of this run, at the mean of the rate."""
        mtbf = 3600 / self.rate.mean
        share = interval.wasted(every, cost=self.cost, mtbf=mtbf, durable=self.durable)
        return share * self.seconds


def proposals(evidence: Evidence) -> Iterator[Proposal]:
    """What was lost, less what the best interval would lose of the same run."""
    ledger = evidence.ledger
    rolled, blocked = spent(ledger, (LOST,)), spent(ledger, (BLOCK,))
    if rolled and not ledger.saves:
        yield _at_all(ledger, rolled)
    loop = _loop(ledger)
    if loop is None:
        return
    best = loop.best(loop.rate.mean)
    here = (length(rolled) + length(blocked)) / NS
    won = round((here - loop.expected(best.interval)) * NS)
    now = (ledger.save_interval or 0) / NS
    if won <= 0 or not best.interval:
        return
    oftener = not now or best.interval < now
    low, high = loop.rate.credible()
    steps = max(1, round(best.interval * loop.steps / loop.seconds)) if loop.steps else 0
    every = f"every {duration(round(best.interval * NS))}" + (f", {steps:,} steps" if steps else "")
    yield Proposal(
        title=f"Save {'more' if oftener else 'less'} often: {every}",
        cuts=(Cut(take=last(rolled if oftener else blocked, won)),),
        confidence=_confidence(loop, here, low, high),
        why=_why(loop, now, low, high),
        code=(f"Checkpointer(store, state, interval={best.interval:.3g})  # or a Tuner",),
        see="docs/checkpoint.md#interval",
    )


def _at_all(ledger: Ledger, rolled: Intervals) -> Proposal:
    return Proposal(
        title="Save checkpoints, and go on from them",
        cuts=(Cut(take=rolled),),
        confidence="low",
        why=f"{count(len(ledger.failures), 'failure')} lost {duration(length(rolled))} of "
        "training, and no save was seen; at most: what saves would cost is not measured",
        code=('checkpointer = headway.checkpoint.Checkpointer("checkpoints", state)',),
        see="docs/checkpoint.md#checkpointer",
    )


def _loop(ledger: Ledger) -> Loop | None:
    """None where nothing is known of what a save costs, or of what a failure does."""
    seconds = length(spent(ledger, LOOP)) / NS
    blocked = length(spent(ledger, (BLOCK,))) / NS
    if not seconds or not ledger.saves or not blocked:
        return None
    costs = [one.blocked + one.slower for one in ledger.saved if not one.error]
    cost = sum(costs) / len(costs) / NS if costs else blocked / ledger.saves
    failures = len(ledger.failures)
    ends = [save.durable - save.start for save in ledger.checkpoints if save.durable is not None]
    ends += [one.durable for one in ledger.saved if one.level == "disk" and not one.error]
    recover = ledger.time_to_recover
    return Loop(
        seconds=seconds,
        steps=ledger.steps,
        cost=cost,
        durable=max(ends, default=0) / NS,
        recover=sum(recover) / len(recover) / NS if recover else 0.0,
        rate=UNKNOWN.after(failures, seconds / 3600),
        failures=failures,
    )


def _confidence(loop: Loop, here: float, low: float, high: float) -> Confidence:
    """Whether the best interval wins wherever in its credible interval the rate lies."""
    if not loop.failures:
        return "low"
    sure = all(loop.expected(loop.best(rate).interval) < here for rate in (low, high))
    return "medium" if sure else "low"


def _why(loop: Loop, now: float, low: float, high: float) -> str:
    mtbf = 3600 / loop.rate.mean
    young, daly = interval.young(loop.cost, mtbf), interval.daly(loop.cost, mtbf)
    exact = interval.best(
        cost=loop.cost, mtbf=mtbf, durable=loop.durable, recover=loop.recover, exact=True
    )
    ends = sorted(loop.best(rate).interval for rate in (low, high))
    told = f"{count(loop.failures, 'failure')} in this run: {loop.rate.mean:.3g} an hour, between "
    told += f"{low:.3g} and {high:.3g} (95 %), for which {_s(ends[0])} to {_s(ends[1])} is best; "
    told += f"Young {_s(young)}, Daly {_s(daly)}, with {_s(loop.recover)} to recover "
    told += f"{_s(exact.interval)} and {100 * exact.wasted:.1f} % lost"
    return told + (f"; now every {_s(now)}" if now else "")


def _s(seconds: float) -> str:
    return duration(round(seconds * NS))
