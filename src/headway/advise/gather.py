"""Collect what is known about a run and its job, and apply all rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway.advise import rules
from headway.advise.model import AdviceReport, Evidence, OtherRun, Proposal, Tuning
from headway.advise.resolve import resolve
from headway.journal import reader, run_files
from headway.ledger.boosters import active_boosters
from headway.ledger.model import Ledger
from headway.run import Run, load

MAX_OTHER_RUNS = 5  # the newest runs of the same command
MAX_KERNEL_LOSS = 0.02  # as in `headway autotune`
WARM_FILE = "warm.json"  # written by a launch with --warm


# Boosters by the flag of `headway run` that enables them.
BOOSTERS = {
    f"--{name.replace('_', '-')}": name
    for name in ("restarts", "warm", "compile_cache", "learn", "autotune", "async_save", "publish")
}


def advise(evidence: Evidence) -> AdviceReport:
    """Proposals of all rules, except for boosters that the run already used."""
    proposals, notes = rules.ask(evidence)
    on = active_boosters(evidence.ledger)
    new = [(rule, proposal) for rule, proposal in proposals if _is_new(proposal, on)]
    return resolve(evidence.ledger, new, notes)


def _is_new(proposal: Proposal, on: frozenset[str]) -> bool:
    boosters = {BOOSTERS[flag] for flag in proposal.flags if flag in BOOSTERS}
    return not boosters or not boosters <= on or "--hang-after" in proposal.flags


def gather(path: str, others: Sequence[str] = ()) -> Evidence:
    """A run with other runs of its job: those given, and those next to it with the same command."""
    run = load(path)
    local = "://" not in path
    runs = [load(other) for other in others]
    if local:
        known = {run.path.resolve(), *(other.path.resolve() for other in runs)}
        runs += [
            load(folder) for folder in _runs_of_same_command(run) if folder.resolve() not in known
        ][:MAX_OTHER_RUNS]
    return Evidence(
        ledger=run.ledger,
        where=path,
        warm=local and _is_warm(run),
        others=tuple(OtherRun(ledger=other.ledger, warm=_is_warm(other)) for other in runs),
        tuning=_tuning(run) if local and _has_compiles(run.ledger) else None,
    )


def _runs_of_same_command(run: Run) -> list[Path]:
    """The newest runs in the same folder with the same command."""
    command = run_files.read_identity(run.path).get("command")
    created = {}
    for folder in run.path.resolve().parent.iterdir():
        identity = run_files.read_identity(folder) if (folder / run_files.JOURNAL).is_dir() else {}
        if command and identity.get("command") == command and folder != run.path.resolve():
            created[folder] = float(identity.get("created") or 0.0)
    return sorted(created, key=lambda folder: -created[folder])[:MAX_OTHER_RUNS]


def _is_warm(run: Run) -> bool:
    return (run.path / WARM_FILE).is_file()


def _has_compiles(ledger: Ledger) -> bool:
    leaves = ("start.pt2_compile", "recover.pt2_compile", "waste.recompile")
    return any(ledger.buckets.get(leaf) for leaf in leaves)


def _tuning(run: Run) -> Tuning | None:
    """The prediction of `headway autotune`."""
    from headway.compile.autotune.advice import advise as prune
    from headway.compile.autotune.advice import same_setup
    from headway.compile.autotune.records import collect

    journals, _ = reader.read_journals(str(run.path / run_files.JOURNAL))
    _, kernels = same_setup(collect(journals))
    advice = [prune(kernel, MAX_KERNEL_LOSS) for kernel in kernels]
    return (
        Tuning(
            kernels=len(advice),
            time_s=sum(kernel_advice.spent for kernel_advice in advice),
            remaining_s=sum(kernel_advice.predicted for kernel_advice in advice),
        )
        if advice
        else None
    )
