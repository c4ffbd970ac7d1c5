"""Collect a run's compiles and recompiles from its journals, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.journal.reader import Journal, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompile:
    """A compile that was avoidable, or one that torch refused because of a limit."""

    rank: int
    where: str
    reasons: tuple[str, ...]  # one per version of the frame, most recently used first
    caller: str = ""
    guard_values: Mapping[str, Any] = field(
        default_factory=dict
    )  # values, by the name in the guard
    step: int | None = None
    ns: int = 0
    rebuilt: bool = False  # compiled before, but no version is left to compare with
    limit: str = ""  # torch reached it and no longer compiles the frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Everything about the compiles of a run."""

    torch: str | None
    recompiles: tuple[Recompile, ...]
    lattice: Mapping[str, tuple[Any, ...]]  # source -> the shapes that torch recorded
    marked: Mapping[str, str]  # torch's setting -> sources marked by it
    graphs: int  # on the rank that compiled most
    ns: int  # on the rank that spent most time compiling
    steps: int


def collect(journals: Iterable[Journal]) -> Record:
    """Collect from the journals of all processes and attempts, in any order."""
    processes = sorted(
        (journal for journal in journals if journal.role != "launcher" and not journal.helper),
        key=lambda journal: (journal.rank or 0, journal.begin, journal.name),
    )
    recompiles: list[Recompile] = []
    lattice: dict[str, list[Any]] = {}
    marked: dict[str, str] = {}
    graphs: dict[int, int] = {}
    spent: dict[int, int] = {}
    torch: str | None = None
    for journal in processes:
        rank = journal.rank or 0
        compiles = [span for span in journal.spans if span.name == "compile"]
        recompiles += _recompiles(journal, rank, compiles)
        recompiles += [_limit_reached(event, rank) for event in journal.named("recompile_limit")]
        graphs[rank] = graphs.get(rank, 0) + sum(map(_made_a_graph, compiles))
        spent[rank] = spent.get(rank, 0) + sum(map(_length, compiles))
        for fields in [*(s.fields for s in compiles), *journal.named("recompile_limit")]:
            torch = _text(fields.get("torch")) or torch
            for name, entries in _mapping(fields.get("marked")).items():
                marked[name] = _text(entries)
            for source, shape in _pairs(fields.get("lattice")):
                shapes = lattice.setdefault(source, [])
                if shape not in shapes:
                    shapes.append(shape)
        torch = torch or _text(journal.facts.get("torch")) or None
    return Record(
        torch=torch,
        recompiles=tuple(recompiles),
        lattice={source: tuple(shapes) for source, shapes in lattice.items()},
        marked=marked,
        graphs=max(graphs.values(), default=0),
        ns=max(spent.values(), default=0),
        steps=max((_steps(journal) for journal in processes), default=0),
    )


def _recompiles(journal: Journal, rank: int, compiles: Sequence[Span]) -> list[Recompile]:
    """Compiles with a reason or after the start; the backward time is added to the forward."""
    backward: dict[str, int] = {}
    for span in compiles:
        if span.fields.get("trigger") == "LAZY_BACKWARD":
            name = str(span.fields.get("compile_id"))
            backward[name] = backward.get(name, 0) + _length(span)
    recompiles = []
    places_seen: set[str] = set()
    for span in compiles:
        fields = span.fields
        if fields.get("trigger") == "LAZY_BACKWARD":
            continue
        where = _text(fields.get("where"))
        first = where not in places_seen
        places_seen.add(where)
        step = _step(journal, span)
        reason = _text(fields.get("reason"))
        if not where or not (reason or step or not first):
            continue
        recompiles.append(
            Recompile(
                rank=rank,
                where=where,
                reasons=_reasons(fields),
                caller=_text(fields.get("caller")),
                guard_values=_mapping(fields.get("seen")),
                step=step,
                ns=_length(span) + backward.get(str(fields.get("compile_id")), 0),
                rebuilt=not reason and not first,
            )
        )
    return recompiles


def _limit_reached(event: Mapping[str, Any], rank: int) -> Recompile:
    step = event.get("step")
    return Recompile(
        rank=rank,
        where=_text(event.get("where")) or "?",
        reasons=_reasons(event),
        caller=_text(event.get("caller")),
        guard_values=_mapping(event.get("seen")),
        step=step if type(step) is int else None,
        limit=_text(event.get("limit")) or "recompile_limit",
    )


def _reasons(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The first reason in full, as torch gave it; the others possibly truncated."""
    first = _text(fields.get("reason"))
    listed = fields.get("reasons")
    others = [text for text in listed if isinstance(text, str)] if isinstance(listed, list) else []
    return (first, *others[1:]) if first else tuple(others)


def _step(journal: Journal, span: Span) -> int:
    """Steps completed at its start; estimated from the clock if the journal has no count."""
    step = span.fields.get("step")
    if type(step) is int:
        return step
    return max((window.last for window in journal.windows if window.end <= span.start), default=0)


def _steps(journal: Journal) -> int:
    return journal.windows[-1].last if journal.windows else 0


def _length(span: Span) -> int:
    return 0 if span.end is None else span.end - span.start


def _made_a_graph(span: Span) -> bool:
    """Whether dynamo opened and closed the span without failure; users may use the same name."""
    forward = span.fields.get("trigger") == "DYNAMO"
    return forward and span.end is not None and not span.fields.get("failed")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _pairs(value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, list):
        return []
    return [
        (pair[0], pair[1])
        for pair in value
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
    ]
