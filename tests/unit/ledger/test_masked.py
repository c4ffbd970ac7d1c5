"""Journals and run.json of older versions hold secrets; a loaded run does not show them."""

from __future__ import annotations

import json
from pathlib import Path

import headway
from headway.journal.folder import read_command, write_command
from headway.redact import MASK
from headway.report.html import page
from headway.testing import FakeRun

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
    assert run.ledger.facts["labels"] == {"token": MASK}
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
