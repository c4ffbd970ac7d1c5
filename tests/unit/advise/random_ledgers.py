"""Random ledgers for property tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from headway.ledger.buckets import BUCKETS
from headway.ledger.model import (
    Attempt,
    Checkpoint,
    CheckpointOutcome,
    Compile,
    Failure,
    Ledger,
    PreStepCollectives,
    ProcessGroups,
    StageGraph,
    StageRow,
)
from headway.taxonomy import OWNERS
from headway.units import NS
from tests.unit.report.ledgers import Line, ledger_of, rank_of

REASON = "tensor 'x' size mismatch at index 0. expected 4, actual 8"
short = st.integers(1, 90 * NS)


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    """Up to four attempts with any buckets, and some of everything that rules read."""
    line, ends = Line(), []
    for _ in range(draw(st.integers(1, 4))):
        for leaf in draw(st.lists(st.sampled_from(BUCKETS), min_size=1, max_size=12)):
            line.add(leaf, draw(short) / NS)
        ends.append(line.now)
    size = draw(st.integers(1, 4))
    attempts = tuple(
        Attempt(
            index=index,
            start=ends[index - 1] if index else 0,
            end=end,
            outcome=draw(st.sampled_from(["completed", "failed", "preempted"])),
            ranks=tuple(range(size)),
        )
        for index, end in enumerate(ends)
    )
    ledger = ledger_of(line, steps=draw(st.integers(0, 500)), attempts=attempts)
    host_of = dict.fromkeys(range(len(ends)), "node-0")
    ranks = tuple(
        replace(rank_of(rank, line, 9, host=f"node-{rank % 2}"), host_of=host_of)
        for rank in range(size)
    )
    return replace(ledger, ranks=ranks, **_beside(draw, attempts, line.now))


def _beside(draw: st.DrawFn, attempts: tuple[Attempt, ...], wall: int) -> dict[str, Any]:
    index = st.sampled_from(range(len(attempts)))
    times = st.integers(0, wall)

    def some(make: Any) -> tuple[Any, ...]:
        return tuple(make() for _ in range(draw(st.integers(0, 3))))

    def failure() -> Failure:
        category = draw(st.sampled_from(sorted(OWNERS)))
        owner, retry = OWNERS[category]
        return Failure(
            attempt=draw(index), at=draw(times), category=category, owner=owner, retry=retry,
            root_rank=0, evidence="", decision=draw(st.sampled_from([None, "restart: yes"])),
        )  # fmt: skip

    def compiled() -> Compile:
        start = draw(times)
        return Compile(
            attempt=draw(index), rank=draw(st.integers(0, 1)), start=start,
            end=start + draw(short), location="train.py:7 forward", reason=REASON,
            recompile=draw(st.booleans()), cached=draw(st.booleans()),
            missed_precompile=draw(st.booleans()),
        )  # fmt: skip

    def save() -> Checkpoint:
        start = draw(times)
        return Checkpoint(
            attempt=draw(index), rank=0, start=start, end=start + draw(short),
            step=draw(st.integers(0, 99)), path="a",
        )  # fmt: skip

    def saved() -> CheckpointOutcome:
        return CheckpointOutcome(
            attempt=draw(index), step=1, at=draw(times), level="disk", blocked=draw(short),
            step_slowdown=draw(short), durable=draw(short), size=1,
        )  # fmt: skip

    def groups() -> ProcessGroups:
        return ProcessGroups(
            where="a.py:1", what="new_group", desc="", backend="gloo", size=2, ranks=2, calls=3,
            made=1, used=1, unused=0, duplicate=0, ns=draw(short), avoidable=draw(short),
            complete=draw(st.booleans()),
        )  # fmt: skip

    def calls() -> PreStepCollectives:
        return PreStepCollectives(
            where="a.py:2", what="all_gather_object", ranks=2, times=draw(st.integers(1, 9)),
            ns=draw(short), min_time=draw(short), bytes=1,
        )  # fmt: skip

    def stages() -> StageGraph:
        start = draw(times)
        row = StageRow(name="a", where="main", needs=(), start=start, end=start + draw(short))
        bound = draw(st.integers(0, row.end - row.start))
        return StageGraph(attempt=draw(index), rank=0, rows=(row,), critical=("a",), bound=bound)

    saves = some(save)
    parts = st.dictionaries(st.sampled_from(["import", "dynamo", "inductor"]), short)
    return {
        "failures": some(failure),
        "compiles": some(compiled),
        "checkpoints": saves,
        "saves": len(saves),
        "save_interval": draw(st.none() | short),
        "outcomes": some(saved),
        "process_groups": some(groups),
        "pre_step_collectives": some(calls),
        "stages": some(stages),
        "compile_parts": draw(parts),
        "time_to_recover": tuple(draw(st.lists(short, max_size=3))),
    }
