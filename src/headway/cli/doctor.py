"""Check what Headway can record of a job in this environment.

Runs a small torch job in the same way as `headway run` and checks the recording.

headway doctor                       with this interpreter
headway doctor -- path/to/python     with the interpreter of your job
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Check(NamedTuple):
    """Result of one check; `mend` is the hint if it failed."""

    code: str
    good: bool
    text: str
    mend: str = ""


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "python", nargs=argparse.REMAINDER, help="the interpreter of the job, after `--`"
    )


def run(args: argparse.Namespace) -> int:
    from headway.format import one_line

    words = args.python[1:] if args.python[:1] == ["--"] else args.python
    results = [
        check._replace(text=one_line(check.text), mend=one_line(check.mend))
        for check in checks(words or [sys.executable])
    ]
    if args.json:
        import json

        print(json.dumps([check._asdict() for check in results], indent=1))
    else:
        for check in results:
            print(f"  {'ok  ' if check.good else 'FAIL'} {check.text}")
            if not check.good and check.mend:
                print(f"       {check.mend}")
    return 0 if all(check.good for check in results) else 1


def checks(python: list[str]) -> Iterator[Check]:
    """All checks that do not need the user's own job."""
    yield _journal_folder()
    yield Check(
        "pidfd",
        hasattr(os, "pidfd_open"),
        "exits of ranks are detected immediately (pidfd)",
        "needs Linux 5.3 and Python 3.9; without it, exits of processes are detected later",
    )
    with tempfile.TemporaryDirectory() as folder:
        yield from _child(python, Path(folder))


def _journal_folder() -> Check:
    runs = Path("headway")
    folder = runs if runs.is_dir() else Path.cwd()
    hint = f"choose a writable folder: headway run -o DIR ... ({folder} is read-only)"
    text = "the run folder ./headway is writable"
    return Check("run-folder-writable", os.access(folder, os.W_OK), text, hint)


def _child(python: list[str], folder: Path) -> Iterator[Check]:
    from headway.journal.reader import read_journals
    from headway.launch import attempt, run_folder

    run = run_folder.prepare(python, output=str(folder / "run"), name="doctor", env={})
    job = Path(__file__).with_name("doctor_job.py")  # by its path: it imports torch
    command = [*python, str(job)]
    try:
        result = subprocess.run(
            command,
            env=attempt.environment(run, run.launch),
            capture_output=True,
            text=True,
            timeout=300,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        text = f"{' '.join(python)} starts"
        yield Check("interpreter-starts", False, text, f"it cannot be started: {error}")
        return
    last = (result.stderr.strip().splitlines() or [""])[-1]
    text = f"{' '.join(python)} runs a small torch job"
    ran = result.returncode == 0
    if ran and result.stdout.split()[-1:] not in (["True"], ["False"]):  # of doctor_job.py
        ran, last = False, "it is not a Python interpreter: headway doctor -- path/to/python"
    yield Check("job-runs", ran, text, last)
    if not ran:
        return
    journals, _ = read_journals(str(run.journal))
    if not journals:
        yield Check(
            "probe-loaded",
            False,
            "the probe is loaded in the process",
            "PYTHONPATH or HEADWAY_DIR does not reach it (python -I, env -i, another container?): "
            "put `import headway.auto` at the top of the script",
        )
        return
    journal = journals[0]
    text = f"the probe is loaded in the process (torch {journal.facts.get('torch')})"
    yield Check("probe-loaded", True, text)
    steps = journal.windows[-1].last if journal.windows else 0
    yield Check(
        "steps-seen",
        steps == 5,
        f"{steps} of 5 optimizer steps recorded",
        "call `headway.step()` in the training loop",
    )
    names = {span.name for span in journal.spans}
    for name, text in (
        ("import", "import of torch"),
        ("process_group_init", "process groups"),
        ("train_module_creation", "model construction"),
        ("data_wait", "waits for data"),
        ("checkpoint_load", "checkpoint loads"),
        ("checkpoint_save", "checkpoint saves"),
        ("compile", "compiles"),
        ("evaluation", "evaluation between steps"),
    ):
        hint = "this hook does not support this version of torch"
        yield Check(f"{name.replace('_', '-')}-seen", name in names, text, hint)
    for event in journal.named("note"):
        code, text = str(event.get("code", "note")), f"hook {event.get('hook')}"
        yield Check(code, False, text, str(event.get("text")))
