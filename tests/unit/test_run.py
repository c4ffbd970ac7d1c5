"""Loading a run, also one recorded with secrets by an older version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headway
from headway.errors import NewerSchema, NotARun, RunNotFound
from headway.journal.run_files import read_command, write_command
from headway.redact import MASK
from headway.report.html import page
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


SECRET = "hunter2correcthorse"
COMMAND = ["train", "--api-key", SECRET, f"s3://key:{SECRET}@bucket/data"]


def _recorded(folder: Path) -> Path:
    """As a version without masking has written it."""
    job = FakeRun()
    launcher = job.launcher(0)
    launcher.lines[-1]["command"] = COMMAND
    rank = job.process(0)
    rank.train(1, 50, 2.0, 0.1)
    rank.span("checkpoint_save", 7.0, 7.5, path=f"s3://key:{SECRET}@bucket/ckpt", step=50)
    rank.event("error", 8, type="RuntimeError", message=f"refused token={SECRET}")
    rank.exit(8.5)
    launcher.exit(9, code=1)
    job.write(folder)
    for made in job.journals:
        lines = "".join(json.dumps(line) + "\n" for line in made.lines)
        (folder / "journal" / f"{made.name}.jsonl").write_text(lines)
    identity = {"schema": 1, "run": "fake", "command": COMMAND, "labels": {"token": SECRET}}
    (folder / "run.json").write_text(json.dumps(identity))
    return folder


def test_a_run_that_was_recorded_with_secrets_is_shown_without(tmp_path: Path) -> None:
    run = headway.load(_recorded(tmp_path))
    assert run.ledger.command == ("train", "--api-key", MASK, f"s3://key:{MASK}@bucket/data")
    assert run.ledger.failures[0].evidence.endswith(f"token={MASK}")
    assert run.ledger.metadata["labels"] == {"token": MASK}
    assert SECRET not in json.dumps(run.to_dict()) + page(run.ledger) + repr(run.ledger)


def test_the_exact_command_is_read_where_it_may_be(tmp_path: Path) -> None:
    assert read_command(tmp_path) == []
    (tmp_path / "run.json").write_text(json.dumps({"command": ["train", MASK]}))
    assert read_command(tmp_path) == ["train", MASK]
    write_command(tmp_path, COMMAND)
    assert read_command(tmp_path) == COMMAND
    assert (tmp_path / "command.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "command.json").write_text("torn")
    assert read_command(tmp_path) == ["train", MASK]
