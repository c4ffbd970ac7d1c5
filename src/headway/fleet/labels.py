"""Labels: what a run belongs to, as `team=ads,model=dlrm`."""

from __future__ import annotations

from headway.errors import UsageError


def parse_labels(text: str | None) -> dict[str, str]:
    """`team=ads,model=dlrm` as a mapping; UsageError for anything else."""
    found = {}
    for part in (text or "").split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            continue
        if not equals or not name.isidentifier() or not value:
            raise UsageError(
                f"the label {part!r} is not NAME=VALUE, such as team=ads", code="label-invalid"
            )
        found[name] = value
    return found
