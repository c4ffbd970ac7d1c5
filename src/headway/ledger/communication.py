"""Process groups that a job creates and uses, and its collectives before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from headway.ledger.model import PreStepCollectives, ProcessGroups
from headway.ledger.record import AttemptRecord

Row = dict[str, Any]
Key = tuple[Any, ...]
T = TypeVar("T")
GROUP = ("where", "what", "desc", "backend", "size")
CALL = ("where", "what")
TEXTS = ("where", "what", "desc", "backend")


def process_groups(attempts: Sequence[AttemptRecord]) -> tuple[ProcessGroups, ...]:
    """Return the process groups by code location, the most expensive first."""
    rows = _merge_rows(attempts, "groups", GROUP, _groups, _add_attempts)
    return tuple(sorted(rows, key=lambda row: (-row.avoidable, -row.ns, row.where, row.desc)))


def pre_step_collectives(attempts: Sequence[AttemptRecord]) -> tuple[PreStepCollectives, ...]:
    """Return the collectives by code location, the most expensive first."""

    def plus(first: PreStepCollectives, second: PreStepCollectives) -> PreStepCollectives:
        return replace(
            second,
            ranks=max(first.ranks, second.ranks),
            times=max(first.times, second.times),
            ns=first.ns + second.ns,
            min_time=first.min_time + second.min_time,
            bytes=max(first.bytes, second.bytes),
        )

    rows = _merge_rows(attempts, "calls", CALL, _calls, plus)
    return tuple(sorted(rows, key=lambda row: (-row.ns, row.where, row.what)))


def _merge_rows(
    attempts: Sequence[AttemptRecord],
    kind: str,
    names: tuple[str, ...],
    of_attempt: Callable[[Key, list[Row]], T],
    plus: Callable[[T, T], T],
) -> Iterable[T]:
    """Merge the rows of all ranks of an attempt, then those of all attempts."""
    merged: dict[Key, T] = {}
    for attempt in attempts:
        by_place: dict[Key, list[Row]] = {}
        for row in _rows(attempt, kind):
            by_place.setdefault(tuple(row.get(name) for name in names), []).append(row)
        for key, rows in by_place.items():
            result = of_attempt(key, rows)
            merged[key] = plus(merged[key], result) if key in merged else result
    return merged.values()


def _rows(attempt: AttemptRecord, kind: str) -> Iterator[Row]:
    """Yield the rows of each rank's last event."""
    for rank in attempt.ranks:
        events = list(rank.journal.named("communication"))
        rows = events[-1].get(kind) if events else None
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and isinstance(row.get("where"), str):
                yield {**_texts_and_counts(row), "settled": events[-1].get("at") == "exit"}


def _texts_and_counts(row: Row) -> Row:
    """Keep only texts and counts, because a journal may contain any value."""
    return {
        str(name): value
        for name, value in row.items()
        if (isinstance(value, str) if name in TEXTS else _counts(value))
    }


def _counts(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _groups(key: Key, rows: list[Row]) -> ProcessGroups:
    where, what, desc, backend, size = key
    members = [row for row in rows if row.get("made")] or rows
    return ProcessGroups(
        where=where,
        what=str(what or ""),
        desc=str(desc or ""),
        backend=str(backend or ""),
        size=size or 0,
        ranks=len(rows),
        calls=_most(rows, "calls"),
        made=_most(rows, "made"),
        used=_most(rows, "used"),
        unused=_least(members, "unused"),
        duplicate=_least(members, "again"),
        ns=_most(rows, "ns"),
        avoidable=min(map(_avoidable, members)),
        complete=all(row["settled"] for row in rows),
    )


def _avoidable(row: Row) -> int:
    """Return the avoidable time; an unused group counts only after the rank's exit."""
    names = ("other_ns", "again_ns", *(("unused_ns",) if row["settled"] else ()))
    return sum(int(row.get(name, 0)) for name in names)


def _add_attempts(first: ProcessGroups, second: ProcessGroups) -> ProcessGroups:
    """Merge the rows of the same code location in two attempts."""
    return replace(
        second,
        ranks=max(first.ranks, second.ranks),
        calls=max(first.calls, second.calls),
        made=max(first.made, second.made),
        used=max(first.used, second.used),
        unused=min(first.unused, second.unused),
        duplicate=max(first.duplicate, second.duplicate),
        ns=first.ns + second.ns,
        avoidable=first.avoidable + second.avoidable,
        complete=first.complete or second.complete,
    )


def _calls(key: Key, rows: list[Row]) -> PreStepCollectives:
    return PreStepCollectives(
        where=key[0],
        what=str(key[1] or ""),
        ranks=len(rows),
        times=_most(rows, "times"),
        ns=_most(rows, "ns"),
        min_time=_least(rows, "ns"),
        bytes=_most(rows, "bytes"),
    )


def _most(rows: Iterable[Row], name: str) -> int:
    return max(int(row.get(name, 0)) for row in rows)


def _least(rows: Iterable[Row], name: str) -> int:
    return min(int(row.get(name, 0)) for row in rows)


def is_installed_package(where: str) -> bool:
    """Whether a code location is in an installed package, which users cannot change."""
    return "/site-packages/" in where or "/dist-packages/" in where
