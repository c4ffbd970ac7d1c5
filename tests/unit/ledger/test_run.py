from __future__ import annotations

from pathlib import Path

import pytest

import headway
from headway.errors import NewerSchema, NotARun, RunNotFound
from headway.testing import FakeRun
from tests.support import has_code


def written(folder: Path) -> Path:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 15, 5, 1)
    rank.exit(20)
    launcher.exit(20, code=0)
    return job.write(folder)


def test_a_run_has_its_name_and_its_ledger(tmp_path: Path) -> None:
    run = headway.load(written(tmp_path))
    assert (run.name, run.path, run.ett_percent) == ("fake", tmp_path, 75.0)
    assert repr(run) == "<Run fake: ETT 75.0 % of 20.0 s>"
    assert run.to_dict()["steps"] == 15


def test_without_run_json_the_folder_names_it(tmp_path: Path) -> None:
    folder = written(tmp_path / "mine")
    (folder / "run.json").write_text("{torn")
    run = headway.load(folder)
    assert run.name == "mine"
    assert "run.json is missing or damaged" in run.ledger.notes


def test_segments_as_a_frame(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    frame = headway.load(written(tmp_path)).to_pandas()
    assert set(frame["rank"]) == {"run", "0"}
    assert frame.groupby("rank")["seconds"].sum().to_dict() == {"run": 20.0, "0": 20.0}


def test_no_run_there(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, check=has_code("run-not-found")):
        headway.load(tmp_path / "none")


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(NotARun, check=has_code("not-a-run")):
        headway.load(tmp_path)


def test_a_journal_of_a_newer_schema(tmp_path: Path) -> None:
    folder = written(tmp_path)
    path = folder / "journal" / "launcher-L0.jsonl"
    path.write_text(path.read_text().replace('"schema":1', '"schema":2'))
    with pytest.raises(NewerSchema, check=has_code("newer-schema")):
        headway.load(folder)
