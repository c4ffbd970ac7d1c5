"""Quotas from a file: `tenant,gpus` on each line, or `tenant,gpus,day` for one that changes."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.errors import UsageError

DAY = 86400.0


FORMAT = "write `tenant,gpus` or `tenant,gpus,day` on each line, with numbers of 0 or more"


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """A new quota of a tenant from a time of the trace on, in seconds."""

    at: float
    tenant: str
    gpus: int


def read_quotas(path: Path) -> dict[str, int]:
    """Initial quotas by tenant."""
    return {change.tenant: change.gpus for change in _lines(path) if not change.at}


def read_quota_changes(path: Path) -> tuple[QuotaChange, ...]:
    """Later changes, by time."""
    return tuple(
        sorted((change for change in _lines(path) if change.at), key=lambda change: change.at)
    )


def _lines(path: Path) -> list[QuotaChange]:
    """All lines except a header."""
    try:
        with path.open(newline="") as file:
            rows = [(number, row) for number, row in enumerate(csv.reader(file), 1) if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"{path} is not a list of quotas: {reason}", code="file-unreadable"
        ) from None
    if rows and [cell.strip().lower() for cell in rows[0][1][1:2]] == ["gpus"]:
        rows = rows[1:]
    changes = [_line(path, number, row) for number, row in rows]
    counts = Counter((change.tenant, change.at) for change in changes)
    duplicate = next((tenant for (tenant, _), count in counts.items() if count > 1), None)
    if duplicate:
        raise UsageError(
            f"{path} is not a valid list of quotas: "
            f"{duplicate!r} has two for the same day; {FORMAT}",
            code="quota-duplicate",
            tenant=duplicate,
        )
    if not changes:
        raise UsageError(f"{path} contains no quotas; {FORMAT}", code="quota-file-empty")
    return changes


def _line(path: Path, number: int, row: Sequence[str]) -> QuotaChange:
    try:
        tenant, gpus, day = (cell.strip() for cell in (*row, "0")[: max(len(row), 3)])
        change = QuotaChange(float(day) * DAY, tenant, int(gpus))
    except ValueError:
        change = QuotaChange(0.0, "", 0)
    if not change.tenant or change.gpus < 0 or not 0.0 <= change.at < float("inf"):
        text = ",".join(row)[:80]
        raise UsageError(
            f"{path} is not a valid list of quotas: line {number} is {text!r}; {FORMAT}",
            code="quota-line-invalid",
            line=number,
        )
    return change


def check_quotas(first: Mapping[str, int], later: tuple[QuotaChange, ...], gpus: int) -> None:
    """Raise UsageError if quotas exceed the accelerators at any time."""
    now, at = dict(first), 0.0
    for change in (*later, None):
        if (change is None or change.at > at) and sum(now.values()) > gpus:
            when = f" on day {at / DAY:g}" if at else ""
            raise UsageError(
                f"quotas sum to {sum(now.values())}{when}, "
                f"but there are {gpus} accelerators; lower them",
                code="quotas-too-large",
                day=at / DAY,
            )
        if change is not None:
            if change.tenant not in first or change.gpus < 0:
                raise UsageError(
                    f"on day {change.at / DAY:g} the quota of {change.tenant!r} becomes "
                    f"{change.gpus}; it must be 0 or more, for a tenant with a quota on day 0",
                    code="quota-change-invalid",
                    tenant=change.tenant,
                )
            now[change.tenant], at = change.gpus, change.at
