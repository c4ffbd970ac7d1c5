"""What the boosters of `headway run --auto` did in a run, and the time that each saved.

The baseline is the last comparable run of the same job without the booster. Without such a run, the
saved time is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headway.journal.reader import Journal
from headway.ledger.model import AutoRun, BoosterResult, Ledger
from headway.units import NS

# Whether the booster acted, a description, and the time in ns with and without it.
Effect = tuple[bool, str, int | None, int | None]


def comparison_key(torch: str, gpus: Sequence[str], ranks: int) -> str:
    """Return the key that comparable runs share."""
    return f"torch {torch or '?'}, {' and '.join(gpus) or 'CPU'}, {ranks} rank(s)"


def active_boosters(ledger: Ledger) -> frozenset[str]:
    """Return the boosters that a run is known to have had, or that --auto disabled for a reason."""
    on = set(_texts(ledger.metadata.get("boosters")))
    if ledger.auto is not None:
        on |= {booster.name for booster in ledger.auto.boosters}
    if ledger.archives or ledger.archives_saved:
        on.add("compile_cache")
    if ledger.async_save is not None:
        on.add("async_save")
    if any((failure.decision or "").startswith("restart") for failure in ledger.failures):
        on.add("restarts")
    return frozenset(on)


def auto_run(ledger: Ledger, journals: Sequence[Journal]) -> AutoRun | None:
    """Combine the launchers' `auto` events with the ledger; None without `--auto`."""
    events = [e for j in journals if j.role == "launcher" for e in j.named("auto")]
    if not events:
        return None
    first, last = events[0], events[-1]
    versions = ledger.metadata.get("versions")
    torch = str(versions.get("torch") or "") if isinstance(versions, Mapping) else ""
    kind = comparison_key(torch, _texts(first.get("gpus")), len(ledger.ranks))
    baselines = _mapping(_mapping(first.get("known")).get(kind))
    evidence = _RunEvidence(
        ledger, journals, {str(name): _ns(value) for name, value in baselines.items()}
    )
    off = {**_mapping(first.get("off")), **_mapping(last.get("off"))}
    on = _texts(first.get("on"))
    results = [_result(name, evidence, str(off.get(name) or "")) for name in on]
    results += [
        BoosterResult(name=str(name), state="off", why=str(why))
        for name, why in off.items()
        if name not in on
    ]
    return AutoRun(job=str(first.get("job") or ""), comparison_key=kind, boosters=tuple(results))


def _result(name: str, evidence: _RunEvidence, taken_back: str) -> BoosterResult:
    acted, what, time, baseline = _EFFECTS.get(name, _nothing)(evidence)
    return BoosterResult(
        name=name,
        state="acted" if acted else ("off" if taken_back else "on"),
        what=what,
        why=taken_back,
        time=time if acted else None,
        baseline=baseline if acted else None,
    )


class _RunEvidence:
    """The run, and the known figures of comparable runs."""

    def __init__(
        self, ledger: Ledger, journals: Sequence[Journal], known: Mapping[str, int | None]
    ) -> None:
        self.ledger, self.journals, self.known = ledger, journals, known

    def launcher(self, name: str) -> list[dict[str, Any]]:
        return [e for j in self.journals if j.role == "launcher" for e in j.named(name)]

    def warm(self) -> list[bool]:
        """Return, for each attempt, whether its ranks were forked; empty if not known."""
        warm_by_start: dict[tuple[str, int], bool] = {}
        ranks = [j for j in self.journals if j.role != "launcher" and not j.helper]
        for rank in sorted(ranks, key=lambda rank: rank.wall):
            if rank.rank is not None or len(self.ledger.ranks) == 1:
                is_warm = rank.facts.get("warm") is True
                warm_by_start.setdefault((rank.launch, rank.restart), is_warm)
        complete = len(warm_by_start) == len(self.ledger.attempts)
        return list(warm_by_start.values()) if complete else []

    def recoveries(self, warm: bool) -> list[int]:
        """Return the times of the restarts that were warm, or of those that were not."""
        flags = self.warm()
        return [r.ns for r in self.ledger.recoveries if flags and flags[r.until] is warm]


