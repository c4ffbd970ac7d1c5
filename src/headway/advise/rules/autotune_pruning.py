"""Configs of kernels that were tried and never won."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.intervals import length, take_last
from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import buckets_of, time_in
from headway.ledger.model import NS
from headway.report.words import count

TUNING_BUCKETS = (*buckets_of("pt2_compile"), "waste.recompile")


def propose_autotune_pruning(evidence: Evidence) -> Iterator[Proposal]:
    """What tuning took, less what the kept configs will take, as `headway autotune` says."""
    tuning = evidence.tuning
    if tuning is None or tuning.spent <= tuning.left:
        return
    during = time_in(evidence.ledger, TUNING_BUCKETS)
    ns = min(round((tuning.spent - tuning.left) * NS), length(during))
    yield Proposal(
        title="Tune only the configs that were ever the best",
        cuts=(Saving(take=take_last(during, ns)),),
        confidence="medium",
        why=f"tuning {count(tuning.kernels, 'kernel')} took {tuning.spent:.2f} s in the busiest "
        f"process, and the kept configs will take {tuning.left:.2f} s",
        flags=("--autotune", evidence.where),
        code=(f"headway autotune {evidence.where}  # first: writes the file",),
        see="docs/autotune.md",
    )
