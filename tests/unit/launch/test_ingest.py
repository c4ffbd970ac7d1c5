"""A run is written to its store while it goes on, and whatever happens there stays there."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from headway.cli import run as cli
from headway.fleet.store import Store
from headway.launch import ingest
from headway.launch.ingest import Ingester
from headway.launch.target import Target
from headway.settings import Settings
from headway.testing import FakeRun

from ..fleet.made import content

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that goes on."""
    job = FakeRun()
    job.launcher(begin=0)
    job.process(begin=1).train(first=1, count=20, start=5, each=0.5)
    return job.write(tmp_path / "run")


def test_the_end_is_written(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    one = Ingester(folder, str(tmp_path / "store"), said.append)
    one.start()
    one.finish()
    assert said == [] and one.pids() == set()
    assert content(Store(str(tmp_path / "store")), "attempts", "attempt") == [(0,)]


def test_it_is_written_while_it_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "LOOK_S", 0.02)
    monkeypatch.setattr(ingest, "EVERY_S", 0.0)
    written = threading.Event()
    write = Ingester._write

    def seen(self: Ingester, limit: float) -> str:
        fault = write(self, limit)
        written.set()
        return fault

    monkeypatch.setattr(Ingester, "_write", seen)
    one = Ingester(folder, str(tmp_path / "store"), print)
    one.start()
    assert written.wait(100)
    assert len(content(Store(one.url), "runs", "run_id")) == 1
    one.finish()


def test_a_new_attempt_is_a_reason_to_write(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "LOOK_S", 0.02)
    monkeypatch.setattr(ingest, "SOON_S", 0.0)
    written = threading.Event()
    monkeypatch.setattr(Ingester, "_write", lambda self, limit: written.set() or "")
    one = Ingester(folder, str(tmp_path / "store"), print)
    one.start()
    assert not written.wait(0.3)
    (folder / "journal" / "node0-7-7.jsonl").write_text("")
    assert written.wait(100)
    one.finish()


def test_a_store_that_fails_is_two_sentences(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One while it goes on, however often it was tried, and one at the end."""
    monkeypatch.setattr(ingest, "LOOK_S", 0.02)
    monkeypatch.setattr(ingest, "EVERY_S", 0.0)
    monkeypatch.setattr(ingest, "SPARE", 0)
    (tmp_path / "store").write_text("not a folder")
    said: list[str] = []
    one = Ingester(folder, str(tmp_path / "store"), said.append)
    one.start()
    while not said:
        time.sleep(0.02)
    one.finish()
    assert len(said) == 2
    assert said[0].endswith("store is a file; a store is a folder or a URL; tried again later")
    assert f"later: headway ingest {folder} --store {one.url}" in said[1]


def test_the_end_does_not_wait_for_a_write_that_hangs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 1000\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(ingest.sys, "executable", str(sleeper))
    monkeypatch.setattr(ingest, "LOOK_S", 0.02)
    monkeypatch.setattr(ingest, "EVERY_S", 0.0)
    monkeypatch.setattr(ingest, "HURRY_S", 0.1)
    said: list[str] = []
    one = Ingester(folder, str(tmp_path / "store"), said.append)
    one.start()
    while not one.pids():
        time.sleep(0.02)
    (pid,) = one.pids()
    one.finish()
    assert not os.path.exists(f"/proc/{pid}")
    assert len(said) == 1 and "took more than 0 s" in said[0]


def test_without_the_package_the_job_runs_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    where = Target(run="r", folder=folder, url=None, launch="L0", index=0)
    assert cli._ingester(Settings(store="s"), where) is None
    assert capsys.readouterr().err == (
        "headway: the run will not be in the store: a store needs pyarrow; "
        "type: pip install 'headway[fleet]'\n"
    )
