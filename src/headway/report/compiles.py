"""Texts on compiles: recompiles by cause, cache hits, and misses of compiles ahead of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headway.compile.recompiles.advice import Cause, advise
from headway.compile.recompiles.guards import parse
from headway.compile.recompiles.kinds import KINDS
from headway.compile.recompiles.record import Recompile, Record
from headway.format import count, duration, one_line
from headway.ledger.model import COMPILE_PARTS, Compile, Ledger

PART_MEANING: Final = {
    "import": "importing the compiler",
    "cache_load": "loading cached code",
    "dynamo": "tracing the Python code",
    "aot_autograd": "building the backward graph",
    "inductor": "generating kernels from the graphs",
    "triton": "compiling the Triton kernels",
    "cpp": "compiling the C++ kernels",
    "autotune": "trying kernel configs",
    "other": "not reported by torch",
}


@dataclass(frozen=True, slots=True)
class RecompileGroup:
    """The recompiles of one code location for one reason, over all ranks and attempts."""

    where: str
    reason: str
    times: int
    ns: int


def group_recompiles(ledger: Ledger) -> list[RecompileGroup]:
    """Group recompiles by code location and reason, the slowest first."""
    by_cause: dict[tuple[str, str], list[Compile]] = {}
    for c in ledger.compiles:
        if c.recompile:
            by_cause.setdefault((c.location, c.reason), []).append(c)
    rows = [
        RecompileGroup(where, reason, len(group), sum(c.ns for c in group))
        for (where, reason), group in by_cause.items()
    ]
    return sorted(rows, key=lambda row: -row.ns)


def compile_split(ledger: Ledger) -> list[tuple[str, int]]:
    """Return the parts of the time in the pt2_compile buckets."""
    parts = ledger.compile_parts
    return [(name, parts[name]) for name in COMPILE_PARTS if parts.get(name)]


def describe_torch_caches(ledger: Ledger) -> list[str]:
    """Describe hits in torch's caches over all ranks, and the rank with the most misses."""
    texts = []
    for name, title in (("aot", "AOTAutograd"), ("fx", "FX graphs")):
        counts = [(rank.rank, *getattr(rank, name)) for rank in ledger.rank_compiles]
        hits, misses = sum(c[1] for c in counts), sum(c[2] for c in counts)
        if hits or misses:
            worst = max(counts, key=lambda c: (c[2], -c[0]))
            uneven = misses and worst[2] * len(counts) > misses
            most = f", rank {worst[0]} missed {worst[2]:,}" if uneven else ""
            texts.append(f"{title}: {hits:,} of {hits + misses:,} hits{most}")
    return texts


def cache_bypasses(ledger: Ledger) -> list[tuple[str, int]]:
    """Return why caches were bypassed, and how often."""
    times_by_reason: dict[str, int] = {}
    for rank in ledger.rank_compiles:
        for reason, times in rank.bypassed.items():
            times_by_reason[reason] = times_by_reason.get(reason, 0) + times
    return sorted(times_by_reason.items(), key=lambda row: -row[1])


def limit_hits_by_place(ledger: Ledger) -> list[tuple[str, str, list[int]]]:
    """Return location, limit and ranks of code that torch no longer compiles."""
    ranks_by_place: dict[tuple[str, str], set[int]] = {}
    for hit in ledger.recompile_limit_hits:
        ranks_by_place.setdefault((hit.where, hit.limit), set()).add(hit.rank)
    return [(where, limit, sorted(ranks)) for (where, limit), ranks in ranks_by_place.items()]


def describe_cache_loads(ledger: Ledger) -> list[str]:
    """Describe hits in the shared compile cache; empty for a job without compiles."""
    texts = []
    for load in ledger.archives:
        if load.level == "miss" and not (load.compile or ledger.compiles or ledger.archives_saved):
            continue
        reason = f" ({load.why})" if load.why else ""
        if load.level == "miss":
            saved = "; saved for the next job" if ledger.archives_saved else ""
            texts.append(
                f"no entry for this job{reason}, compiled in {duration(load.compile)}{saved}"
            )
            continue
        took = f"{load.level}{reason}, {load.files:,} files loaded in {duration(load.load)}"
        cold = f" instead of {duration(load.compile_cold)}" if load.compile_cold else ""
        texts.append(f"{took}: compiled in {duration(load.compile)}{cold}")
    return texts


KINDS_OF_VALUES = ("size", "zero_one", "parameter")  # for these kinds, the values show the change


@dataclass(frozen=True, slots=True)
class PrecompileMiss:
    """One code location that was compiled ahead of time and again, and the difference."""

    text: str
    where: str
    cure: str


def precompile_misses(ledger: Ledger) -> list[PrecompileMiss]:
    """Return misses of compiles ahead of time, by attempt, the slowest first."""
    by_attempt: dict[int, list[Compile]] = {}
    for c in ledger.compiles:
        if c.missed_precompile:
            by_attempt.setdefault(c.attempt, []).append(c)
    return [
        _miss(cause, f"attempt {attempt}: " if len(ledger.attempts) > 1 else "")
        for attempt, compiles in by_attempt.items()
        for cause in recompile_causes(compiles)
    ]


def recompile_causes(compiles: Sequence[Compile]) -> Sequence[Cause]:
    """Return the causes of recompiles, as `headway recompiles` finds them."""
    recompiles = [
        Recompile(
            rank=c.rank,
            where=c.location,
            reasons=(c.reason,) if c.reason else (),
            caller=c.caller,
            guard_values=c.guard_values,
            step=0,
            ns=c.ns,
            rebuilt=not c.reason,
        )
        for c in compiles
    ]
    return advise(
        Record(
            torch=None, recompiles=tuple(recompiles), lattice={}, marked={}, graphs=0, ns=0, steps=0
        )
    ).causes


def _miss(cause: Cause, attempt: str) -> PrecompileMiss:
    took = f"{attempt}the first real batch recompiled, {duration(cause.ns)}"
    ranks = f" on {count(len(cause.ranks), 'rank')}" if len(cause.ranks) > 1 else ""
    return PrecompileMiss(
        f"{took}{ranks}: {'; '.join(_differences(cause))}", cause.where, _cure(cause)
    )


def _differences(cause: Cause) -> Iterator[str]:
    """Yield what differs between the fast batch and the real one."""
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
        yield f"guard: {one_line(cause.reason, 160)}"


def _cure(cause: Cause) -> str:
    """Return the fix, with the mark on the fast batch, which is compiled first."""
    return f"{cause.cure}; on the fast batch: {cause.code_line}" if cause.code_line else cause.cure
