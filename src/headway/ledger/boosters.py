"""What the boosters of `headway run --auto` did in a run, and what each gained.

A figure is compared with that of the last comparable run of the same job without the booster; where
there is none, the gain is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headway.journal.reader import Journal
from headway.ledger.model import AutoRun, BoosterResult, Ledger
from headway.units import NS

# Name, whether it acted, what it did in words, and its ns here and without it.
Effect = tuple[bool, str, int | None, int | None]


def comparison_key(torch: str, gpus: Sequence[str], ranks: int) -> str:
    """Runs of one kind can be compared."""
    return f"torch {torch or '?'}, {' and '.join(gpus) or 'CPU'}, {ranks} rank(s)"


def active_boosters(ledger: Ledger) -> frozenset[str]:
    """Boosters that a run had, as far as that is known, or that --auto left out for a reason."""
    on = set(_texts(ledger.facts.get("boosters")))
    if ledger.auto is not None:
        on |= {one.name for one in ledger.auto.boosters}
    if ledger.archives or ledger.archived:
        on.add("compile_cache")
    if ledger.behind is not None:
        on.add("async_save")
    if any((one.decision or "").startswith("restart") for one in ledger.failures):
        on.add("restarts")
    return frozenset(on)


def auto_run(ledger: Ledger, journals: Sequence[Journal]) -> AutoRun | None:
    """What the launchers have noted, with what the ledger says of it; None without `--auto`."""
    events = [e for j in journals if j.role == "launcher" for e in j.named("auto")]
    if not events:
        return None
    first, last = events[0], events[-1]
    versions = ledger.facts.get("versions")
    torch = str(versions.get("torch") or "") if isinstance(versions, Mapping) else ""
    kind = comparison_key(torch, _texts(first.get("gpus")), len(ledger.ranks))
    known = _mapping(_mapping(first.get("known")).get(kind))
    seen = _RunEvidence(ledger, journals, {str(name): _ns(value) for name, value in known.items()})
    off = {**_mapping(first.get("off")), **_mapping(last.get("off"))}
    on = _texts(first.get("on"))
    found = [_result(name, seen, str(off.get(name) or "")) for name in on]
    found += [
        BoosterResult(name=str(name), state="off", why=str(why))
        for name, why in off.items()
        if name not in on
    ]
    return AutoRun(job=str(first.get("job") or ""), kind=kind, boosters=tuple(found))


def _result(name: str, seen: _RunEvidence, taken_back: str) -> BoosterResult:
    acted, what, here, before = _EFFECTS.get(name, _nothing)(seen)
    return BoosterResult(
        name=name,
        state="acted" if acted else ("off" if taken_back else "on"),
        what=what,
        why=taken_back,
        here=here if acted else None,
        before=before if acted else None,
    )


class _RunEvidence:
    """The run, and what is known of others like it."""

    def __init__(
        self, ledger: Ledger, journals: Sequence[Journal], known: Mapping[str, int | None]
    ) -> None:
        self.ledger, self.journals, self.known = ledger, journals, known

    def launcher(self, name: str) -> list[dict[str, Any]]:
        return [e for j in self.journals if j.role == "launcher" for e in j.named(name)]

    def warm(self) -> list[bool]:
        """For each attempt, whether its ranks were forked; nothing if that cannot be told."""
        lives: dict[tuple[str, int], bool] = {}
        ranks = [j for j in self.journals if j.role != "launcher" and not j.helper]
        for one in sorted(ranks, key=lambda journal: journal.wall):
            if one.rank is not None or len(self.ledger.ranks) == 1:
                lives.setdefault((one.launch, one.restart), one.facts.get("warm") is True)
        return list(lives.values()) if len(lives) == len(self.ledger.attempts) else []

    def recoveries(self, warm: bool) -> list[int]:
        """How long each restart of that kind took."""
        flags = self.warm()
        return [r.ns for r in self.ledger.recoveries if flags and flags[r.until] is warm]


def cold_recovery(ledger: Ledger, journals: Sequence[Journal]) -> int | None:
    """The usual time of a restart that was not warm."""
    times = _RunEvidence(ledger, journals, {}).recoveries(warm=False)
    return sorted(times)[len(times) // 2] if times else None


def _compile_cache(seen: _RunEvidence) -> Effect:
    brought = [one for one in seen.ledger.archives if one.level != "miss"]
    if not brought:
        kept = seen.ledger.archived
        return False, "an archive was made for the next run" if kept else "", None, None
    first = [one for one in brought if one.attempt == brought[0].attempt]
    what = f"{sum(one.files for one in first)} files of compiled code"
    return True, what, max(one.here for one in first), seen.known.get("compile_s")


def _learn(seen: _RunEvidence) -> Effect:
    marked = any(e.get("learned") for e in seen.launcher("auto"))
    here = recompile_time(seen.ledger)
    return (
        marked,
        "sources marked as dynamic" if marked else "",
        here,
        seen.known.get("recompile_s"),
    )


def recompile_time(ledger: Ledger) -> int:
    """Seconds of compiling again, on the rank where they were most."""
    by_rank: dict[int, int] = {}
    for one in ledger.compiles:
        if one.recompile:
            by_rank[one.rank] = by_rank.get(one.rank, 0) + one.ns
    return max(by_rank.values(), default=0)


def _autotune(seen: _RunEvidence) -> Effect:
    tuned = any(True for j in seen.journals for _ in j.named("autotune"))
    here = seen.ledger.compile_parts.get("autotune", 0)
    return tuned, "pruned configs" if tuned else "", here, seen.known.get("autotune_s")


def _async_save(seen: _RunEvidence) -> Effect:
    told = seen.ledger.behind
    if told is None or not told.saves:
        return False, "", None, None
    ledger = seen.ledger
    # As the figure that is known: of a checkpoint, with what is saved in the loop all the same.
    here = ledger.buckets.get("waste.checkpoint_block", 0)
    here += told.waited // max(len(ledger.ranks), 1)
    each = seen.known.get("save_s")
    before = None if each is None or not ledger.saves else each * ledger.saves
    return True, f"{told.saves} file(s) of {ledger.saves} checkpoint(s)", here, before


def _restarts(seen: _RunEvidence) -> Effect:
    made = sum(e.get("action") == "restart" for e in seen.launcher("decision"))
    return made > 0, f"{made} restart(s)" if made else "", None, None


def _warm(seen: _RunEvidence) -> Effect:
    forked, cold = seen.recoveries(warm=True), seen.recoveries(warm=False)
    if not forked:
        if any(seen.warm()):
            return True, "forked starts", None, None
        return False, f"{len(cold)} restart(s) started cold" if cold else "", None, None
    times = [*forked, *cold]  # a cold one may have waited for what was to be forked
    before = seen.known.get("recover_s")
    what = f"{len(forked)} of {len(times)} restart(s) forked"
    return True, what, sum(times), None if before is None else before * len(times)


def _hang_watch(seen: _RunEvidence) -> Effect:
    hangs = seen.launcher("hang")
    return bool(hangs), f"{len(hangs)} hang(s) noticed" if hangs else "", None, None


def _publish(seen: _RunEvidence) -> Effect:
    told = seen.ledger.publish
    if told is None:
        return False, "", None, None
    what = f"failed: {told.error}" if told.error else "handed to a job of its own"
    return not told.error, what, 0, told.took


def _nothing(seen: _RunEvidence) -> Effect:
    return False, "", None, None


_EFFECTS: dict[str, Callable[[_RunEvidence], Effect]] = {
    "restarts": _restarts,
    "warm": _warm,
    "hang_watch": _hang_watch,
    "compile_cache": _compile_cache,
    "learn": _learn,
    "autotune": _autotune,
    "async_save": _async_save,
    "publish": _publish,
}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, (list, tuple)) else []


def _ns(value: Any) -> int | None:
    good = type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1e7
    return round(value * NS) if good else None
