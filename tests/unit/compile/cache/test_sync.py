"""Fetching and saving by the launcher: the job never pays for what goes wrong."""

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


class Desk:
    """The launcher's and the job's side of a courier."""

    def __init__(self, store: ArchiveStore, env: dict[str, str], **more: Any) -> None:
        self.said: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.courier = CompileCacheSync(store, "train", "1", self.said.append, env=env, **more)
        self.courier.begin(self.events.append)

    @property
    def text(self) -> str:
        return "\n".join(self.said)

    @property
    def cache(self) -> Path:
        return Path(self.courier.env["TORCHINDUCTOR_CACHE_DIR"])

    def put(self, name: str, told: dict[str, Any]) -> None:
        path = self.courier.folder / "talk" / name
        path.with_suffix(".tmp").write_text(json.dumps(told))
        path.with_suffix(".tmp").rename(path)

    def ask(self, facts: dict[str, Any] = FACTS) -> dict[str, Any]:
        """As the probe does when torch has loaded; the answer."""
        key = host_facts.compile_key(facts)
        self.put(f"want-{key}.json", facts)
        ready = self.courier.folder / "talk" / f"ready-{key}.json"
        wait_until(ready.exists)
        told: dict[str, Any] = json.loads(ready.read_text())
        return told

    def compiled(self, files: dict[str, bytes], seconds: float = 5.0, key: str = KEY) -> None:
        """As when a compile is over."""
        fill(self.cache, files)
        self.put("made-1.json", {"rank": 0, "seconds": seconds, "key": key})

    def close(self) -> None:
        self.courier.close()
        self.courier.end()


@pytest.fixture
def team(tmp_path: Path) -> ArchiveStore:
    return ArchiveStore(str(tmp_path / "store"), signing.HmacKey(b"0123456789abcdef"))


Open = Callable[..., Desk]


@pytest.fixture
def open_desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    made: list[Desk] = []

    def make(store: ArchiveStore, env: dict[str, str] | None = None, **more: Any) -> Desk:
        made.append(Desk(store, env or {}, **more))
        return made[-1]

    yield make
    for desk in made:
        desk.courier.close()


def test_there_and_back(
    team: ArchiveStore, open_desk: Open, tmp_path: Path, golden: Golden
) -> None:
    first = open_desk(team)
    told = first.ask()
    assert told["level"] == "miss"
    first.compiled(FILES)
    first.close()
    assert codes(first.text) == [""]  # no problem, only what was found
    assert [event["what"] for event in first.events] == ["load", "save"]
    assert first.events[1]["files"] == 2 and first.events[1]["cold_s"] == 5.0
    second = open_desk(team)
    told = second.ask()
    assert (told["level"], told["files"], told["cold_s"]) == ("exact", 2, 5.0)
    assert content(second.cache) == FILES
    second.close()
    assert codes(second.text) == [""]
    assert [event["what"] for event in second.events] == ["load"]
    assert list((tmp_path / "tmp").iterdir()) == []
    text = "\n".join([*first.said, *second.said, ""])
    golden("sync.txt", re.sub(r"in \d+\.\d+ s", "in TIME", text))


def test_saved_once_it_is_quiet_and_again_at_the_end(
    team: ArchiveStore, open_desk: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    desk = open_desk(team)
    desk.ask()
    desk.compiled(FILES)
    wait_until(lambda: len(desk.events) == 2)
    desk.compiled({"ab/y.py": b"more"}, seconds=7.0)
    wait_until(lambda: len(desk.events) == 3)
    assert desk.events[2]["files"] == 3
    assert desk.events[2]["cold_s"] == 7.0  # still the same cold start
    fill(desk.cache, {"triton/k.best_config": b"{}"})  # found while the job ran: nobody tells
    desk.close()
    assert desk.events[-1]["files"] == 4
    assert len(team.find(wanted()).manifests) == 1


def test_who_compiles_nothing_saves_nothing(team: ArchiveStore, open_desk: Open) -> None:
    """torchrun's agent has torch too, and may have another environment."""
    desk = open_desk(team)
    agent = FACTS | {"env": {"TORCHINDUCTOR_X": "1"}}
    desk.ask(agent)
    desk.ask()
    desk.compiled(FILES)
    desk.close()
    assert team.find(wanted()).level == "exact"
    assert team.find(CacheKey(facts=agent, job="train")).level == "miss"


def test_what_the_job_is_given(team: ArchiveStore, open_desk: Open, tmp_path: Path) -> None:
    plain = open_desk(team).courier.env
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
    assert open_desk(team, own).courier.env.items() >= own.items()
    alias = {"TORCH_COMPILE_STICKY_PGO_KEY": "night"}
    assert open_desk(team, alias).courier.env["TORCH_COMPILE_JOB_ID"] == "night"


def test_a_folder_of_the_user_stays(team: ArchiveStore, open_desk: Open, tmp_path: Path) -> None:
    fill(tmp_path / "mine", {"old": b"another job's"})
    os.utime(tmp_path / "mine/old", (1e9, 1e9))
    desk = open_desk(team, {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "mine")})
    desk.ask()
    desk.compiled(FILES)
    desk.close()
    assert content(tmp_path / "mine") == {**FILES, "old": b"another job's"}
    (one,) = team.find(wanted()).manifests
    assert {file.path for file in one.files} == set(FILES)


