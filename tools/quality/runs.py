"""Runs of tests in a copy of the tree, which an environment of its own imports headway from."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.quality.packages import SOURCE
from tools.quality.plugin import FAILED

PYTEST = (
    *("-m", "pytest", "-q", "-n", "0", "-m", "not slow"),
    *("-p", "no:cacheprovider", "-p", "tools.quality.plugin"),
)
NO_TESTS = 5  # pytest's exit code
PR_SET_CHILD_SUBREAPER = 36
MAX_UNSTABLE = 3


@dataclass(frozen=True)
class Outcome:
    """`code` is None where the time was up."""

    code: int | None
    seconds: float
    failed: tuple[str, ...]
    output: str

    @property
    def passed(self) -> bool:
        return self.code in (0, NO_TESTS)


NOTHING_RUN = Outcome(NO_TESTS, 0.0, (), "")


class Tree:
    """A copy of the tree, installed into the environment that this process runs in."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.path = folder / "tree"
        self._scratch = folder / "t"  # short: tests have sockets below it
        listed = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
        names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
        for name in sorted(set(filter(None, names.split("\0")))):
            if (root / name).is_file():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.path / name)
        self.install()

    def install(self) -> None:
        """Let this environment import headway from the copy, also in processes of tests."""
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
        subprocess.run([*pip, "--no-build-isolation", "-e", str(self.path)], check=True)
        for command in (
            [sys.executable, "-c", "import headway; print(headway.__file__)"],
            [sys.executable, "-I", "-c", "import headway; print(headway.__file__)"],
        ):
            ran = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/")
            if not Path(ran.stdout.strip()).is_relative_to(self.path):
                raise RuntimeError(f"headway is imported from {ran.stdout.strip()}, not the copy")

    def sources(self) -> dict[str, str]:
        """The text of every module, by its path in the tree."""
        paths = sorted((self.path / SOURCE).rglob("*.py"))
        return {str(path.relative_to(self.path)): path.read_text() for path in paths}

    def digest(self) -> str:
        """Which code and tests were measured."""
        sums = hashlib.sha256()
        paths = [*(self.path / "src").rglob("*"), *(self.path / "tests").rglob("*")]
        for path in sorted(paths):
            if path.is_file() and "__pycache__" not in path.parts:
                sums.update(f"{path.relative_to(self.path)}\n".encode() + path.read_bytes())
        return sums.hexdigest()[:16]

    def run(
        self,
        tests: list[str],
        *,
        stop: bool = False,
        limit: float | None = None,
        coverage: Path | None = None,
    ) -> Outcome:
        """Run tests in an empty HOME and an empty folder for temporary files."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        (self._scratch / "home").mkdir(parents=True)
        failed = self._scratch / "failed"
        ours = ("COVERAGE", "HEADWAY", "PYTEST", "PYTHON")
        env = {k: v for k, v in os.environ.items() if not k.startswith(ours)} | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self._scratch / "home"),
            "TMPDIR": str(self._scratch),
            "PYTHONHASHSEED": "0",
            FAILED: str(failed),
        }
        if coverage:
            env["COVERAGE_PROCESS_START"] = str(coverage)  # read when Python starts
        measure = ["-m", "coverage", "run", f"--rcfile={coverage}"] if coverage else []
        command = [sys.executable, *measure, *PYTEST, *(["-x"] if stop else []), *tests]
        started = time.monotonic()
        with open(self._scratch / "output", "w+b") as output:
            process = subprocess.Popen(
                command,
                cwd=self.path,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                seconds = time.monotonic() - started
                kill_descendants()
                process.wait()
                reap()
            output.seek(0)
            text = output.read().decode(errors="replace")
        names = failed.read_text().splitlines() if failed.exists() else []
        shutil.rmtree(self._scratch, ignore_errors=True)
        return Outcome(code, seconds, tuple(dict.fromkeys(names)), text)


def judge(tree: Tree, module: str, mutated: str, tests: list[str], limit: float) -> dict[str, Any]:
    """Whether the tests notice a mutant.

    A test kills it that fails twice with the mutant and then passes without it. Any other failure
    is not of the mutant: the test is left out, and the rest runs again.
    """
    seconds = 0.0
    unstable: list[str] = []
    outcome: dict[str, Any] = {"outcome": "unclear"}
    while len(unstable) < MAX_UNSTABLE:
        excluded = [f"--deselect={test}" for test in unstable]
        with changed(tree.path / module, mutated):
            run = tree.run([*tests, *excluded], stop=True, limit=limit)
            seconds += run.seconds
            again = tree.run([run.failed[0]], limit=limit) if run.failed else run
        if run.passed:
            outcome = {"outcome": "survived"}
            break
        if run.code is None:
            outcome = {"outcome": "timeout"}
            break
        if not run.failed:
            outcome = {"outcome": "killed", "killed_by": f"pytest exit code {run.code}"}
            break
        test = run.failed[0]
        if not again.passed and tree.run([test], limit=limit).passed:
            outcome = {"outcome": "killed", "killed_by": test}
            break
        unstable.append(test)
    return {
        **outcome,
        "seconds": round(seconds, 1),
        **({"unstable": unstable} if unstable else {}),
    }


@contextlib.contextmanager
def changed(path: Path, text: str) -> Iterator[None]:
    """With another text of a module; the bytecode of neither text is taken for the other."""
    before = path.read_text()
    try:
        _write(path, text)
        yield
    finally:
        _write(path, before)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    # Python compares the size and the second of a change, and both may be the same.
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


@contextlib.contextmanager
def working_tree(root: Path) -> Iterator[Tree]:
    """A copy of the tree for as long as the block runs; only one at a time."""
    with open(Path(sys.prefix) / "quality.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        adopt_orphans()
        folder = Path(tempfile.mkdtemp(prefix="hq"))
        try:
            yield Tree(root, folder)
        finally:
            kill_descendants()
            shutil.rmtree(folder, ignore_errors=True)


def adopt_orphans() -> None:
    """Processes whose parents have ended become children of this one, and can be ended."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def kill_descendants() -> None:
    """End every process that was started below this one, whatever session it is in."""
    deadline = time.monotonic() + 20
    while (pids := descendants()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def reap() -> None:
    """Collect adopted processes that have ended. No other child may be waited for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants() -> list[int]:
    """The living processes below this one."""
    children: dict[int, list[tuple[int, str]]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        children.setdefault(int(parent), []).append((int(path.name), state))
    living, waiting = [], [os.getpid()]
    while waiting:
        for pid, state in children.get(waiting.pop(), []):
            waiting.append(pid)
            if state not in "ZX":
                living.append(pid)
    return living
