"""What was compiled ahead on a fast batch, and again by the first real one: why, and the cure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headway.compile.recompiles.advice import Cause, advise
from headway.compile.recompiles.guards import parse
from headway.compile.recompiles.kinds import KINDS
from headway.compile.recompiles.record import Recompile, Record
from headway.ledger.model import Compile, Ledger
from headway.report.words import count, duration, one_line

KINDS_OF_VALUES = ("size", "zero_one", "parameter")  # the values say what has changed


@dataclass(frozen=True, slots=True)
class PrecompileMiss:
    """One place that was compiled again for one thing that differs."""

    said: str
    where: str
    cure: str


def precompile_misses(ledger: Ledger) -> list[PrecompileMiss]:
    """By attempt, the costliest first; none where the real batches hit."""
    found: dict[int, list[Compile]] = {}
    for one in ledger.compiles:
        if one.missed:
            found.setdefault(one.attempt, []).append(one)
    return [
        _miss(cause, f"attempt {attempt}: " if len(ledger.attempts) > 1 else "")
        for attempt, compiles in found.items()
        for cause in recompile_causes(compiles)
    ]


def recompile_causes(compiles: Sequence[Compile]) -> Sequence[Cause]:
    """Of recompiles, as `headway recompiles` finds them."""
    again = [
        Recompile(
            rank=one.rank,
            where=one.where,
            reasons=(one.reason,) if one.reason else (),
            caller=one.caller,
            seen=one.seen,
            step=0,
            ns=one.ns,
            rebuilt=not one.reason,
        )
        for one in compiles
    ]
    return advise(
        Record(torch=None, recompiles=tuple(again), lattice={}, marked={}, graphs=0, ns=0, steps=0)
    ).causes


def _miss(cause: Cause, attempt: str) -> PrecompileMiss:
    took = f"{attempt}the first real batch compiled again, {duration(cause.ns)}"
    ranks = f" on {count(len(cause.ranks), 'rank')}" if len(cause.ranks) > 1 else ""
    return PrecompileMiss(
        f"{took}{ranks}: {'; '.join(_differences(cause))}", cause.where, _cure(cause)
    )


def _differences(cause: Cause) -> Iterator[str]:
    """What it was on the fast batch, and what it is."""
    what = one_line(cause.source, 100)
    if cause.dim is not None:
        what += f".{'stride' if cause.kind == 'stride' else 'size'}()[{cause.dim}]"
    if cause.kind not in KINDS_OF_VALUES:
        yield KINDS[cause.kind].title
    was = parse(cause.reason).expected
    now = " or ".join(one_line(value, 40) for value in cause.values if value != was)
    if was and now:
        yield f"{what} was {one_line(was, 40)} on the fast batch and is {now}"
    elif now:
        yield f"{what} is {now}"
    elif cause.reason:
        yield f"the guard: {one_line(cause.reason, 160)}"


def _cure(cause: Cause) -> str:
    """A mark counts on what is compiled first."""
    return f"{cause.cure}; on the fast batch: {cause.mark}" if cause.mark else cause.cure