def test_a_folder_of_the_user_that_is_none(
    team: ArchiveStore, open_desk: Open, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        open_desk(team, {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "file")})
    assert list((tmp_path / "tmp").iterdir()) == []


def test_who_asks_late_is_answered_too(
    team: ArchiveStore, open_desk: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STARTING_S", 0.0)
    assert open_desk(team).ask()["level"] == "miss"


@pytest.mark.parametrize("operation", ["entries", "read", "write", "delete"])
@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), RuntimeError("odd"), MemoryError()]
)
def test_a_store_that_fails_costs_the_job_nothing(
    team: ArchiveStore,
    open_desk: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    error: Exception,
) -> None:
    save(team, tree(tmp_path / "a", FILES), now=time.time())

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(team.place, operation, fail)
    desk = open_desk(team)
    level = desk.ask()["level"]
    assert level == ("miss" if operation in ("entries", "read") else "exact")
    desk.compiled({"ab/y.py": b"more"})
    desk.close()
    code = "archive-not-fetched" if level == "miss" else "compile-cache-save-failed"
    (line,) = [line for line in desk.said if codes(line) == [code]]
    assert ("Permission denied" if isinstance(error, OSError) else type(error).__name__) in line
    assert all("\n" not in line for line in desk.said)


def test_a_tampered_archive_is_told_once_and_replaced(
    team: ArchiveStore, open_desk: Open, tmp_path: Path
) -> None:
    save(team, tree(tmp_path / "a", FILES))
    for path in (tmp_path / "store/chunks").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    desk = open_desk(team)
    assert desk.ask()["level"] == "miss"
    assert content(desk.cache) == {}
    desk.compiled(FILES)
    desk.close()
    assert codes(desk.text) == ["compression-damaged"]
    assert desk.events[0]["why"].endswith("[compression-damaged]")
    again = open_desk(team)
    assert again.ask()["level"] == "exact" and content(again.cache) == FILES


def test_what_a_store_says_cannot_reach_the_terminal(team: ArchiveStore, open_desk: Open) -> None:
    told = FACTS | {"torch": "\x1b[2J\nheadway: all is well"}
    team.place.write("machines/x.json", json.dumps(told).encode())
    desk = open_desk(team)
    desk.ask()
    desk.close()
    assert desk.said and all(line.isprintable() for line in desk.said)


def test_a_key_that_only_verifies_saves_nothing(
    team: ArchiveStore, open_desk: Open, tmp_path: Path
) -> None:
    from tests.unit.storage.test_signing import pair

    private, public = map(signing.read_key, pair(tmp_path))
    url = str(tmp_path / "pair")
    save(ArchiveStore(url, private), tree(tmp_path / "a", FILES))
    desk = open_desk(ArchiveStore(url, public))
    assert desk.ask()["level"] == "exact"
    desk.compiled({"new": b"new"})
    desk.close()
    assert codes(desk.text)[1:] == ["compile-cache-key-verify-only"]
    assert len(ArchiveStore(url, public).find(wanted()).manifests[0].files) == 2


def test_an_answer_that_cannot_be_read_frees_those_who_wait(
    team: ArchiveStore, open_desk: Open
) -> None:
    desk = open_desk(team)
    (desk.courier.folder / "talk/want-x.json").write_text("{")
    wait_until(lambda: not locked(desk.courier.folder))
    assert codes(desk.text) == ["compile-cache-stopped"]


