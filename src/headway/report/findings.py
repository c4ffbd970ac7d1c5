"""What is worth saying about a ledger, before any output decides how to say it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headway.ledger.leaves import BUCKETS, EFFECTIVE, UNKNOWN, group
from headway.ledger.model import (
    COMPILE_PARTS,
    Attempt,
    Compile,
    Failure,
    Fault,
    Ledger,
    RankLedger,
    Segment,
    StageGraph,
)
from headway.ledger.saves import Save
from headway.ledger.saves import merge_files as gathered
from headway.report.words import GROUPS, duration, stage_of


@dataclass(frozen=True, slots=True)
class Loss:
    """A cause of lost time: one stage, over the first start and every recovery."""

    leaf: str
    ns: int
    leaves: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecompileGroup:
    """The recompiles of one place for one reason, over all ranks and attempts."""

    where: str
    reason: str
    times: int
    ns: int


def bucket_groups(ledger: Ledger) -> list[tuple[str, int, list[tuple[str, int]]]]:
    """Every group that has time in it, with its leaves, in the order of the vocabulary."""
    found = []
    for name in GROUPS:
        leaves = [(x, ledger.buckets.get(x, 0)) for x in BUCKETS if group(x) == name]
        leaves = [(leaf, ns) for leaf, ns in leaves if ns]
        if leaves:
            found.append((name, sum(ns for _, ns in leaves), leaves))
    return found


def largest_loss(ledger: Ledger) -> Loss | None:
    """The stage that costs most, its first start and its recoveries taken together."""
    by_stage: dict[str, list[str]] = {}
    for leaf in BUCKETS:
        if leaf != EFFECTIVE and ledger.buckets.get(leaf):
            by_stage.setdefault(stage_of(leaf), []).append(leaf)
    losses = [
        Loss(stage, sum(ledger.buckets[leaf] for leaf in leaves), tuple(leaves))
        for stage, leaves in by_stage.items()
    ]
    return max(losses, key=lambda loss: loss.ns, default=None)


def ett_without(ledger: Ledger, ns: int) -> float:
    """What ETT% would be if `ns` of lost time had not been spent, all else equal."""
    rest = ledger.wall - ns
    return 100.0 * ledger.buckets.get(EFFECTIVE, 0) / rest if rest > 0 else 0.0


def rolled_back_steps(ledger: Ledger) -> list[tuple[int, int]]:
    """First and last step of each stretch that was trained and then rolled back."""
    if ledger.rolled_back is not None:
        return list(ledger.rolled_back)
    trained = [a for a in ledger.attempts if a.last_step is not None]
    found = []
    for before, after in pairwise(trained):
        resumed, last = after.resumed_from or 0, before.last_step
        if last is not None and last > resumed:
            found.append((resumed + 1, last))
    return found


def run_labels(ledger: Ledger) -> dict[str, Any]:
    """What the run was labeled with; run.json may be written by others."""
    found = ledger.facts.get("labels")
    return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}


def attempt_of(ledger: Ledger, index: int) -> Attempt | None:
    """The attempt with that index."""
    return next((a for a in ledger.attempts if a.index == index), None)


def last_step_before(ledger: Ledger, failure: Failure) -> int | None:
    """The last step of the attempt that a failure ended."""
    attempt = attempt_of(ledger, failure.attempt)
    return attempt.last_step if attempt else None


def merged_saves(ledger: Ledger) -> list[Save]:
    """Saves in time order; ranks that saved the same step in one attempt are one save."""
    return gathered(ledger.checkpoints)


def first_compiles(ledger: Ledger, attempt: int | None = None) -> list[Compile]:
    """Those that no recompile is, of one attempt or of all."""
    return [one for one in ledger.compiles if not one.recompile and attempt in (None, one.attempt)]


def group_recompiles(ledger: Ledger) -> list[RecompileGroup]:
    """Recompiles by place and reason, the costliest first."""
    found: dict[tuple[str, str], list[Compile]] = {}
    for c in ledger.compiles:
        if c.recompile:
            found.setdefault((c.where, c.reason), []).append(c)
    rows = [
        RecompileGroup(where, reason, len(group), sum(c.ns for c in group))
        for (where, reason), group in found.items()
    ]
    return sorted(rows, key=lambda row: -row.ns)


def describe_stages(graph: StageGraph) -> str:
    """What a declared start took, what overlap has saved, and what the best order would give."""
    spared = max(graph.one_by_one - graph.took, 0)
    said = f"took {duration(graph.took)}, {duration(spared)} less than one by one; "
    said += f"no order can be below {duration(graph.bound)}"
    chain = sum(row.end - row.start for row in graph.rows if row.name in graph.critical)
    if graph.bound > chain:
        said += ", the work of the main thread"
    left = graph.took - graph.bound
    return f"{said} ({duration(left)} less)" if left > 0 else said


def describe_cache_loads(ledger: Ledger) -> list[str]:
    """What the shared compile cache had, in words; nothing of a job that compiles nothing."""
    found = []
    for one in ledger.archives:
        if one.level == "miss" and not (one.here or ledger.compiles or ledger.archived):
            continue
        why = f" ({one.why})" if one.why else ""
        if one.level == "miss":
            kept = "; saved for the next job" if ledger.archived else ""
            found.append(f"nothing for this job{why}, compiled in {duration(one.here)}{kept}")
            continue
        took = f"{one.level}{why}, {one.files:,} files in {duration(one.load)}"
        cold = f" instead of {duration(one.cold)}" if one.cold else ""
        found.append(f"{took}: compiled in {duration(one.here)}{cold}")
    return found


def compile_split(ledger: Ledger) -> list[tuple[str, int]]:
    """What the time of the pt2_compile leaves went to."""
    parts = ledger.compile_parts
    return [(name, parts[name]) for name in COMPILE_PARTS if parts.get(name)]


def describe_torch_caches(ledger: Ledger) -> list[str]:
    """What torch's caches had, over all ranks, and the rank that found least."""
    said = []
    for name, title in (("aot", "AOTAutograd"), ("fx", "graphs")):
        counts = [(rank.rank, *getattr(rank, name)) for rank in ledger.rank_compiles]
        hits, misses = sum(c[1] for c in counts), sum(c[2] for c in counts)
        if hits or misses:
            worst = max(counts, key=lambda c: (c[2], -c[0]))
            uneven = misses and worst[2] * len(counts) > misses
            most = f", rank {worst[0]} missed {worst[2]:,}" if uneven else ""
            said.append(f"{title}: {hits:,} of {hits + misses:,} found{most}")
    return said


