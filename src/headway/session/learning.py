"""Update a job's profile from a finished run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.compile.autotune import advice, records
from headway.errors import split_code
from headway.journal import file_access, run_files
from headway.journal.reader import Journal
from headway.launch.warm.preload_plan import WarmState
from headway.ledger import boosters
from headway.run import Run
from headway.session import registry
from headway.session.job import identify
from headway.session.profile import Baseline, DisabledBooster, JobProfile
from headway.units import NS

MAX_REFUSED_ARCHIVES = 2  # runs in a row whose archive was turned down
MIN_STEPS = 20  # for a silence to be called the longest
AUTOTUNE_LOSS = 0.02  # that a pruned config may cost, as in `headway autotune`
NOISE_S, NOISE_SHARE = 1.0, 0.02  # more than this, in seconds and of the run, is not noise
MAX_OTHER_RUNS = 50  # runs beside this one that are looked at for figures


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFindings:
    """What a run has shown."""

    run: str
    kind: str
    baseline: Baseline
    failures: Mapping[str, str] = field(default_factory=dict)  # booster -> what went wrong with it
    refused: bool = False  # an archive could not be used
    silence_s: float | None = None  # the longest, in a run that went well
    hang_limit_s: float | None = None  # the limit by which a hang was judged


def updated_profile(
    profile: JobProfile, findings: RunFindings, versions: str, words: tuple[str, ...] = ()
) -> JobProfile:
    """What is known once that run is over. A booster that went wrong is off from now on."""
    # What was found out under other versions has had its new try in this run.
    off = {
        name: disabled
        for name, disabled in profile.off.items()
        if disabled.versions == versions or disabled.of
    }
    updated = replace(
        profile,
        words=words or profile.words,
        runs=profile.runs + 1,
        last_run=findings.run,
        off=off,
        refused=profile.refused + 1 if findings.refused else 0,
        silence_s=_longest_gap(profile.silence_s, findings),
    ).with_baseline(findings.kind, findings.baseline)
    for name, reason in findings.failures.items():
        updated = updated.with_disabled(name, DisabledBooster(why=reason, versions=versions))
    if updated.refused >= MAX_REFUSED_ARCHIVES:
        reason = f"its archives could not be used {updated.refused} times in a row"
        updated = updated.with_disabled(
            registry.COMPILE_CACHE, DisabledBooster(why=reason, versions=versions)
        )
    return updated


def _longest_gap(earlier: float | None, findings: RunFindings) -> float | None:
    """The longest that is known; a limit that a hang has hit may have been too short."""
    gaps = [gap for gap in (earlier, findings.silence_s, findings.hang_limit_s) if gap is not None]
    return max(gaps, default=None)


def run_findings(
    run: Run,
    journals: Sequence[Journal],
    status: int,
    culprits: Mapping[str, str],
    hang_limit_s: float,
) -> RunFindings:
    """Findings from the ledger and the journals of a run.

    `culprits`: boosters that made an attempt of the run fail, and why.
    """
    hangs = [e for j in journals if j.role == "launcher" for e in j.named("hang")]
    failures = dict(culprits)
    ledger = run.ledger
    if ledger.behind is not None and ledger.behind.failed:
        failures.setdefault(
            registry.ASYNC_SAVE, f"a save could not be written: {_async_save_error(journals)}"
        )
    if reason := _async_save_costs_more(run.to_dict()):
        failures.setdefault(registry.ASYNC_SAVE, reason)
    if off := WarmState.read(run.path).off:
        failures.setdefault(registry.WARM, off)
    auto = ledger.auto
    return RunFindings(
        run=run.name,
        kind=auto.kind if auto else "",
        baseline=(
            baseline(run.to_dict(), boosters.cold_recovery(ledger, journals))
            if ledger.steps
            else Baseline()
        ),
        failures=failures,
        refused=any(
            archive.level == "miss" and _is_refused(archive.why) for archive in ledger.archives
        ),
        silence_s=None if status or hangs else longest_step_gap(journals),
        # A hang that was planned says nothing of the limit.
        hang_limit_s=hang_limit_s if hangs and not ledger.faults else None,
    )


def _async_save_costs_more(contract: Mapping[str, Any]) -> str:
    """Why saves behind the training do not pay: they cost more than plain ones, and clearly so."""
    for booster in (contract.get("auto") or {"boosters": []})["boosters"]:
        saved = booster["saved_s"]
        if booster["name"] == registry.ASYNC_SAVE and saved is not None:
            most = max(NOISE_S, NOISE_SHARE * contract["wall_s"])
            if -saved > most:
                return (
                    f"saves blocked {booster['here_s']:.1f} s "
                    f"instead of {booster['without_s']:.1f} s"
                )
    return ""


def _is_refused(reason: str) -> bool:
    """The reason has a code if there was an archive that could not be used."""
    return split_code(reason)[1] != ""


def is_rank0_host(journals: Sequence[Journal], host: str) -> bool:
    """Whether this node had rank 0: of several nodes, that one keeps what was learned."""
    hosts = {
        journal.host for journal in journals if journal.role != "launcher" and journal.rank == 0
    }
    return not hosts or host in hosts


def _async_save_error(journals: Sequence[Journal]) -> str:
    errors = [str(e["error"]) for j in journals for e in j.named("behind") if e.get("error")]
    return errors[0] if errors else ""


def baseline(contract: Mapping[str, Any], cold_recovery: int | None = None) -> Baseline:
    """The figures of a run, each only where its booster did not act; from `ledger.json`."""
    acted = {
        one["name"]: one["state"] == "acted"
        for one in (contract.get("auto") or {"boosters": []})["boosters"]
    }
    compiled, saved = contract["compile"], contract["checkpoints"]
    compiles = compiled["cold"] or compiled["cached"]
    again: dict[int, float] = {}
    for one in compiled["recompiles"]:
        again[one["rank"]] = again.get(one["rank"], 0.0) + one["seconds"]
    plain = saved["saves"] and "behind" not in saved
    return Baseline(
        compile_s=_compile_seconds(compiled, contract["buckets"]) if compiles else None,
        recompile_s=(
            max(again.values(), default=0.0) if compiles and not acted.get(registry.LEARN) else None
        ),
        autotune_s=compiled["parts"].get("autotune") if not acted.get(registry.AUTOTUNE) else None,
        save_s=saved["blocked_s"] / saved["saves"] if plain else None,
        recover_s=None if cold_recovery is None else cold_recovery / NS,
    )


def _compile_seconds(compiled: Mapping[str, Any], buckets: Mapping[str, float]) -> float | None:
    """Before the first step, without imports and without an archive."""
    archives = [archive for archive in compiled["archives"] if archive["attempt"] == 0]
    if any(archive["level"] != "miss" for archive in compiled["archives"]):
        return None
    if archives:
        return max(float(archive["compile_s"]) for archive in archives)
    if "recover.pt2_compile" in buckets:
        return None  # the parts are those of all attempts
    return sum(float(s) for name, s in compiled["parts"].items() if name != "import")


def longest_step_gap(journals: Sequence[Journal]) -> float | None:
    """The longest that any rank made no step, after its first one and up to its end."""
    longest, steps = 0, 0
    for journal in journals:
        if journal.role == "launcher" or journal.helper or not journal.windows:
            continue
        steps = max(steps, journal.windows.last[-1])
        last_end = journal.windows.end[0]
        for window in journal.windows:
            longest = max(longest, window.end - last_end)
            last_end = window.end
        longest = max(longest, journal.last_sign() - last_end)
    return longest / NS if steps >= MIN_STEPS else None


def other_baselines(runs: Path, job: str, gpus: Sequence[str]) -> Iterator[tuple[str, Baseline]]:
    """Kind and figures of runs of the job beside this one that were made without `--auto`."""
    ledgers = sorted(runs.glob(f"*/{run_files.LEDGER_JSON}"), key=_mtime, reverse=True)
    for path in ledgers[:MAX_OTHER_RUNS]:
        identity = run_files.read_identity(path.parent)
        try:
            same = identify([str(word) for word in identity["command"]]).id == job
            if not same or identity["host"] != os.uname().nodename:
                continue
            contract = json.loads(file_access.read_file(path))
            if "auto" in contract:
                continue
            torch = str(identity["versions"].get("torch") or "")
            yield boosters.comparison_key(torch, gpus, contract["ranks"]), baseline(contract)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
            continue  # another's folder, or an older ledger


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def publish_error(last: Path, recipe: Path) -> str:
    """What went wrong with an earlier publish; empty if the recipe is newer than that."""
    newer = _mtime(recipe) > _mtime(last / run_files.PUBLISH_JSON)
    return "" if newer else str(run_files.read_publish_note(last).get("error") or "")


def autotune_advice(run: str, journals: Sequence[Journal]) -> str | None:
    """The content of a file of advice, by what a run has tuned; None if it has tuned nothing."""
    setup, kernels = advice.same_setup(records.collect(journals))
    if setup is None or any(kernel.pruned for kernel in kernels):
        return None  # what an earlier file has pruned is not in the record
    advised = [advice.advise(kernel, AUTOTUNE_LOSS) for kernel in kernels]
    content = advice.to_dict(setup, advised, AUTOTUNE_LOSS, [run])
    return json.dumps(content, indent=1) + "\n" if content["kernels"] else None
