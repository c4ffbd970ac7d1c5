"""Inputs of a plan measured by a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.checkpoint.interval import UNKNOWN_RATE
from headway.ledger.buckets import DOWNTIME
from headway.ledger.checkpoints import NONE_SEEN, count_restartable
from headway.ledger.checkpoints import ledger_interval_inputs as observed
from headway.ledger.model import Ledger
from headway.plan.job import DAY
from headway.units import NS

HOURS = 24.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measured inputs: seconds, and failures per node and day with their credible interval.

    None means not observed. `start_s`, `recover_s` exclude compilation and the wait for machines.
    """

    source: str
    runs: int
    nodes: int | None
    failures: int  # after which a job is restarted
    node_hours: float
    failures_a_day: float | None  # None without observed failures: below `failures_high`
    failures_low: float | None
    failures_high: float | None
    block_s: float | None
    durable_s: float | None
    start_s: float | None
    recover_s: float | None
    requeue_s: float | None
    compile_s: float | None
    compile_again_s: float | None
    interval_s: float | None = None  # recommended by the run

    @property
    def mtbf_s(self) -> float | None:
        """Mean time between failures of one node; a lower bound if no failure was observed."""
        rate = self.failures_a_day or self.failures_high
        return DAY / rate if rate else None

    @property
    def is_bound(self) -> bool:
        """Whether no failure was observed, so that only an upper bound of the rate is known."""
        return self.failures_a_day is None and self.failures_high is not None

    @property
    def values(self) -> dict[str, float]:
        """Values by field of JobSpec.

        Without an observed interruption, a recovery is assumed to take as long as the start.
        """
        interrupted = self.recover_s is not None
        values = {
            "mtbf": self.mtbf_s,
            "block": self.block_s,
            "durable": self.durable_s,
            "start": self.start_s,
            "recover": self.recover_s if interrupted else self.start_s,
            "requeue": self.requeue_s,
            "compile": self.compile_s,
            "compile_again": self.compile_again_s if interrupted else self.compile_s,
        }
        return {name: value for name, value in values.items() if value is not None}


def measured_by_run(ledger: Ledger, source: str) -> Measured:
    nodes = _nodes(ledger)
    time_to_start, time_to_recover = ledger.time_to_start, mean(ledger.time_to_recover)
    recoveries = len(ledger.time_to_recover)
    compile_s = ledger.buckets.get("start.pt2_compile", 0) / NS
    compile_again = (
        ledger.buckets.get("recover.pt2_compile", 0) / NS / recoveries if recoveries else None
    )
    requeue = ledger.buckets.get(DOWNTIME, 0) / NS / recoveries if recoveries else None
    inputs = observed(ledger)
    best = ledger.recommended_interval
    measured = to_measured(
        source=source,
        runs=1,
        nodes=nodes,
        failures=count_restartable(ledger.failures),
        node_hours=nodes * ledger.wall / NS / 3600,
        block=inputs.cost if inputs else None,
        durable=inputs.slowest if inputs else None,
        time_to_start=None if time_to_start is None else time_to_start / NS,
        compile=None if time_to_start is None else compile_s,
        time_to_recover=None if time_to_recover is None else time_to_recover / NS,
        compile_again=compile_again,
        requeue=requeue,
    )
    return replace(measured, interval_s=None if best is None else best / NS)


def _nodes(ledger: Ledger) -> int:
    """The largest number of nodes of one attempt; a replaced node is not counted twice."""
    ranks = ledger.ranks
    hosts = [
        {rank.host_of[attempt.index] for rank in ranks if attempt.index in rank.host_of}
        for attempt in ledger.attempts
    ]
    return max(map(len, hosts), default=0) or len({h for rank in ranks for h in rank.hosts}) or 1


def to_measured(
    *,
    source: str,
    runs: int,
    nodes: int | None,
    failures: int,
    node_hours: float,
    block: float | None,
    durable: float | None,
    time_to_start: float | None,
    compile: float | None,
    time_to_recover: float | None,
    compile_again: float | None,
    requeue: float | None,
) -> Measured:
    """Add the credible interval of the failure rate, and subtract the parts from both times."""
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    if node_hours and failures:
        rate = UNKNOWN_RATE.after(failures, node_hours)
        mean, (low, high) = rate.mean, rate.credible()
    elif node_hours:
        low, high = 0.0, NONE_SEEN / node_hours
    return Measured(
        source=source,
        runs=runs,
        nodes=nodes,
        failures=failures,
        node_hours=node_hours,
        failures_a_day=None if mean is None else mean * HOURS,
        failures_low=low * HOURS if low is not None else None,
        failures_high=high * HOURS if high is not None else None,
        block_s=block,
        durable_s=durable,
        start_s=_subtract(time_to_start, compile),
        recover_s=_subtract(time_to_recover, compile_again, requeue),
        requeue_s=_within(requeue, time_to_recover),
        compile_s=_within(compile, time_to_start),
        compile_again_s=_within(compile_again, time_to_recover),
    )


def _subtract(whole: float | None, *parts: float | None) -> float | None:
    return None if whole is None else max(whole - sum(part or 0.0 for part in parts), 0.0)


def _within(part: float | None, whole: float | None) -> float | None:
    """Limit a part to its whole: compiles in evaluations or on other ranks may take longer."""
    return part if part is None or whole is None else min(part, whole)


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None without values."""
    return sum(values) / len(values) if values else None
