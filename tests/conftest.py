"""Fixtures of all tests. Fixtures import torch, starlette and other large packages when needed.

pytest --update-golden       rewrites the golden files that differ; the diff is the review
pytest --update-durations    records the duration of each file, which determines their order
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headway.journal.reader import Journal, read_journals
from headway.run import load
from tests.support import (
    HEADWAY,
    TESTS,
    AsyncSave,
    Disk,
    Done,
    ForkServer,
    Golden,
    Probed,
    Runner,
    examples,
    pages,
    probe_env,
    quiet_env,
    wait_until,
)

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

    from starlette.testclient import TestClient

    from headway.fleet.store.parquet import Store
    from headway.serve.sources import Source
    from tests.writers import Server, Started

os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # torch 2.13 may hang without it
os.environ["COLUMNS"] = "100"  # golden texts have one width
pytest_plugins = [] if find_spec("torch") else ["tests.without_torch"]


DURATIONS = TESTS / "durations.json"
SESSION = "HEADWAY_TEST_SESSION"  # inherited by all processes of the tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")
    parser.addoption("--update-durations", action="store_true", help="rewrite durations.json")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[SESSION] = uuid.uuid4().hex
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As for commands that a shell starts with `&`: all child processes would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(ImportError):
        from hypothesis import settings

        settings.register_profile("headway", max_examples=examples(100), deadline=None)
        settings.load_profile("headway")


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest groups of tests first. A group is a file, or named by xdist_group."""
    durations = json.loads(DURATIONS.read_text(encoding="utf-8"))
    seconds: dict[str, float] = {}
    counted: set[tuple[str, str]] = set()
    for item in items:
        file = _file(item.nodeid)
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(file))
        if (pair := (_group(item), file)) not in counted:
            counted.add(pair)
            seconds[pair[0]] = seconds.get(pair[0], 0) + durations.get(file, 1)
    items.sort(key=lambda item: (-seconds[_group(item)], _group(item)))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _group(item: pytest.Item) -> str:
    return "_".join(sorted(str(mark.args[0]) for mark in item.iter_markers("xdist_group")))


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    if not config.getoption("--update-durations"):
        return
    took: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = _file(report.nodeid)
                took[file] = took.get(file, 0) + report.duration
    durations = json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.exists() else {}
    durations |= {file: round(seconds, 1) for file, seconds in took.items()}
    durations = {
        file: durations[file]
        for file in sorted(durations)
        if durations[file] >= 1 and (TESTS.parent / file).exists()
    }
    DURATIONS.write_text(json.dumps(durations, indent=1) + "\n", encoding="utf-8")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def golden(request: pytest.FixtureRequest, update_golden: bool) -> Golden:
    """Compare a text with a file in `golden/` next to the test."""
    folder = Path(request.path).parent / "golden"

    def compare(name: str, text: str) -> None:
        path = folder / name
        if update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"there is no {path.name}; write it with --update-golden"
        assert text == path.read_text(encoding="utf-8"), "review it with --update-golden"

    return compare


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone to UTC, for texts with local times."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="session")
def torch() -> Any:
    """The module torch, imported by the first test that needs it."""
    return pytest.importorskip("torch", reason="needs torch")


@pytest.hookimpl(trylast=True)  # when the workers of xdist have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A test that leaves a process behind fails the session."""
    if hasattr(session.config, "workerinput"):
        return
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not _left_behind(), seconds=10, every=0.1)
    if processes := _left_behind():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        for pid, command in processes.items():
            reporter.write_line(f"a test left process {pid} behind: {command}", red=True)


def _left_behind() -> dict[int, str]:
    mark = f"{SESSION}={os.environ[SESSION]}".encode()
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and mark in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if "multiprocessing.resource_tracker" not in command:
                    processes[int(folder.name)] = command[:200]
    return processes


# -- jobs -----------------------------------------------------------------------------------


