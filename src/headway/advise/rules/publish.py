"""Rule for models that are published while the accelerators wait."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import time_in
from headway.format import duration
from headway.ledger.buckets import PUBLISH
from headway.ledger.segments import length, take_last


def propose_publish_off(evidence: Evidence) -> Iterator[Proposal]:
    """All of it moves to a job of its own."""
    ledger = evidence.ledger
    during = time_in(ledger, (PUBLISH,))
    if not during or not ledger.steps:
        return
    measured = [
        length(time_in(run.ledger, (PUBLISH,))) for run in evidence.others if run.ledger.publish
    ]
    remaining = min(measured, default=0)
    yield Proposal(
        title="Publish by a job of its own",
        savings=(Saving(intervals=take_last(during, length(during) - remaining)),),
        confidence="high" if measured else "medium",
        why=f"the trainer held its accelerators for {duration(length(during))} of it; "
        + (
            f"in another run of this job {duration(remaining)} was left"
            if measured
            else "the job hands over its last checkpoint; that needs a recipe"
        ),
        flags=("--publish", "recipe.toml", "--publish-to", "snapshots"),
        see="docs/publish.md#by-headway-run",
    )
