"""Fetch and save in the launcher: problems never affect the job."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.compile.cache import sync as module
from headway.compile.cache.archive import ArchiveStore
from headway.compile.cache.keys import CacheKey, code_digest
from headway.compile.cache.sync import CompileCacheSync, disabling_setting
from headway.probe import host_facts
from headway.storage import signing
from tests.support import Golden, codes, wait_until
from tests.unit.compile.cache.sample_archives import (
    FACTS,
    content,
    fill,
    library,
    save,
    tree,
    wanted,
)

FILES = {"ab/x.so": library(), "ab/x.py": b"print()"}
KEY = host_facts.compile_key(FACTS)


class Bench:
    """The launcher's and the job's side of a CompileCacheSync."""

    def __init__(self, store: ArchiveStore, env: dict[str, str], **more: Any) -> None:
        self.lines: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.sync = CompileCacheSync(store, "train", "1", self.lines.append, env=env, **more)
        self.sync.begin(self.events.append)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def cache(self) -> Path:
        return Path(self.sync.env["TORCHINDUCTOR_CACHE_DIR"])

    def put(self, name: str, answer: dict[str, Any]) -> None:
        path = self.sync.folder / "talk" / name
        path.with_suffix(".tmp").write_text(json.dumps(answer))
        path.with_suffix(".tmp").rename(path)

    def ask(self, facts: dict[str, Any] = FACTS) -> dict[str, Any]:
        """Send a request as the probe does once torch is imported; returns the answer."""
        key = host_facts.compile_key(facts)
        self.put(f"want-{key}.json", facts)
        ready = self.sync.folder / "talk" / f"ready-{key}.json"
        wait_until(ready.exists)
        answer: dict[str, Any] = json.loads(ready.read_text())
        return answer

    def compiled(self, files: dict[str, bytes], seconds: float = 5.0, key: str = KEY) -> None:
        """Write files and report a compile as the probe does."""
        fill(self.cache, files)
        self.put("made-1.json", {"rank": 0, "seconds": seconds, "key": key})

    def close(self) -> None:
        self.sync.close()
        self.sync.end()


@pytest.fixture
def team(tmp_path: Path) -> ArchiveStore:
    return ArchiveStore(str(tmp_path / "store"), signing.HmacKey(b"0123456789abcdef"))


Open = Callable[..., Bench]


@pytest.fixture
def open_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    benches: list[Bench] = []

    def make(store: ArchiveStore, env: dict[str, str] | None = None, **more: Any) -> Bench:
        benches.append(Bench(store, env or {}, **more))
        return benches[-1]

    yield make
    for bench in benches:
        bench.sync.close()


def test_there_and_back(
    team: ArchiveStore, open_bench: Open, tmp_path: Path, golden: Golden
) -> None:
    first = open_bench(team)
    answer = first.ask()
    assert answer["level"] == "miss"
    first.compiled(FILES)
    first.close()
    assert codes(first.text) == [""]  # no problem, only what was found
    assert [event["what"] for event in first.events] == ["load", "save"]
    assert first.events[1]["files"] == 2 and first.events[1]["cold_s"] == 5.0
    second = open_bench(team)
    answer = second.ask()
    assert (answer["level"], answer["files"], answer["cold_s"]) == ("exact", 2, 5.0)
    assert content(second.cache) == FILES
    second.close()
    assert codes(second.text) == [""]
    assert [event["what"] for event in second.events] == ["load"]
    assert list((tmp_path / "tmp").iterdir()) == []
    text = "\n".join([*first.lines, *second.lines, ""])
    golden("sync.txt", re.sub(r"in \d+\.\d+ s", "in TIME", text))


def test_saved_once_it_is_quiet_and_again_at_the_end(
    team: ArchiveStore, open_bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    bench = open_bench(team)
    bench.ask()
    bench.compiled(FILES)
    wait_until(lambda: len(bench.events) == 2)
    bench.compiled({"ab/y.py": b"more"}, seconds=7.0)
    wait_until(lambda: len(bench.events) == 3)
    assert bench.events[2]["files"] == 3
    assert bench.events[2]["cold_s"] == 7.0  # still the same cold start
    fill(bench.cache, {"triton/k.best_config": b"{}"})  # found while the job ran: nobody tells
    bench.close()
    assert bench.events[-1]["files"] == 4
    assert len(team.find(wanted()).manifests) == 1


def test_who_compiles_nothing_saves_nothing(team: ArchiveStore, open_bench: Open) -> None:
    """torchrun's agent also imports torch, possibly with another environment."""
    bench = open_bench(team)
    agent = FACTS | {"env": {"TORCHINDUCTOR_X": "1"}}
    bench.ask(agent)
    bench.ask()
    bench.compiled(FILES)
    bench.close()
    assert team.find(wanted()).level == "exact"
    assert team.find(CacheKey(facts=agent, job="train")).level == "miss"