@pytest.fixture
def run_job(tmp_path: Path) -> Runner:
    """Run a command below `headway run` in an empty folder."""
    (tmp_path / "truth").mkdir()

    def run(*command: str, name: str = "job", env: dict[str, str] | None = None) -> Done:
        done = subprocess.run(
            [HEADWAY, "run", "-o", f"runs/{name}", "--", *command],
            cwd=tmp_path,
            env={**os.environ, **quiet_env(tmp_path), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=110,
        )
        truth = {
            path.stem: json.loads(path.read_text())
            for path in sorted((tmp_path / "truth").glob("*.json"))
        }
        return Done(done.returncode, load(tmp_path / "runs" / name), truth, done.stdout)

    return run


@pytest.fixture
def probed(tmp_path: Path) -> Probed:
    """Run a script with the probe; returns the journals of all its processes."""

    def run(
        script: str,
        *,
        python: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        code: int = 0,
    ) -> list[Journal]:
        folder = tmp_path / "journal"
        folder.mkdir(exist_ok=True)
        (tmp_path / "script.py").write_text(script)
        done = subprocess.run(
            [sys.executable, *python, str(tmp_path / "script.py")],
            cwd=tmp_path,
            env=probe_env(folder, **(env or {})),
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == code, done.stderr
        return _whole_journals(folder)

    return run


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A process with the probe that has imported torch, to run scripts in forks of it."""
    if find_spec("torch") is None:  # not imported in this process
        pytest.skip("needs torch")
    server = ForkServer(probe_env(tmp_path_factory.mktemp("fork_server")))
    yield server
    server.close()


@pytest.fixture
def forked(tmp_path: Path, fork_server: ForkServer) -> Probed:
    """Like `probed`, for scripts that do not test the start of Python or the import of torch."""

    def run(script: str, *, env: dict[str, str] | None = None, code: int = 0) -> list[Journal]:
        folder = tmp_path / "journal"
        folder.mkdir(exist_ok=True)
        (tmp_path / "script.py").write_text(script)
        environ = probe_env(folder, **(env or {}))
        ended, stderr = fork_server.run(tmp_path / "script.py", env=environ)
        assert ended == code, stderr
        return _whole_journals(folder)

    return run


def _whole_journals(folder: Path) -> list[Journal]:
    journals, problems = read_journals(str(folder))
    assert not problems
    return journals


# -- checkpoint writers ---------------------------------------------------------------------


@pytest.fixture(scope="session")
def writer_server() -> Iterator[Server]:
    """Forks writers."""
    pytest.importorskip("torch", reason="needs torch")
    from tests.writers import Server

    server = Server()
    yield server
    server.close()


@pytest.fixture
def writers(writer_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Started]]:
    """The writers that were started, as forks that have torch. All end with the test."""
    started: list[Started] = []

    def start(name: str, linger_s: float) -> Started:
        started.append(writer_server.start(name, linger_s))
        return started[-1]

    monkeypatch.setattr("headway.checkpoint.writer.client._start", start)
    yield started
    try:
        wait_until(lambda: all(writer.poll() is not None for writer in started), 10)
    finally:
        for writer in started:
            writer.kill()


# -- torch.save and DCP with `--async-save`, in this process ----------------------------------


@pytest.fixture
def behind(torch: Any) -> Iterator[AsyncSave]:
    """torch.save with `--async-save`."""
    from headway.checkpoint.async_save import torch_save
    from headway.checkpoint.async_save.background import write_queue

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch_save.save(torch.serialization, torch.save, *args, **kwargs)

    yield call
    write_queue.wait("the test")
    write_queue.failed.clear()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """The disk, whose syncs can be blocked."""
    from headway.storage import atomic_file

    disk = Disk()
    monkeypatch.setattr(atomic_file, "sync", disk.sync)
    yield disk
    disk.free.set()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The events that the recorder writes."""
    from headway.probe.recorder import recorder

    events: list[dict[str, Any]] = []

    def emit(ev: str, t: int | None = None, **fields: Any) -> None:
        events.append({"ev": ev, **fields})

    monkeypatch.setattr(recorder, "emit", emit)
    return events


# -- stores ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def store_forks() -> Iterator[ForkServerContext]:
    """Starts processes that have imported the engine of a store."""
    from tests.integration.forks import forks

    with forks() as context:
        yield context


# -- pages ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The fleet for all tests of pages."""
    from tests.unit.serve import fleet

    return fleet.make(tmp_path_factory.mktemp("fleet") / "store")


@pytest.fixture(scope="session")
def source(store: Store) -> Iterator[Source]:
    """A source with one open engine and without a process that watches for changes."""
    from headway.serve.sources import Source
    from tests.unit.serve import fleet

    source = Source(store)
    source.search = fleet.FinishedSearch()
    yield source
    source.close()


@pytest.fixture
def client(source: Source) -> TestClient:
    """A client on this machine, without a token."""
    return pages(source, base_url="http://127.0.0.1:8787")
