"""A small job below a real `headway run`, with a fault in its surroundings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headway.run import load
from tests.support import BIN, HEADWAY, code_of, codes, quiet_env, wait_until

PYTHON = str(BIN / "python")
# Runs until a file `end` exists. Records each start, and every signal.
LOOP = """
echo start >> starts
trap 'echo TERM >> signals; exit 9' TERM
touch up
while [ ! -e end ]; do sleep 0.02; done
exit 5
"""
# The same in Python, with steps; it succeeds.
TRAINING = """
import headway, os, time
open("starts", "a").write("start\\n")
step = 0
while not os.path.exists("end"):
    headway.step(); time.sleep(0.01); step += 1
    if step == 5: open("up", "w").close()
"""
PATCHED = (
    "import os, signal, sys, threading, time\n{}\nfrom headway.cli import main\nsys.exit(main())"
)


@dataclass
class Launch:
    """One `headway run` in its own folder."""

    folder: Path
    process: subprocess.Popen[str]
    stderr: str = ""

    def wait_for(self, name: str) -> None:
        """Wait for a file of the job; fails if the launcher has ended before."""
        wait_until((self.folder / name).exists, seconds=30)

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self) -> int:
        """Its exit code, when it and all writers of its stderr have ended."""
        self.stderr = self.process.communicate(timeout=60)[1] or ""
        return self.process.returncode

    @property
    def codes(self) -> set[str]:
        return {code for code in codes(self.stderr) if code}

    @property
    def starts(self) -> int:
        """How often the job was started."""
        path = self.folder / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def outcomes(self, run: str = "run") -> list[str]:
        """Of the attempts in the ledger, which must balance."""
        ledger = load(self.folder / run).ledger
        assert sum(ledger.buckets.values()) == ledger.wall
        return [attempt.outcome for attempt in ledger.attempts]

    def notes(self, run: str = "run") -> set[str]:
        """The codes of the notes in the journals."""
        return {code_of(note) for note in load(self.folder / run).ledger.notes}


@contextlib.contextmanager
def launch(
    folder: Path,
    *options: str,
    job: Sequence[str] = ("sh", "-c", LOOP),
    patch: str = "",
    around: Sequence[str] = (),
    env: dict[str, str] | None = None,
    unset: Sequence[str] = (),
    stdout: int | None = None,
    stderr: int = subprocess.PIPE,
) -> Iterator[Launch]:
    """Start it; `patch` is executed in the launcher, `around` is put before its command."""
    folder.mkdir(exist_ok=True)
    program = [PYTHON, "-c", PATCHED.format(patch)] if patch else [HEADWAY]
    environ = {**os.environ, **quiet_env(folder), **(env or {})}
    for name in unset:
        environ.pop(name, None)
    with subprocess.Popen(
        [*around, *program, "run", *(options or ("-o", "run")), "--", *job],
        cwd=folder,
        env=environ,
        stdout=stdout,
        stderr=stderr,
        text=True,
        errors="replace",
    ) as process:
        try:
            yield Launch(folder, process)
        finally:
            process.kill()
            (folder / "end").touch()


def names(rows: Mapping[str, Row]) -> Any:
    """A test parameter for each row of a table."""
    marks = {name: [pytest.mark.slow] if row.slow else [] for name, row in rows.items()}
    params = [pytest.param(name, marks=marks[name]) for name in rows]
    return pytest.mark.parametrize("name", params)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is done to a launch, and the expected result."""

    options: tuple[str, ...] = ("-o", "run")
    job: tuple[str, ...] = ("sh", "-c", LOOP)
    patch: str = ""
    around: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    before: Callable[[Path], object] = lambda folder: None
    act: Callable[[Launch], object] = lambda launch: launch.touch("end")
    code: int = 5
    codes: tuple[str, ...] = ()  # of the problems that are reported on standard error
    starts: int = 1
    outcomes: tuple[str, ...] | None = ("failed",)  # of the attempts; None: nothing is recorded
    run: str = "run"  # the run folder
    faulty: bool = False  # a fault of Headway itself may be recorded
    slow: bool = False  # only in `make test-all`

    def check(self, folder: Path) -> Launch:
        """Run the row."""
        folder.mkdir(exist_ok=True)
        self.before(folder)
        with launch(
            folder,
            *self.options,
            job=self.job,
            patch=self.patch,
            around=self.around,
            env=self.env,
            unset=self.unset,
        ) as started:
            if self.starts:
                started.wait_for("up")
            self.act(started)
            code = started.finish()
        print(started.stderr, file=sys.stderr)
        assert code == self.code
        assert started.starts == self.starts
        assert started.codes >= set(self.codes)
        assert "Traceback" not in started.stderr
        if self.outcomes is None:
            assert not list(folder.glob("**/journal"))
        else:
            assert started.outcomes(self.run) == list(self.outcomes)
            assert self.patch or self.faulty or "launcher-fault" not in started.notes(self.run)
        return started
