"""Process groups that a job makes and needs, and collectives of its ranks before the first step."""

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


def process_groups(drafts: Sequence[AttemptRecord]) -> tuple[ProcessGroups, ...]:
    """By place; the costliest first."""
    rows = _merge_rows(drafts, "groups", GROUP, _groups, _add_attempts)
    return tuple(sorted(rows, key=lambda one: (-one.needless, -one.ns, one.where, one.desc)))


def pre_step_collectives(drafts: Sequence[AttemptRecord]) -> tuple[PreStepCollectives, ...]:
    """By place; the costliest first."""

    def plus(one: PreStepCollectives, other: PreStepCollectives) -> PreStepCollectives:
        return replace(
            other,
            ranks=max(one.ranks, other.ranks),
            times=max(one.times, other.times),
            ns=one.ns + other.ns,
            least=one.least + other.least,
            bytes=max(one.bytes, other.bytes),
        )

    rows = _merge_rows(drafts, "calls", CALL, _calls, plus)
    return tuple(sorted(rows, key=lambda one: (-one.ns, one.where, one.what)))


def _merge_rows(
    drafts: Sequence[AttemptRecord],
    kind: str,
    names: tuple[str, ...],
    of_attempt: Callable[[Key, list[Row]], T],
    plus: Callable[[T, T], T],
) -> Iterable[T]:
    """Rows of all ranks of an attempt are one; so are those of all attempts."""
    found: dict[Key, T] = {}
    for draft in drafts:
        by_place: dict[Key, list[Row]] = {}
        for row in _rows(draft, kind):
            by_place.setdefault(tuple(row.get(name) for name in names), []).append(row)
        for key, rows in by_place.items():
            one = of_attempt(key, rows)
            found[key] = plus(found[key], one) if key in found else one
    return found.values()


def _rows(draft: AttemptRecord, kind: str) -> Iterator[Row]:
    """What each rank told last."""
    for life in draft.lives:
        told = list(life.journal.named("communication"))
        rows = told[-1].get(kind) if told else None
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and isinstance(row.get("where"), str):
                yield {**_texts_and_counts(row), "settled": told[-1].get("at") == "exit"}


def _texts_and_counts(row: Row) -> Row:
    """Texts and counts only: a journal may hold anything."""
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
        again=_least(members, "again"),
        ns=_most(rows, "ns"),
        needless=min(map(_avoidable, members)),
        settled=all(row["settled"] for row in rows),
    )


def _avoidable(row: Row) -> int:
    """What is not used yet may still be, as long as the rank lives."""
    names = ("other_ns", "again_ns", *(("unused_ns",) if row["settled"] else ()))
    return sum(int(row.get(name, 0)) for name in names)


def _add_attempts(one: ProcessGroups, other: ProcessGroups) -> ProcessGroups:
    """The same place in two attempts."""
    return replace(
        other,
        ranks=max(one.ranks, other.ranks),
        calls=max(one.calls, other.calls),
        made=max(one.made, other.made),
        used=max(one.used, other.used),
        unused=min(one.unused, other.unused),
        again=max(one.again, other.again),
        ns=one.ns + other.ns,
        needless=one.needless + other.needless,
        settled=one.settled or other.settled,
    )


def _calls(key: Key, rows: list[Row]) -> PreStepCollectives:
    return PreStepCollectives(
        where=key[0],
        what=str(key[1] or ""),
        ranks=len(rows),
        times=_most(rows, "times"),
        ns=_most(rows, "ns"),
        least=_least(rows, "ns"),
        bytes=_most(rows, "bytes"),
    )


def _most(rows: Iterable[Row], name: str) -> int:
    return max(int(row.get(name, 0)) for row in rows)


def _least(rows: Iterable[Row], name: str) -> int:
    return min(int(row.get(name, 0)) for row in rows)


def is_installed_package(where: str) -> bool:
    """Whether a place is in an installed package: that is not the user's to change."""
    return "/site-packages/" in where or "/dist-packages/" in where
