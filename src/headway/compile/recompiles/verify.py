"""Run the first steps of a job again, with and without the advised settings, and compare."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.compile.recompiles import sources
from headway.compile.recompiles.advice import Advice
from headway.compile.recompiles.learning import load_run
from headway.compile.recompiles.sources import SETTINGS, UNBACKED
from headway.errors import HeadwayError
from headway.probe import ENV_STEPS

EXTRA_STEPS = 5  # after the last recorded recompile
MAX_ROUNDS = 3  # of trials, each with what the one before found
LOG_TAIL_LINES = 15  # shown of a failed trial


@dataclass(frozen=True, slots=True)
class Trial:
    """A run of the job's first steps."""

    name: str
    env: Mapping[str, str]
    code: int
    advice: Advice
    log: str = ""  # the last lines, if it failed

    @property
    def failed(self) -> bool:
        """Whether the job exited with an error."""
        return self.code != 0


def verify(
    command: Sequence[str],
    cwd: Path,
    advice: Advice,
    steps: int,
    log: Callable[[str], object] = lambda text: None,
) -> list[Trial]:
    """Run without and with the settings, and repeat while a trial finds more to mark."""
    with tempfile.TemporaryDirectory(prefix="headway-verify-") as folder:
        runner = _TrialRunner(command, cwd, steps, Path(folder), log)
        trials = [runner.run("unchanged", {})]
        env = dict(advice.env)
        if trials[0].failed or not env:
            return trials
        trials.append(runner.run("with the settings", env))
        if trials[-1].failed and env.get(UNBACKED):
            env = sources.as_dynamic(env)
            trials.append(runner.run("without unbacked sizes", env))
        while len(trials) <= MAX_ROUNDS and not trials[-1].failed:
            more = dict(trials[-1].advice.env)
            if not trials[-1].advice.recompiles or more == env:
                break
            env = more
            trials.append(runner.run("with more settings", env))
        return trials


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The successful trial with the fewest recompiles; the first of several."""
    completed = [trial for trial in trials if not trial.failed] or list(trials[:1])
    return min(completed, key=lambda trial: trial.advice.recompiles)


class _TrialRunner:
    """Run trials, each with its own folder and empty caches."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        steps: int,
        folder: Path,
        log: Callable[[str], object],
    ) -> None:
        self.command, self.cwd, self.steps, self.folder, self.log = command, cwd, steps, folder, log
        self.count = 0

    def run(self, name: str, env: Mapping[str, str]) -> Trial:
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        self.log(f"headway: trial {self.count}, {name}: {self.steps} steps")
        launcher = [
            sys.executable,
            "-m",
            "headway",
            "run",
            "-o",
            str(folder / "run"),
            "--no-report",
        ]
        log_file = folder / "log"
        with log_file.open("wb") as output:
            process = subprocess.run(
                [*launcher, "--", *self.command],
                cwd=self.cwd,
                env=self._environment(folder, env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        tail = (
            log_file.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
            if process.returncode
            else []
        )
        if not (folder / "run" / "journal").is_dir():
            raise HeadwayError(
                "cannot start the trial: " + " ".join(tail[-1:]), code="trial-not-started"
            )
        return Trial(
            name, env, process.returncode, load_run(str(folder / "run")).advice, "\n".join(tail)
        )

    def _environment(self, folder: Path, env: Mapping[str, str]) -> dict[str, str]:
        """The environment without settings of an outer launcher or the user, with empty caches."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HEADWAY_") and name not in SETTINGS
        }
        settings = ("RESTARTS", "WARM", "LEARN", "REPORT", "HANG_WATCH")
        return {
            **inherited,
            **{f"HEADWAY_{name}": "0" for name in settings},
            "HEADWAY_COMPILE_CACHE": "",
            ENV_STEPS: str(self.steps),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
            **env,
        }
