"""Test helpers: processes of jobs, waiting for a condition, codes of errors."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from headway.errors import split_code
from headway.journal.reader import Journal, read_journals
from headway.journal.run_files import JOURNAL
from headway.launch.attempt import BOOT
from headway.run import Run
from headway.testing import FakeRun

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from headway.serve.sources import Source

TESTS = Path(__file__).parent
JOBS = TESTS / "e2e" / "jobs"
BIN = Path(sys.executable).parent
HEADWAY = str(BIN / "headway")

NO_PROCESS = (1 << 22) + 1  # above the largest pid of Linux

T = TypeVar("T")
Probed = Callable[..., list[Journal]]
AsyncSave = Callable[..., Any]
Golden = Callable[[str, str], None]


def has_code(code: str) -> Callable[[BaseException], bool]:
    """For `pytest.raises(UsageError, check=has_code("run-not-found"))`."""

    def check(error: BaseException) -> bool:
        actual = getattr(error, "code", None)
        if actual != code:
            print(f"expected code {code!r}, got {actual!r} of {error!r}", file=sys.stderr)
        return actual == code

    return check


def codes(text: str) -> list[str]:
    """The code at the end of each line of stderr; "" for a line without one."""
    return [split_code(line)[1] for line in text.splitlines()]


def code_of(text: str) -> str:
    """The code at the end of a note or a message."""
    return split_code(text.rstrip())[1]


def wait_until(condition: Callable[[], T], seconds: float = 60, every: float = 0.005) -> T:
    """Wait for a condition of another process or thread; return its first true value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not true within {seconds:g} s"
        time.sleep(every)
    return value


def examples(full: int) -> int:
    """Number of examples for hypothesis: all of them in `make test-all`."""
    if os.environ.get("HEADWAY_TEST_PROFILE") == "full":
        return full
    return min(full, max(10, full // 4))


def lazy(name: str) -> Any:
    """A module or a name of it that needs torch, imported by the first test that uses it.

    `torch = lazy("torch")` or `load = lazy("torch.serialization:load")`: a test file that imports
    torch itself costs every worker its start. Without torch the test is skipped.
    """
    return _Lazy(name)


class _Lazy:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def _imported(self) -> Any:
        pytest.importorskip("torch", reason="needs torch")
        module, _, name = self._name.partition(":")
        imported = importlib.import_module(module)
        return getattr(imported, name) if name else imported

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest inspects all names of a test file
            raise AttributeError(name)
        return getattr(self._imported(), name)

    @property
    def __dict__(self) -> Any:  # monkeypatch reads the original value from it
        return vars(self._imported())

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._imported(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._imported(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._imported()(*args, **kwargs)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def metric_families(text: str) -> dict[str, Any]:
    """The families of an OpenMetrics page by name."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    return {family.name: family for family in text_string_to_metric_families(text)}


# -- jobs in other processes ----------------------------------------------------------------


@dataclass
class Done:
    """A finished job: its ledger, its own measurements, and its output."""

    code: int
    run: Run
    truth: dict[str, dict[str, Any]]
    output: str

    @property
    def journals(self) -> list[Journal]:
        return read_journals(str(self.run.path / JOURNAL))[0]

    def seconds(self, leaf: str) -> float:
        return self.run.ledger.buckets.get(leaf, 0) / 1e9


Runner = Callable[..., Done]


def quiet_env(folder: Path) -> dict[str, str]:
    """Environment variables of a job below `headway run`, in addition to those of the tests."""
    return {
        "TRUTH": str(folder / "truth"),
        "PORT": str(free_port()),
        "PYTHONPATH": str(JOBS),
        "HEADWAY_STRICT": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def probe_env(folder: Path, *unset: str, **more: str) -> dict[str, str]:
    """The environment of a script with the probe in it, which writes to that folder."""
    base = {k: v for k, v in os.environ.items() if not k.startswith(("HEADWAY", *unset))}
    return {
        **base,
        "PYTHONPATH": str(BOOT),
        "HEADWAY_DIR": str(folder),
        "HEADWAY_LAUNCH": "test",
        "HEADWAY_STRICT": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }


class ForkServer:
    """Runs scripts in forks of a process that has imported torch, and the probe if `env` has it."""

    def __init__(self, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "forkserver.py")],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        script: Path,
        *args: str,
        env: dict[str, str],
        finalize: bool = False,
        timeout: float = 100,
    ) -> tuple[int, str]:
        """The exit code and what was written to stderr.

        `finalize`: end the interpreter normally, which takes a second in a process with torch;
        otherwise the process ends after the atexit callbacks.
        """
        assert self.process.stdin is not None
        request = {
            "argv": [str(script), *args],
            "folder": str(script.parent),
            "env": env,
            "finalize": finalize,
        }
        print(json.dumps(request), file=self.process.stdin, flush=True)
        pid = self._answer()
        kill = threading.Timer(timeout, os.kill, (pid, signal.SIGKILL))
        kill.start()
        code = self._answer()
        kill.cancel()
        kill.join()
        return code, (script.parent / "stderr").read_text()

    def _answer(self) -> int:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the fork server ended with {self.process.wait()}"
        return int(line)

    def close(self) -> None:
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()


def cli(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `headway WORDS` in this process, for commands that only read and write files."""
    from headway.cli import main

    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(words, code, stdout.getvalue(), stderr.getvalue())


def close(measured: float, truth: float) -> bool:
    """Whether a value is within 0.1 s + 2 % of the measurement of the job."""
    return abs(measured - truth) <= 0.1 + 0.02 * truth


def python(*words: str) -> tuple[str, ...]:
    return (str(BIN / "python"), *words)


def job(name: str) -> str:
    return str(JOBS / f"{name}.py")


def names(journal: Journal) -> list[str]:
    return [span.name for span in journal.spans]


def steps(journal: Journal) -> int:
    return journal.windows[-1].last if journal.windows else 0


class Disk:
    """Blocks syncs, or makes them fail."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.error: OSError | None = None

    def sync(self, path: str) -> None:
        assert self.free.wait(30)
        if self.error is not None:
            raise self.error


# -- pages ----------------------------------------------------------------------------------


def pages(
    source: Source,
    token: str | None = None,
    *names: str,
    clock: Callable[[], float] = time.monotonic,
    base_url: str = "http://localhost",
    **options: Any,
) -> TestClient:
    """A client for the pages of a source; it does not follow redirects."""
    from starlette.testclient import TestClient

    from headway.serve.app import application
    from headway.serve.security import TokenAuth

    app = application(source, TokenAuth(token), frozenset(names), clock)
    return TestClient(app, base_url=base_url, follow_redirects=False, **options)


def unfinished_run(folder: Path) -> Path:
    """The folder of a run with one rank, which has made 20 steps and has not ended."""
    run = FakeRun()
    run.launcher(begin=0)
    run.process(begin=1).train(first=1, count=20, start=5, each=0.5)
    return run.write(folder)
