"""Quotas from a file: `tenant,gpus` on each line."""

from __future__ import annotations

import csv
from pathlib import Path

from headway.errors import UsageError


def read(path: Path) -> dict[str, int]:
    """By tenant; a first line of names is left out."""
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if row]
        if rows and not rows[0][-1].strip().isdecimal():
            rows = rows[1:]
        return {name.strip(): int(gpus) for name, gpus in rows}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no list of quotas, `tenant,gpus` a line: {error}") from error