def test_what_the_job_is_given(team: ArchiveStore, open_bench: Open, tmp_path: Path) -> None:
    plain = open_bench(team).sync.env
    folder = plain["HEADWAY_COMPILE"]
    assert plain == {
        "HEADWAY_COMPILE": folder,
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache",
        "TRITON_CACHE_DIR": f"{folder}/cache/triton",
        "TORCH_COMPILE_JOB_ID": "train",
    }
    assert os.stat(folder).st_mode & 0o777 == 0o700
    own = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "mine"),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "TORCH_COMPILE_JOB_ID": "night",
    }
    assert open_bench(team, own).sync.env.items() >= own.items()
    alias = {"TORCH_COMPILE_STICKY_PGO_KEY": "night"}
    assert open_bench(team, alias).sync.env["TORCH_COMPILE_JOB_ID"] == "night"


def test_a_folder_of_the_user_stays(team: ArchiveStore, open_bench: Open, tmp_path: Path) -> None:
    fill(tmp_path / "mine", {"old": b"another job's"})
    os.utime(tmp_path / "mine/old", (1e9, 1e9))
    bench = open_bench(team, {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "mine")})
    bench.ask()
    bench.compiled(FILES)
    bench.close()
    assert content(tmp_path / "mine") == {**FILES, "old": b"another job's"}
    (archive,) = team.find(wanted()).manifests
    assert {file.path for file in archive.files} == set(FILES)


def test_a_folder_of_the_user_that_is_none(
    team: ArchiveStore, open_bench: Open, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        open_bench(team, {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "file")})
    assert list((tmp_path / "tmp").iterdir()) == []


def test_who_asks_late_is_answered_too(
    team: ArchiveStore, open_bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STARTING_S", 0.0)
    assert open_bench(team).ask()["level"] == "miss"


@pytest.mark.parametrize("operation", ["entries", "read", "write", "delete"])
@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), RuntimeError("odd"), MemoryError()]
)
def test_a_store_that_fails_costs_the_job_nothing(
    team: ArchiveStore,
    open_bench: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    error: Exception,
) -> None:
    save(team, tree(tmp_path / "a", FILES), now=time.time())

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(team.place, operation, fail)
    bench = open_bench(team)
    level = bench.ask()["level"]
    assert level == ("miss" if operation in ("entries", "read") else "exact")
    bench.compiled({"ab/y.py": b"more"})
    bench.close()
    code = "archive-not-fetched" if level == "miss" else "compile-cache-save-failed"
    (line,) = [line for line in bench.lines if codes(line) == [code]]
    assert ("Permission denied" if isinstance(error, OSError) else type(error).__name__) in line
    assert all("\n" not in line for line in bench.lines)


def test_a_tampered_archive_is_told_once_and_replaced(
    team: ArchiveStore, open_bench: Open, tmp_path: Path
) -> None:
    save(team, tree(tmp_path / "a", FILES))
    for path in (tmp_path / "store/chunks").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    bench = open_bench(team)
    assert bench.ask()["level"] == "miss"
    assert content(bench.cache) == {}
    bench.compiled(FILES)
    bench.close()
    assert codes(bench.text) == ["compression-damaged"]
    assert bench.events[0]["why"].endswith("[compression-damaged]")
    again = open_bench(team)
    assert again.ask()["level"] == "exact" and content(again.cache) == FILES


def test_what_a_store_says_cannot_reach_the_terminal(team: ArchiveStore, open_bench: Open) -> None:
    facts = FACTS | {"torch": "\x1b[2J\nheadway: all is well"}
    team.place.write("machines/x.json", json.dumps(facts).encode())
    bench = open_bench(team)
    bench.ask()
    bench.close()
    assert bench.lines and all(line.isprintable() for line in bench.lines)


def test_a_key_that_only_verifies_saves_nothing(
    team: ArchiveStore, open_bench: Open, tmp_path: Path
) -> None:
    from tests.unit.storage.test_signing import pair

    private, public = map(signing.read_key, pair(tmp_path))
    url = str(tmp_path / "pair")
    save(ArchiveStore(url, private), tree(tmp_path / "a", FILES))
    bench = open_bench(ArchiveStore(url, public))
    assert bench.ask()["level"] == "exact"
    bench.compiled({"new": b"new"})
    bench.close()
    assert codes(bench.text)[1:] == ["compile-cache-key-verify-only"]
    assert len(ArchiveStore(url, public).find(wanted()).manifests[0].files) == 2


def test_an_answer_that_cannot_be_read_frees_those_who_wait(
    team: ArchiveStore, open_bench: Open
) -> None:
    bench = open_bench(team)
    (bench.sync.folder / "talk/want-x.json").write_text("{")
    wait_until(lambda: not locked(bench.sync.folder))
    assert codes(bench.text) == ["compile-cache-stopped"]


