"""Files that ranks have written, gathered to the saves that they are parts of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from headway.ledger.model import Checkpoint
from headway.ledger.timeline import union_sorted


@dataclass(frozen=True, slots=True)
class Save:
    """One save, over all ranks that wrote a part of it; times in ns."""

    attempt: int
    step: int
    at: int
    blocked: int  # by all files of a rank together, on the rank where that was most
    written: int | None  # until it was durable, where a background write was seen
    path: str | None


def merge_files(checkpoints: Iterable[Checkpoint]) -> list[Save]:
    """In time order; files of the same step in one attempt are one save."""
    parts: dict[tuple[int, int], list[Checkpoint]] = {}
    for part in sorted(checkpoints, key=lambda part: (part.start, part.rank)):
        parts.setdefault((part.attempt, part.step), []).append(part)
    return [_merge_parts(key, found) for key, found in parts.items()]


def _merge_parts(key: tuple[int, int], parts: list[Checkpoint]) -> Save:
    files: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by rank
    for part in parts:
        files[part.rank].append((part.start, part.end))
    # One after the other or, of several threads, side by side.
    blocked = [
        sum(end - start for start, end in union_sorted(sorted(spans))) for spans in files.values()
    ]
    begin = parts[0].start
    written = None
    if any(part.durable is not None for part in parts) and not any(p.unwritten for p in parts):
        written = max(p.end if p.durable is None else p.durable for p in parts) - begin
    path = next((part.path for part in parts if part.path), None)
    return Save(*key, begin, max(blocked), written, path)