def test_a_folder_that_is_taken_away_costs_the_job_nothing(
    team: ArchiveStore, open_desk: Open
) -> None:
    desk = open_desk(team)
    desk.ask()
    (desk.courier.folder / "talk").rename(desk.courier.folder / "gone")
    wait_until(lambda: len(desk.said) == 2)
    desk.close()
    assert codes(desk.text) == ["", "compile-cache-stopped"]
    assert os.strerror(errno.ENOENT) in desk.said[1]


def locked(folder: Path) -> bool:
    """As the probe asks it."""
    with open(folder / "lock", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# -- a slow store -------------------------------------------------------------------------------


class Stall:
    """Nothing is written to the store until it may `go`."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()


@pytest.fixture
def stall(team: ArchiveStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stall]:
    made = Stall()
    write = team.place.write

    def slow(name: str, body: bytes) -> None:
        made.begun.set()
        made.go.wait(30)
        write(name, body)

    monkeypatch.setattr(team.place, "write", slow)
    yield made
    made.go.set()


@pytest.mark.parametrize("told", [True, False])
def test_the_end_is_not_held_up_for_long(
    team: ArchiveStore,
    open_desk: Open,
    stall: Stall,
    monkeypatch: pytest.MonkeyPatch,
    told: bool,
) -> None:
    monkeypatch.setattr(module, "HURRY_S" if told else "CLOSING_S", 0.2)
    desk = open_desk(team)
    desk.ask()
    desk.compiled(FILES)
    desk.courier.close(lambda: told)
    desk.courier.end()
    assert codes(desk.text)[-1] == "compile-cache-save-late"
    assert content(desk.cache) == FILES  # it is in use: not half of it is saved later
    stall.go.set()
    wait_until(lambda: team.find(wanted()).level == "exact")
    assert len(desk.events) == 1  # nothing is written into a journal that is closed


def test_one_attempt_does_not_wait_for_what_another_saves(
    team: ArchiveStore, open_desk: Open, stall: Stall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    desk = open_desk(team)
    desk.ask()
    desk.compiled(FILES)
    assert stall.begun.wait(20)
    desk.courier.end()
    later: list[dict[str, Any]] = []
    desk.courier.begin(later.append)
    stall.go.set()
    wait_until(lambda: later)
    assert [event["what"] for event in desk.events] == ["load"]
    assert [event["what"] for event in later] == ["save"]


def test_what_is_saved_between_two_attempts_is_told_by_the_second(
    team: ArchiveStore, open_desk: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    desk = open_desk(team)
    desk.ask()
    desk.courier.end()
    desk.compiled(FILES)
    wait_until(lambda: team.find(wanted()).level == "exact")
    later: list[dict[str, Any]] = []
    wait_until(lambda: desk.courier._pending_events)
    desk.courier.begin(later.append)
    assert [event["what"] for event in later] == ["save"]


def test_after_an_attempt_half_written_libraries_are_gone(
    team: ArchiveStore, open_desk: Open
) -> None:
    desk = open_desk(team)
    fill(desk.cache, {"ab/half.so": library()[:50], "ab/whole.so": library()})
    desk.courier.end()
    assert set(content(desk.cache)) == {"ab/whole.so"}


# -- what killed launchers leave ----------------------------------------------------------------


def test_folders_of_killed_launchers_are_cleared_away(
    team: ArchiveStore, open_desk: Open, tmp_path: Path
) -> None:
    running = open_desk(team).courier.folder
    left = {name: tmp_path / "tmp" / f"{module.PREFIX}{name}" for name in ("dead", "bare", "new")}
    for path in left.values():
        path.mkdir()
    (left["dead"] / "lock").touch()
    (left["new"] / "lock").touch()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/lock").touch()
    link = tmp_path / "tmp" / f"{module.PREFIX}link"
    link.symlink_to(tmp_path / "precious")
    for path in (running, left["dead"], left["bare"]):
        os.utime(path, (1e9, 1e9))
    open_desk(team)
    assert running.exists() and left["new"].exists() and (tmp_path / "precious/lock").exists()
    assert not left["dead"].exists() and not left["bare"].exists()


def test_code_that_nobody_can_tell_is_not_the_same(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path / "s"))
    nobody = wanted(code=code_digest(["python", "-m", "not.there"]))
    save(store, tree(tmp_path / "a", FILES), nobody)
    found = store.find(nobody)
    assert (found.level, found.reason.code) == ("job", "code-unknown")


@pytest.mark.parametrize(
    ("env", "told"),
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
def test_who_wants_no_cache_gets_none(env: dict[str, str], told: str) -> None:
    assert disabling_setting(env) == told