def test_a_folder_that_is_taken_away_costs_the_job_nothing(
    team: ArchiveStore, open_bench: Open
) -> None:
    bench = open_bench(team)
    bench.ask()
    (bench.sync.folder / "talk").rename(bench.sync.folder / "gone")
    wait_until(lambda: len(bench.lines) == 2)
    bench.close()
    assert codes(bench.text) == ["", "compile-cache-stopped"]
    assert os.strerror(errno.ENOENT) in bench.lines[1]


def locked(folder: Path) -> bool:
    """The check that the probe uses."""
    with open(folder / "lock", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# -- a slow store -------------------------------------------------------------------------------


class Stall:
    """Writes to the store wait until `go` is set."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()


@pytest.fixture
def stall(team: ArchiveStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stall]:
    gate = Stall()
    write = team.place.write

    def slow(name: str, body: bytes) -> None:
        gate.begun.set()
        gate.go.wait(30)
        write(name, body)

    monkeypatch.setattr(team.place, "write", slow)
    yield gate
    gate.go.set()


@pytest.mark.parametrize("stopping", [True, False])
def test_the_end_is_not_held_up_for_long(
    team: ArchiveStore,
    open_bench: Open,
    stall: Stall,
    monkeypatch: pytest.MonkeyPatch,
    stopping: bool,
) -> None:
    monkeypatch.setattr(module, "HURRY_S" if stopping else "CLOSING_S", 0.2)
    bench = open_bench(team)
    bench.ask()
    bench.compiled(FILES)
    bench.sync.close(lambda: stopping)
    bench.sync.end()
    assert codes(bench.text)[-1] == "compile-cache-save-late"
    assert content(bench.cache) == FILES  # it is in use: not half of it is saved later
    stall.go.set()
    wait_until(lambda: team.find(wanted()).level == "exact")
    assert len(bench.events) == 1  # nothing is written into a journal that is closed


def test_one_attempt_does_not_wait_for_what_another_saves(
    team: ArchiveStore, open_bench: Open, stall: Stall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    bench = open_bench(team)
    bench.ask()
    bench.compiled(FILES)
    assert stall.begun.wait(20)
    bench.sync.end()
    later: list[dict[str, Any]] = []
    bench.sync.begin(later.append)
    stall.go.set()
    wait_until(lambda: later)
    assert [event["what"] for event in bench.events] == ["load"]
    assert [event["what"] for event in later] == ["save"]


def test_what_is_saved_between_two_attempts_is_told_by_the_second(
    team: ArchiveStore, open_bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    bench = open_bench(team)
    bench.ask()
    bench.sync.end()
    bench.compiled(FILES)
    wait_until(lambda: team.find(wanted()).level == "exact")
    later: list[dict[str, Any]] = []
    wait_until(lambda: bench.sync._pending_events)
    bench.sync.begin(later.append)
    assert [event["what"] for event in later] == ["save"]


def test_after_an_attempt_half_written_libraries_are_gone(
    team: ArchiveStore, open_bench: Open
) -> None:
    bench = open_bench(team)
    fill(bench.cache, {"ab/half.so": library()[:50], "ab/whole.so": library()})
    bench.sync.end()
    assert set(content(bench.cache)) == {"ab/whole.so"}


# -- what killed launchers leave ----------------------------------------------------------------


def test_folders_of_killed_launchers_are_cleared_away(
    team: ArchiveStore, open_bench: Open, tmp_path: Path
) -> None:
    running = open_bench(team).sync.folder
    folders = {
        name: tmp_path / "tmp" / f"{module.PREFIX}{name}" for name in ("dead", "bare", "new")
    }
    for path in folders.values():
        path.mkdir()
    (folders["dead"] / "lock").touch()
    (folders["new"] / "lock").touch()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/lock").touch()
    link = tmp_path / "tmp" / f"{module.PREFIX}link"
    link.symlink_to(tmp_path / "precious")
    for path in (running, folders["dead"], folders["bare"]):
        os.utime(path, (1e9, 1e9))
    open_bench(team)
    assert running.exists() and folders["new"].exists() and (tmp_path / "precious/lock").exists()
    assert not folders["dead"].exists() and not folders["bare"].exists()


def test_code_that_nobody_can_tell_is_not_the_same(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path / "s"))
    nobody = wanted(code=code_digest(["python", "-m", "not.there"]))
    save(store, tree(tmp_path / "a", FILES), nobody)
    lookup = store.find(nobody)
    assert (lookup.level, lookup.reason.code) == ("job", "code-unknown")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, ""),
        ({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0"}, ""),
        (
            {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES=1",
        ),
        (
            {"TORCH_COMPILE_FORCE_DISABLE_CACHES": "1"},
            "TORCH_COMPILE_FORCE_DISABLE_CACHES=1",
        ),
        ({"TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}, "TORCHINDUCTOR_FX_GRAPH_CACHE=0"),
    ],
)
def test_who_wants_no_cache_gets_none(env: dict[str, str], expected: str) -> None:
    assert disabling_setting(env) == expected
