"""The compiler waits for the first batch, although it needs only its form."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.intervals import take_last
from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import buckets_of, time_in
from headway.advise.rules.stage_overlap import DATA_STAGES
from headway.ledger.model import Ledger
from headway.report.words import count, duration

COMPILE_BUCKETS = buckets_of("pt2_compile")


def propose_fast_batch(evidence: Evidence) -> Iterator[Proposal]:
    """Data is waited for behind the compile; what was compiled ahead in vain is compiled once."""
    ledger = evidence.ledger
    starts = [
        Saving(take=data, behind=compiled)
        for attempt in ledger.attempts
        if any(one.attempt == attempt.index for one in ledger.compiles)
        and (data := time_in(ledger, buckets_of(*DATA_STAGES), attempt.index))
        and (compiled := time_in(ledger, COMPILE_BUCKETS, attempt.index))
    ]
    if starts:
        won = sum(cut.most for cut in starts)
        yield Proposal(
            title="Compile on a fast batch while the data warms up",
            cuts=tuple(starts),
            confidence="medium",
            why=f"in {count(len(starts), 'start')} {duration(won)} of waiting for data lay beside "
            "a compile that could have run meanwhile; that a core is free for it is not measured",
            code=(
                "ahead = headway.startup.CompileAhead("
                "step, modules=[model], optimizers=[optimizer])",
                'ahead.start(headway.startup.fast_batch(recorded="batch.json"))',
                "batch = next(batches); ahead.wait(); step(batch)",
            ),
            see="docs/start.md#compile-ahead",
        )
    missed = [
        cut
        for attempt in ledger.attempts
        if (cut := _missed_precompile(ledger, attempt.index)).take
    ]
    if missed:
        yield Proposal(
            title="Make the fast batch like the real ones",
            cuts=tuple(missed),
            confidence="high",
            why="the first real batch was compiled again; the report says what differed",
            code=(f"headway report {evidence.where}  # the cure is under Compiles",),
            see="docs/start.md#compile-ahead",
        )


def _missed_precompile(ledger: Ledger, attempt: int) -> Saving:
    """As long as the rank took that compiled most again."""
    took: dict[int, int] = {}
    for one in ledger.compiles:
        if one.missed and one.attempt == attempt:
            took[one.rank] = took.get(one.rank, 0) + one.ns
    during = time_in(ledger, (*COMPILE_BUCKETS, "waste.recompile"), attempt)
    return Saving(take=take_last(during, max(took.values(), default=0)))