def cache_bypasses(ledger: Ledger) -> list[tuple[str, int]]:
    """Why a cache was not asked, and how often."""
    found: dict[str, int] = {}
    for rank in ledger.rank_compiles:
        for reason, times in rank.bypassed.items():
            found[reason] = found.get(reason, 0) + times
    return sorted(found.items(), key=lambda row: -row[1])


def limit_hits_by_place(ledger: Ledger) -> list[tuple[str, str, list[int]]]:
    """Place, limit and ranks, where torch no longer compiles."""
    found: dict[tuple[str, str], set[int]] = {}
    for one in ledger.gave_up:
        found.setdefault((one.where, one.limit), set()).add(one.rank)
    return [(where, limit, sorted(ranks)) for (where, limit), ranks in found.items()]


def rank_spread(ledger: Ledger) -> tuple[RankLedger, RankLedger] | None:
    """The ranks with the most and the least effective time, where there are several."""
    if len(ledger.ranks) < 2:
        return None
    there = [rank for rank in ledger.ranks if not rank.absent]
    ranks = there if len(there) > 1 else ledger.ranks
    by_time = sorted(ranks, key=lambda r: r.buckets.get(EFFECTIVE, 0))
    return by_time[-1], by_time[0]


def segments_by_attempt(
    ledger: Ledger, segments: Iterable[Segment]
) -> Iterator[tuple[int, Segment]]:
    """Segments with the index of their attempt, cut where an attempt ends.

    The time between two attempts belongs to the later one, as in `Ledger.windows`.
    """
    ends = [end for _, end in ledger.windows[:-1]]
    for segment in segments:
        start = segment.start
        while start < segment.end:
            place = bisect_right(ends, start)
            end = min([segment.end, *ends[place : place + 1]])
            yield place, Segment(start, end, segment.leaf)
            start = end


def own_losses(ledger: Ledger) -> list[tuple[RankLedger, str, int]]:
    """Where a rank differs from the median rank by 0.5 % of the wall time or more: its leaf."""
    floor = ledger.wall // 200
    found = []
    for leaf in BUCKETS:
        times = sorted(_time_present(r, leaf) for r in ledger.ranks)
        if leaf == EFFECTIVE or not times or not times[-1]:
            continue
        median = times[(len(times) - 1) // 2]
        for rank in ledger.ranks:
            more = _time_present(rank, leaf) - median
            if more > floor:
                found.append((rank, leaf, more))
    return sorted(found, key=lambda row: (-row[2], row[0].rank))


def _time_present(rank: RankLedger, leaf: str) -> int:
    """Without attempts that the rank was not part of."""
    return rank.buckets.get(leaf, 0) - (rank.absent if leaf == UNKNOWN else 0)


def outcome_of(ledger: Ledger, fault: Fault) -> tuple[str, str]:
    """What was detected of a planned fault, and what was decided then."""
    if fault.missed is not None:
        return f"it hit nothing: {fault.missed}", ""
    if fault.failure is None or fault.detected is None or fault.detected_after is None:
        return f"no failure: attempt {fault.attempt} went on", ""
    decision = ledger.failures[fault.failure].decision
    return f"{fault.detected} after {duration(fault.detected_after)}", decision or ""