def cold_recovery(ledger: Ledger, journals: Sequence[Journal]) -> int | None:
    """Return the median time of the restarts that were not warm."""
    times = _RunEvidence(ledger, journals, {}).recoveries(warm=False)
    return sorted(times)[len(times) // 2] if times else None


def _compile_cache(evidence: _RunEvidence) -> Effect:
    hits = [load for load in evidence.ledger.archives if load.level != "miss"]
    if not hits:
        saved = evidence.ledger.archives_saved
        return False, "saved a compile archive for the next run" if saved else "", None, None
    first = [load for load in hits if load.attempt == hits[0].attempt]
    what = f"{sum(load.files for load in first)} files of compiled code"
    return True, what, max(load.compile for load in first), evidence.known.get("compile_s")


def _learn(evidence: _RunEvidence) -> Effect:
    marked = any(e.get("learned") for e in evidence.launcher("auto"))
    time = recompile_time(evidence.ledger)
    return (
        marked,
        "sources marked as dynamic" if marked else "",
        time,
        evidence.known.get("recompile_s"),
    )


def recompile_time(ledger: Ledger) -> int:
    """Return the time of recompiles in ns, on the rank with the most."""
    by_rank: dict[int, int] = {}
    for c in ledger.compiles:
        if c.recompile:
            by_rank[c.rank] = by_rank.get(c.rank, 0) + c.ns
    return max(by_rank.values(), default=0)


def _autotune(evidence: _RunEvidence) -> Effect:
    tuned = any(True for j in evidence.journals for _ in j.named("autotune"))
    time = evidence.ledger.compile_parts.get("autotune", 0)
    return tuned, "pruned configs" if tuned else "", time, evidence.known.get("autotune_s")


def _async_save(evidence: _RunEvidence) -> Effect:
    saves = evidence.ledger.async_save
    if saves is None or not saves.saves:
        return False, "", None, None
    ledger = evidence.ledger
    # Like the baseline, this includes saves that block the loop.
    time = ledger.buckets.get("waste.checkpoint_block", 0)
    time += saves.wait // max(len(ledger.ranks), 1)
    each = evidence.known.get("save_s")
    baseline = None if each is None or not ledger.saves else each * ledger.saves
    return True, f"{saves.saves} file(s) of {ledger.saves} checkpoint(s)", time, baseline


def _restarts(evidence: _RunEvidence) -> Effect:
    restarts = sum(e.get("action") == "restart" for e in evidence.launcher("decision"))
    return restarts > 0, f"{restarts} restart(s)" if restarts else "", None, None


def _warm(evidence: _RunEvidence) -> Effect:
    forked, cold = evidence.recoveries(warm=True), evidence.recoveries(warm=False)
    if not forked:
        if any(evidence.warm()):
            return True, "forked starts", None, None
        return False, f"{len(cold)} restart(s) started cold" if cold else "", None, None
    times = [*forked, *cold]  # a cold restart may have waited for the fork
    baseline = evidence.known.get("recover_s")
    what = f"{len(forked)} of {len(times)} restart(s) forked"
    return True, what, sum(times), None if baseline is None else baseline * len(times)


def _hang_watch(evidence: _RunEvidence) -> Effect:
    hangs = evidence.launcher("hang")
    return bool(hangs), f"{len(hangs)} hang(s) detected" if hangs else "", None, None


def _publish(evidence: _RunEvidence) -> Effect:
    publish = evidence.ledger.published_by
    if publish is None:
        return False, "", None, None
    what = f"failed: {publish.error}" if publish.error else "published in a separate job"
    return not publish.error, what, 0, publish.took


def _nothing(evidence: _RunEvidence) -> Effect:
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
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []


def _ns(value: Any) -> int | None:
    good = type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1e7
    return round(value * NS) if good else None
