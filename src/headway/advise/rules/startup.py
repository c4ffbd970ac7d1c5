"""Rules for the start of a run: stage overlap and fast batch."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import buckets_of, time_in
from headway.format import count, duration
from headway.ledger.model import Ledger, StageGraph
from headway.ledger.segments import intersect, take_last
from headway.taxonomy import START_STAGES

DATA_STAGES = ("preproc_creation", "get_first_batch_data")
MODEL_STAGES = ("device_init", "process_group_init", "train_module_creation", "init_plugins")


def propose_stage_overlap(evidence: Evidence) -> Iterator[Proposal]:
    """The shorter chain goes behind the longer one, and declared stages down to their least."""
    ledger = evidence.ledger
    graphs = {graph.attempt: graph for graph in ledger.stages}
    plain = [
        Saving(take=data, behind=model)
        for attempt in ledger.attempts
        if attempt.index not in graphs
        and (data := time_in(ledger, buckets_of(*DATA_STAGES), attempt.index))
        and (model := time_in(ledger, buckets_of(*MODEL_STAGES, "checkpoint_load"), attempt.index))
    ]
    if plain:
        won = sum(cut.most for cut in plain)
        yield Proposal(
            title="Make the data ready while the model is built",
            cuts=tuple(plain),
            confidence="medium",
            why=f"in {count(len(plain), 'start')} both were waited for in turn, {duration(won)} "
            "too long; that neither needs the other, and a core is free for it, is not measured",
            code=(
                "stages = headway.startup.Stages()",
                "@stages.stage()  # and on each function that makes one thing ready",
                "ready = stages.run()",
            ),
            see="docs/start.md#stages",
        )
    declared = [cut for graph in graphs.values() if (cut := _declared_slack(ledger, graph)).take]
    if declared:
        chain = " -> ".join(next(iter(graphs.values())).critical)
        yield Proposal(
            title="Let the declared stages overlap",
            cuts=tuple(declared),
            confidence="medium",
            why=f"by their own times no order is shorter than the chain {chain}; what they slow "
            "each other down by when they overlap is not measured",
            code=("ready = stages.run()  # with overlap, and fewer stages where='main'",),
            see="docs/start.md#stages",
        )


def _declared_slack(ledger: Ledger, graph: StageGraph) -> Saving:
    """What a declared start took beyond the least that it can take."""
    window = ((min(row.start for row in graph.rows), graph.end),)
    during = intersect(time_in(ledger, buckets_of(*START_STAGES), graph.attempt), window)
    return Saving(take=take_last(during, max(graph.took - graph.bound, 0)))


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
