"""Explain why torch.compile recompiled in a run, what it cost, and how to avoid it.

examples:
  headway recompiles RUN                 by source, with the setting or code that avoids it
  headway recompiles RUN --json          as JSON
  headway recompiles RUN --verify        rerun the first steps without and with the setting
  headway run --learn -- COMMAND         apply the setting to the next runs of the job

--verify runs the command of the job in its own folder. If the job writes checkpoints or logs in its
first steps, it writes them again; configure another output folder first if that matters. The run
must be your own, in a folder that no one else can write. The job is stopped after these steps, so
code at its end does not run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import UsageError
from headway.journal.run_files import COMMAND_JSON, RUN_JSON
from headway.redact import MASK

if TYPE_CHECKING:
    from headway.compile.recompiles.learning import RecordedRun


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--verify", action="store_true", help="rerun the first steps of the job and compare"
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="number of steps for --verify (a few more than the last recompile)",
    )


def run(args: argparse.Namespace) -> int:
    from headway.compile.recompiles.learning import load_run

    if args.steps is not None and args.steps < 1:
        raise UsageError(
            f"--steps is {args.steps}, but it must be 1 or more", code="steps-out-of-range"
        )
    loaded = load_run(args.run)
    if args.verify:
        return _verify(loaded, args)
    if args.json:
        print(json.dumps(loaded.advice.to_dict(), indent=2))
        return 0
    from headway.compile.recompiles.render import page
    from headway.report.screen import console, print_line

    screen = console()
    for line in page(loaded.advice, args.run):
        print_line(screen, line)
    return 0


def _verify(loaded: RecordedRun, args: argparse.Namespace) -> int:
    from headway.compile.recompiles.verify import EXTRA_STEPS, best_trial, verify

    command, cwd = _recorded_command(loaded, args.run)
    advice = loaded.advice
    steps = args.steps or (advice.last_step or 0) + EXTRA_STEPS
    trials = verify(command, cwd, advice, steps, lambda text: print(text, file=sys.stderr))
    helped = best_trial(trials) is not trials[0]
    if args.json:
        report = {"recorded": advice.to_dict(), "steps": steps}
        report["trials"] = [
            {"name": t.name, "env": dict(t.env), "exit_code": t.code, **t.advice.to_dict()}
            for t in trials
        ]
        print(json.dumps(report, indent=2))
    else:
        from headway.compile.recompiles.render import trials_table as table
        from headway.report.screen import console, print_line

        screen = console()
        for line in table(advice, trials, steps):
            print_line(screen, line)
    return 0 if not trials[-1].failed and (helped or not advice.env) else 1


def _recorded_command(loaded: RecordedRun, run: str) -> tuple[list[str], Path]:
    """The recorded command and its folder; UsageError if it cannot be run again."""
    reason = _untrusted_reason(run)
    if reason:
        raise UsageError(
            f"--verify runs the command that {run} names, and {reason}", code="command-not-trusted"
        )
    command, cwd = loaded.command, loaded.identity.get("cwd")
    if not command or not isinstance(cwd, str):
        raise UsageError(
            f"run.json of {run} does not contain the command; record the run again",
            code="command-not-recorded",
        )
    if any(MASK in word for word in command):
        raise UsageError(
            f"secrets in the command of {run} are masked, and {COMMAND_JSON} with the exact one "
            "cannot be read here; verify it on the machine where it ran, as the same user",
            code="command-masked",
        )
    if not Path(cwd).is_dir():
        raise UsageError(
            f"the job ran in {cwd}, which does not exist; verify it on the machine where it ran",
            code="job-folder-not-found",
        )
    if not loaded.record.steps:
        raise UsageError(
            f"Headway recorded no step in {run}, so it could not end a trial; "
            f"see `headway report {run}`",
            code="no-steps",
        )
    return command, Path(cwd)


def _untrusted_reason(run: str) -> str:
    """Why another user may have written the command of a run; empty if only this user can."""
    from headway.storage.signing import path_untrusted_reason

    if "://" in run:
        return "anyone may have written a run behind a URL; verify it in its own folder"
    files = (Path(run, name) for name in (RUN_JSON, COMMAND_JSON))
    return next(filter(None, map(path_untrusted_reason, files)), "")
