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
COMPILE_BUCKETS = buckets_of("pt2_compile")


def propose_stage_overlap(evidence: Evidence) -> Iterator[Proposal]:
    """Hide the shorter chain behind the longer one; cut declared stages to the critical path."""
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
            title="Prepare the data while the model is built",
            savings=tuple(undeclared),
            confidence="medium",
            why=f"in {count(len(undeclared), 'start')} both ran one after the other, which took "
            f"{duration(gain)} longer; assumes that they are independent and a CPU core is free",
            code=(
                "stages = headway.startup.Stages()",
                "@stages.stage()  # on each function that prepares something",
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
            why=f"by the times of the stages the critical path is {chain}; assumes that stages do "
            "not slow each other down when they overlap",
            code=("ready = stages.run()  # with overlap, and fewer stages where='main'",),
            see="docs/start.md#stages",
        )


def _declared_slack(ledger: Ledger, graph: StageGraph) -> Saving:
    """The time of a declared start beyond its critical path."""
    window = ((min(row.start for row in graph.rows), graph.end),)
    during = intersect(time_in(ledger, buckets_of(*START_STAGES), graph.attempt), window)
    return Saving(intervals=take_last(during, max(graph.took - graph.bound, 0)))


def propose_fast_batch(evidence: Evidence) -> Iterator[Proposal]:
    """Hide waiting for data behind compilation; do not compile twice."""
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
            title="Compile with a fast batch while the first data loads",
            savings=tuple(starts),
            confidence="medium",
            why=f"in {count(len(starts), 'start')} a compile could have run during "
            f"{duration(gain)} of waiting for data; assumes that a CPU core is free",
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
            title="Make the fast batch match the real ones",
            savings=tuple(missed),
            confidence="high",
            why="the first real batch was compiled again; the report shows the difference",
            code=(f"headway report {evidence.where}  # see the fix under Compiles",),
            see="docs/start.md#compile-ahead",
        )


def _missed_precompile(ledger: Ledger, attempt: int) -> Saving:
    """Compile time of missed precompiles on the rank with the most of it."""
    compiling: dict[int, int] = {}
    for compile_ in ledger.compiles:
        if compile_.missed_precompile and compile_.attempt == attempt:
            compiling[compile_.rank] = compiling.get(compile_.rank, 0) + compile_.ns
    during = time_in(ledger, (*COMPILE_BUCKETS, "waste.recompile"), attempt)
    return Saving(intervals=take_last(during, max(compiling.values(), default=0)))
