"""Data and model are made ready one after the other, although neither needs the other."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.intervals import intersect, take_last
from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import buckets_of, time_in
from headway.ledger.leaves import START_STAGES
from headway.ledger.model import Ledger, StageGraph
from headway.report.words import count, duration

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
