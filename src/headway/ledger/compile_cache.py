"""What the shared compile cache provided to each attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headway.ledger.model import CompileCacheLoad
from headway.ledger.record import AttemptRecord, RankRecord
from headway.units import NS

COMPILING = ("compile", "compile_cache", "compile_turn")


def compile_cache_loads(drafts: Sequence[AttemptRecord]) -> tuple[CompileCacheLoad, ...]:
    """Each archive that was asked for, by attempt and node."""
    return tuple(
        _load(index, draft, event)
        for index, draft in enumerate(drafts)
        for event in _events(draft, "load")
    )


def count_archives_saved(drafts: Sequence[AttemptRecord]) -> int:
    """How often something was saved for later jobs."""
    return sum(1 for draft in drafts for _ in _events(draft, "save"))


def _load(index: int, draft: AttemptRecord, event: dict[str, Any]) -> CompileCacheLoad:
    return CompileCacheLoad(
        attempt=index,
        level=str(event.get("level") or "miss"),
        why=str(event.get("why") or ""),
        files=_number(event.get("files")),
        bytes=_number(event.get("bytes")),
        load=max(_number(event.get("end")) - event["t"], 0),
        cold=int(_seconds(event.get("cold_s")) * NS),
        here=max((_compiling(life) for life in draft.lives), default=0),
    )


def _events(draft: AttemptRecord, what: str) -> Iterator[dict[str, Any]]:
    for journal in draft.launch.journals:
        for event in journal.named("cache"):
            if event.get("what") == what:
                yield event


def _compiling(life: RankRecord) -> int:
    """What a rank spent on compiles before its first step, without imports."""
    end = life.first_step_end
    spans = [s for s in life.journal.spans if s.name in COMPILING and s.end is not None]
    return sum(
        (span.end or span.start) - span.start
        for span in spans
        if end is None or span.start + life.shift < end
    )


def _number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _seconds(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 <= value < 1e7 else 0.0
