"""Say why torch.compile compiled again in a run, what it cost, and what cures it.

examples:
  headway recompiles RUN                 by source, the setting that cures it, and the lines of code
  headway recompiles RUN --json          the same for programs
  headway recompiles RUN --verify        run the first steps of the job again, before and after
  headway run --learn -- COMMAND         the next runs of a job get the setting by themselves

--verify starts the job's own command in its own folder, so the job's own code runs: if it writes
checkpoints or logs in its first steps, it writes them again. Give it another place to write to
first where that matters. It must be a run of your own, in a folder that nobody else can write.
The job is ended after the steps, before anything it does at its end.
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
    """Add the arguments of `headway recompiles`."""
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--verify", action="store_true", help="run the job's first steps again and compare"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="so many; a few more than the last recompile's"
    )


def run(args: argparse.Namespace) -> int:
    """Read the journals and show the advice, or try it."""
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
    """The command and its folder, as recorded; one sentence where it cannot be run again."""
    reason = _untrusted_reason(run)
    if reason:
        raise UsageError(
            f"--verify runs the command that {run} names, and {reason}", code="command-not-trusted"
        )
    command, cwd = loaded.command, loaded.identity.get("cwd")
    if not command or not isinstance(cwd, str):
        raise UsageError(
            f"run.json of {run} does not say which command it was; run it once more",
            code="command-not-recorded",
        )
    if any(MASK in word for word in command):
        raise UsageError(
            f"secrets in the command of {run} are masked, and {COMMAND_JSON} with the exact one "
            "cannot be read here; verify it where it ran, as the same user",
            code="command-masked",
        )
    if not Path(cwd).is_dir():
        raise UsageError(
            f"the job ran in {cwd}, which is not there; verify it where it ran",
            code="job-folder-not-found",
        )
    if not loaded.record.steps:
        raise UsageError(
            f"Headway saw no step in {run}, so it could not end a trial; "
            f"see `headway report {run}`",
            code="no-steps",
        )
    return command, Path(cwd)


def _untrusted_reason(run: str) -> str:
    """Why somebody else may have written the command of a run; empty if only this user can."""
    from headway.storage.signing import path_untrusted_reason

    if "://" in run:
        return "what lies behind a URL may be anybody's; verify it in its own folder"
    files = (Path(run, name) for name in (RUN_JSON, COMMAND_JSON))
    return next(filter(None, map(path_untrusted_reason, files)), "")
