"""A folder of its own in which the job of a recording runs, and what it leaves there."""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
E2E_JOBS = REPOSITORY / "tests" / "e2e" / "jobs"
JOBS = Path(__file__).parent / "jobs"
BIN = Path(sys.executable).parent
PYTHON = str(BIN / "python")
TORCHRUN = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node")


def script(name: str) -> str:
    """The job of that name, here or beside the end-to-end tests."""
    (path,) = (folder / f"{name}.py" for folder in (JOBS, E2E_JOBS) if _has(folder, name))
    return str(path)


def _has(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file()


class Session:
    """Runs commands in `folder`; nothing of the environment of the caller reaches them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[list[str]] = []
        self.runs: dict[str, Path] = {}  # run folders that were not made by `-o NAME`
        self.port = _free_port()
        for name in ("tmp", "truth"):
            (folder / name).mkdir()

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "USER": "user",
            "LOGNAME": "user",
            "TMPDIR": str(self.folder / "tmp"),
            "TRUTH": str(self.folder / "truth"),
            "PORT": str(self.port),
            "PYTHONPATH": str(E2E_JOBS),
            "PYTHONUNBUFFERED": "1",
            "HEADWAY_STRICT": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # torch 2.13 may hang without it
        }

    def run(self, *words: str, code: int = 0, env: dict[str, str] | None = None) -> None:
        """`headway run WORDS` to its end, which must have that exit code."""
        self.finish(self.start(*words, env=env), code)

    def start(self, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start `headway run WORDS`; its output is a pipe."""
        return self.command("headway", "run", *words, env=env)

    def command(self, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start any command; its output is a pipe."""
        changed = [f"{name}={value}" for name, value in (env or {}).items()]
        self.commands.append([*changed, *words])
        return subprocess.Popen(
            [shutil.which(words[0], path=self.env["PATH"]) or words[0], *words[1:]],
            cwd=self.folder,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str], code: int | None = 0) -> str:
        """Wait for its end; `code` None: it may be any but 0."""
        try:
            output, _ = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
        wrong = process.returncode == 0 if code is None else process.returncode != code
        if wrong:
            raise RuntimeError(f"exit code {process.returncode}, not {code}:\n{output}")
        return output

    def wait_for(self, *names: str) -> None:
        """Until these files are there."""
        until = time.monotonic() + 120
        while not all((self.folder / name).exists() for name in names):
            if time.monotonic() > until:
                raise RuntimeError(f"{names} did not come")
            time.sleep(0.01)

    def forget(self, *names: str) -> None:
        """Remove files of the job's last life."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def run_folder(self, name: str) -> Path:
        return self.folder / self.runs.get(name, Path(name))

    def words(self) -> list[str]:
        """The commands as a person types them, in the order they were started."""
        return [shlex.join(_plain(command)) for command in self.commands]


def _plain(command: Sequence[str]) -> list[str]:
    """Programs of the environment by their names."""
    return [word.removeprefix(f"{BIN}/") for word in command]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
