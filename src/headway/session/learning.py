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

MAX_REFUSED_ARCHIVES = 2  # consecutive runs whose archive could not be used
MIN_STEPS = 20  # for the longest time without a step to be meaningful
AUTOTUNE_LOSS = 0.02  # accepted slowdown by pruned configs, as in `headway autotune`
NOISE_S, NOISE_SHARE = (
    1.0,
    0.02,
)  # larger differences, in seconds and as a share of the run, are not noise
MAX_OTHER_RUNS = 50  # other runs of the job to read baselines from


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFindings:
    """Findings from a finished run."""

    run: str
    kind: str
    baseline: Baseline
    failures: Mapping[str, str] = field(default_factory=dict)  # booster -> what failed
    refused: bool = False  # an archive could not be used
    silence_s: float | None = None  # longest time without a step, if the run was successful
    hang_limit_s: float | None = None  # the limit that a detected hang exceeded


def updated_profile(
    profile: JobProfile, findings: RunFindings, versions: str, words: tuple[str, ...] = ()
) -> JobProfile:
    """The profile after a run; boosters that failed are disabled."""
    # Boosters disabled under other versions have been tried again in this run.
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
        reason = f"its archives could not be used in {updated.refused} consecutive runs"
        updated = updated.with_disabled(
            registry.COMPILE_CACHE, DisabledBooster(why=reason, versions=versions)
        )
    return updated


def _longest_gap(earlier: float | None, findings: RunFindings) -> float | None:
    """The longest known gap; the limit of a detected hang counts, as it may be too short."""
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
    if ledger.async_save is not None and ledger.async_save.failed:
        failures.setdefault(
            registry.ASYNC_SAVE, f"an async save failed: {_async_save_error(journals)}"
        )
    if reason := _async_save_costs_more(run.to_dict()):
        failures.setdefault(registry.ASYNC_SAVE, reason)
    if off := WarmState.read(run.path).off:
        failures.setdefault(registry.WARM, off)
    auto = ledger.auto
    return RunFindings(
        run=run.name,
        kind=auto.comparison_key if auto else "",
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
        # An injected hang does not indicate that the limit is too short.
        hang_limit_s=hang_limit_s if hangs and not ledger.faults else None,
    )


def _async_save_costs_more(contract: Mapping[str, Any]) -> str:
    """The reason if async saves clearly cost more than synchronous ones, or empty."""
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
    """Whether an archive was found but could not be used: only then the reason has a code."""
    return split_code(reason)[1] != ""


def is_rank0_host(journals: Sequence[Journal], host: str) -> bool:
    """Whether this node had rank 0, which updates the profile for all nodes."""
    hosts = {
        journal.host for journal in journals if journal.role != "launcher" and journal.rank == 0
    }
    return not hosts or host in hosts


def _async_save_error(journals: Sequence[Journal]) -> str:
    errors = [str(e["error"]) for j in journals for e in j.named("behind") if e.get("error")]
    return errors[0] if errors else ""


def baseline(contract: Mapping[str, Any], cold_recovery: int | None = None) -> Baseline:
    """Baseline of a run from its `ledger.json`; each value only if its booster did not act."""
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
    """Compile time before the first step, without imports; None if an archive was used."""
    archives = [archive for archive in compiled["archives"] if archive["attempt"] == 0]
    if any(archive["level"] != "miss" for archive in compiled["archives"]):
        return None
    if archives:
        return max(float(archive["compile_s"]) for archive in archives)
    if "recover.pt2_compile" in buckets:
        return None  # the parts include all attempts
    return sum(float(s) for name, s in compiled["parts"].items() if name != "import")


def longest_step_gap(journals: Sequence[Journal]) -> float | None:
    """The longest time without a step of any rank, between its first step and its end."""
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
    """Kind and baseline of other runs of the job that ran without `--auto`."""
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
            continue  # not a run folder, or an older ledger


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def publish_error(last: Path, recipe: Path) -> str:
    """Error of an earlier publish; empty if the recipe was changed later."""
    newer = _mtime(recipe) > _mtime(last / run_files.PUBLISH_JSON)
    return "" if newer else str(run_files.read_publish_note(last).get("error") or "")


def autotune_advice(run: str, journals: Sequence[Journal]) -> str | None:
    """Content of the advice file for the tunings of a run; None if there are none."""
    setup, kernels = advice.same_setup(records.collect(journals))
    if setup is None or any(kernel.pruned for kernel in kernels):
        return None  # the record lacks what an earlier file pruned
    advised = [advice.advise(kernel, AUTOTUNE_LOSS) for kernel in kernels]
    content = advice.to_dict(setup, advised, AUTOTUNE_LOSS, [run])
    return json.dumps(content, indent=1) + "\n" if content["kernels"] else None
