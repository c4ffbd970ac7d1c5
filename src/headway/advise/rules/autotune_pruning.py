"""Configs of kernels that were tried and never won."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.intervals import last, length
from headway.advise.model import Cut, Evidence, Proposal
from headway.advise.replay import leaves_of, spent
from headway.ledger.model import NS
from headway.report.words import count

WHERE = (*leaves_of("pt2_compile"), "waste.recompile")


def proposals(evidence: Evidence) -> Iterator[Proposal]:
    """What tuning took, less what the kept configs will take, as `headway autotune` says."""
    tuning = evidence.tuning
    if tuning is None or tuning.spent <= tuning.left:
        return
    during = spent(evidence.ledger, WHERE)
    ns = min(round((tuning.spent - tuning.left) * NS), length(during))
    yield Proposal(
        title="Tune only the configs that were ever the best",
        cuts=(Cut(take=last(during, ns)),),
        confidence="medium",
        why=f"tuning {count(tuning.kernels, 'kernel')} took {tuning.spent:.2f} s in the busiest "
        f"process, and the kept configs will take {tuning.left:.2f} s",
        flags=("--autotune", evidence.where),
        code=(f"headway autotune {evidence.where}  # first: writes the file",),
        see="docs/autotune.md",
    )
