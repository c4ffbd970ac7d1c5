"""When a run is written to its store; by which processes: tests/integration/test_ingest.py."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headway.fleet import ingest_worker
from headway.fleet.ingest_worker import StoreIngest
from headway.launch.run_folder import RunFolder
from headway.session import session as cli
from headway.settings import Settings
from tests.support import unfinished_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return unfinished_run(tmp_path / "run")


def test_a_new_attempt_is_a_reason_to_write(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_worker, "POLL_S", 0.02)
    monkeypatch.setattr(ingest_worker, "MIN_GAP_S", 0.0)
    written = threading.Event()
    monkeypatch.setattr(StoreIngest, "_write", lambda self, limit: written.set() or "")
    ingest = StoreIngest(folder, str(tmp_path / "store"), print)
    ingest.start()
    assert not written.wait(0.1)
    (folder / "journal" / "node0-7-7.jsonl").write_text("")
    assert written.wait(100)
    ingest.finish()


def test_without_the_package_the_job_runs_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    where = RunFolder(run="r", folder=folder, url=None, launch="L0", index=0)
    assert cli._store_ingest(Settings(store="s"), where) is None
    assert capsys.readouterr().err.endswith(" [missing-package]\n")
