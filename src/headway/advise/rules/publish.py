"""Rule for models that are published while the accelerators wait."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import time_in
from headway.format import duration
from headway.ledger.buckets import PUBLISH
from headway.ledger.segments import length, take_last


def propose_publish_off(evidence: Evidence) -> Iterator[Proposal]:
    """Move publishing to a separate job."""
    ledger = evidence.ledger
    during = time_in(ledger, (PUBLISH,))
    if not during or not ledger.steps:
        return
    measured = [
        length(time_in(run.ledger, (PUBLISH,)))
        for run in evidence.others
        if run.ledger.published_by
    ]
    remaining = min(measured, default=0)
    yield Proposal(
        title="Publish in a separate job",
        savings=(Saving(intervals=take_last(during, length(during) - remaining)),),
        confidence="high" if measured else "medium",
        why=f"the trainer held its accelerators for {duration(length(during))} of publishing; "
        + (
            f"another run of this job spent {duration(remaining)}"
            if measured
            else "the job hands over its last checkpoint; a recipe is required"
        ),
        flags=("--publish", "recipe.toml", "--publish-to", "snapshots"),
        see="docs/publish.md#by-headway-run",
    )
