"""A run is written to its store by separate processes, whose failures do not affect the job."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from headway.fleet import ingest_worker
from headway.fleet.ingest_worker import StoreIngest
from headway.fleet.store.parquet import Store
from headway.launch import processes
from tests.support import unfinished_run, wait_until
from tests.unit.fleet.store_rows import content


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return unfinished_run(tmp_path / "run")


def test_the_end_is_written(folder: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    ingest = StoreIngest(folder, str(tmp_path / "store"), lines.append)
    ingest.start()
    ingest.finish()
    assert lines == [] and not processes._helpers
    assert content(Store(str(tmp_path / "store")), "attempts", "attempt") == [(0,)]


def test_it_is_written_while_it_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_worker, "POLL_S", 0.02)
    monkeypatch.setattr(ingest_worker, "EVERY_S", 0.0)
    written = threading.Event()
    write = StoreIngest._write

    def seen(self: StoreIngest, limit: float) -> str:
        fault = write(self, limit)
        written.set()
        return fault

    monkeypatch.setattr(StoreIngest, "_write", seen)
    ingest = StoreIngest(folder, str(tmp_path / "store"), print)
    ingest.start()
    assert written.wait(100)
    assert len(content(Store(ingest.url), "runs", "run_id")) == 1
    ingest.finish()


def test_a_store_that_fails_is_two_sentences(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One during the run, however often it was tried, and one at the end."""
    monkeypatch.setattr(ingest_worker, "POLL_S", 0.02)
    monkeypatch.setattr(ingest_worker, "EVERY_S", 0.0)
    monkeypatch.setattr(ingest_worker, "MIN_IDLE_RATIO", 0)
    (tmp_path / "store").write_text("not a folder")
    lines: list[str] = []
    ingest = StoreIngest(folder, str(tmp_path / "store"), lines.append)
    ingest.start()
    wait_until(lambda: lines)
    ingest.finish()
    assert [line.rpartition(" ")[2] for line in lines] == [
        "[store-write-failed]",
        "[run-not-in-store]",
    ]
    assert f"headway ingest {folder} --store {ingest.url}" in lines[1]


def test_the_end_does_not_wait_for_a_write_that_hangs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 1000\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(ingest_worker.sys, "executable", str(sleeper))
    monkeypatch.setattr(ingest_worker, "POLL_S", 0.02)
    monkeypatch.setattr(ingest_worker, "EVERY_S", 0.0)
    monkeypatch.setattr(ingest_worker, "FINAL_WRITE_LIMIT_S", 0.1)
    lines: list[str] = []
    ingest = StoreIngest(folder, str(tmp_path / "store"), lines.append)
    ingest.start()
    (pid,) = wait_until(lambda: processes._helpers.copy())
    ingest.finish()
    assert not os.path.exists(f"/proc/{pid}")
    (line,) = lines
    assert line.endswith("[run-not-in-store]")
