"""Which rank a timeout points at: the one that stayed silent, or stayed behind."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headway.launch.failures.findings import Finding
from headway.launch.failures.verdict import Fact

_WORLD = re.compile(r"\bnranks (\d+)|world_?size[\"']?[ :=]+(\d+)|\bWORLD_SIZE=(\d+)")
_NAMED_RANK = re.compile(
    r"(?:signal (?:due to a collective timeout )?from rank|[Rr]anks? \[?)(?: ?)(\d+)"
    r"(?=\]? (?:has|have|did|failed|and we will|is)\b)"
)
_ENQUEUED = re.compile(r"last enqueued(?: NCCL)? work: (-?\d+)")
_MIN_COMPLAINTS = 3  # ranks that complain, at least, before a silent one is suspected


def suspected_rank(symptoms: Sequence[Finding], facts: Sequence[Fact]) -> int | None:
    """The rank that the others wait for, if what they say points at one."""
    named = [int(hit[1]) for one in symptoms if (hit := _NAMED_RANK.search(one.fact.text))]
    if named:
        return named[0]
    behind = _straggler(facts)
    if behind is not None:
        return behind
    loud = {one.fact.rank for one in symptoms if one.fact.rank is not None}
    known = {fact.rank for fact in facts if fact.rank is not None}
    sizes = [int(next(filter(None, hit.groups()))) for f in facts if (hit := _WORLD.search(f.text))]
    if sizes and max(sizes) <= 100_000:
        known |= set(range(max(sizes)))
    known |= set(range(max(loud, default=0)))
    silent = known - loud
    return silent.pop() if len(silent) == 1 and len(loud) >= _MIN_COMPLAINTS else None


def _straggler(facts: Sequence[Fact]) -> int | None:
    """The one rank whose last enqueued collective is older than that of all others."""
    last: dict[int, int] = {}
    for fact in facts:
        if fact.rank is not None and (hit := _ENQUEUED.search(fact.text)):
            last.setdefault(fact.rank, int(hit[1]))
    lowest = min(last.values(), default=0)
    ranks = [rank for rank, work in last.items() if work == lowest]
    return ranks[0] if len(ranks) == 1 and len(last) > _MIN_COMPLAINTS else None
