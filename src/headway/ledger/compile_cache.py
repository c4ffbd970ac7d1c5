"""What the shared compile cache provided to each attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headway.ledger.model import CompileCacheLoad
from headway.ledger.record import AttemptRecord, RankRecord
from headway.units import NS

COMPILING = ("compile", "compile_cache", "compile_turn")


def compile_cache_loads(attempts: Sequence[AttemptRecord]) -> tuple[CompileCacheLoad, ...]:
    """Return each request for an archive, by attempt and node."""
    return tuple(
        _load(index, attempt, event)
        for index, attempt in enumerate(attempts)
        for event in _events(attempt, "load")
    )


def count_archives_saved(attempts: Sequence[AttemptRecord]) -> int:
    """Count the archives that were saved for later jobs."""
    return sum(1 for attempt in attempts for _ in _events(attempt, "save"))


def _load(index: int, attempt: AttemptRecord, event: dict[str, Any]) -> CompileCacheLoad:
    return CompileCacheLoad(
        attempt=index,
        level=str(event.get("level") or "miss"),
        why=str(event.get("why") or ""),
        files=_number(event.get("files")),
        bytes=_number(event.get("bytes")),
        load=max(_number(event.get("end")) - event["t"], 0),
        compile_cold=int(_seconds(event.get("cold_s")) * NS),
        compile=max((_compiling(rank) for rank in attempt.ranks), default=0),
    )


def _events(attempt: AttemptRecord, what: str) -> Iterator[dict[str, Any]]:
    for journal in attempt.launch.journals:
        for event in journal.named("cache"):
            if event.get("what") == what:
                yield event


def _compiling(rank: RankRecord) -> int:
    """Return the time that a rank compiled before its first step, without imports."""
    end = rank.first_step_end
    spans = [s for s in rank.journal.spans if s.name in COMPILING and s.end is not None]
    return sum(
        (span.end or span.start) - span.start
        for span in spans
        if end is None or span.start + rank.shift < end
    )


def _number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _seconds(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 <= value < 1e7 else 0.0
