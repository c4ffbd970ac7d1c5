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
    undeclared = [
        Saving(intervals=data, hidden_behind=model)
        for attempt in ledger.attempts
        if attempt.index not in graphs
        and (data := time_in(ledger, buckets_of(*DATA_STAGES), attempt.index))
        and (model := time_in(ledger, buckets_of(*MODEL_STAGES, "checkpoint_load"), attempt.index))
    ]
    if undeclared:
        gain = sum(saving.max_gain for saving in undeclared)
        yield Proposal(
            title="Make the data ready while the model is built",
            savings=tuple(undeclared),
            confidence="medium",
            why=f"in {count(len(undeclared), 'start')} both were waited for in turn, "
            f"{duration(gain)} too long; that neither needs the other, and a core is free "
            "for it, is not measured",
            code=(
                "stages = headway.startup.Stages()",
                "@stages.stage()  # and on each function that makes one thing ready",
                "ready = stages.run()",
            ),
            see="docs/start.md#stages",
        )
    declared = [
        saving for graph in graphs.values() if (saving := _declared_slack(ledger, graph)).intervals
    ]
    if declared:
        chain = " -> ".join(next(iter(graphs.values())).critical)
        yield Proposal(
            title="Let the declared stages overlap",
            savings=tuple(declared),
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
    return Saving(intervals=take_last(during, max(graph.took - graph.bound, 0)))


COMPILE_BUCKETS = buckets_of("pt2_compile")


def propose_fast_batch(evidence: Evidence) -> Iterator[Proposal]:
    """Data is waited for behind the compile; what was compiled ahead in vain is compiled once."""
    ledger = evidence.ledger
    starts = [
        Saving(intervals=data, hidden_behind=compiled)
        for attempt in ledger.attempts
        if any(compile_.attempt == attempt.index for compile_ in ledger.compiles)
        and (data := time_in(ledger, buckets_of(*DATA_STAGES), attempt.index))
        and (compiled := time_in(ledger, COMPILE_BUCKETS, attempt.index))
    ]
    if starts:
        gain = sum(saving.max_gain for saving in starts)
        yield Proposal(
            title="Compile on a fast batch while the data warms up",
            savings=tuple(starts),
            confidence="medium",
            why=f"in {count(len(starts), 'start')} {duration(gain)} of waiting for data lay beside "
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
        saving
        for attempt in ledger.attempts
        if (saving := _missed_precompile(ledger, attempt.index)).intervals
    ]
    if missed:
        yield Proposal(
            title="Make the fast batch like the real ones",
            savings=tuple(missed),
            confidence="high",
            why="the first real batch was compiled again; the report says what differed",
            code=(f"headway report {evidence.where}  # the cure is under Compiles",),
            see="docs/start.md#compile-ahead",
        )


def _missed_precompile(ledger: Ledger, attempt: int) -> Saving:
    """As long as the rank took that compiled most again."""
    compiling: dict[int, int] = {}
    for compile_ in ledger.compiles:
        if compile_.missed and compile_.attempt == attempt:
            compiling[compile_.rank] = compiling.get(compile_.rank, 0) + compile_.ns
    during = time_in(ledger, (*COMPILE_BUCKETS, "waste.recompile"), attempt)
    return Saving(intervals=take_last(during, max(compiling.values(), default=0)))
