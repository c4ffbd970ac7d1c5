"""The two runs of a publish, each with what it says of the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.journal import run_files as notes
from headway.ledger import publish
from headway.run import load
from headway.units import NS
from tests.unit.report.ledgers import Line, ledger_of

NOTE = {"run": "t-publish", "folder": "/r/t-publish", "anchor": "/a", "store": "/s"}


def test_a_note_in_every_state() -> None:
    assert publish.publish_from_note({}) is None
    begun = publish.publish_from_note({**NOTE, "log": "/r/t/publish.log"})
    assert begun is not None and begun.took is None and begun.log == "/r/t/publish.log"
    done = publish.publish_from_note({**NOTE, "snapshot": "1-a", "seconds": 2.5, "error": ""})
    assert done is not None and (done.took, done.snapshot) == (2.5 * NS, "1-a")


@pytest.mark.parametrize("seconds", ["2", None, float("nan"), -1, True, 1e12])
def test_what_is_no_number_is_not_known(seconds: Any) -> None:
    found = publish.publish_from_note({**NOTE, "seconds": seconds})
    assert found is not None and found.took is None


def test_what_it_cost_and_would_have_cost() -> None:
    line = Line().add("start.launcher_init", 5).add("train.effective", 10)
    line.add("waste.checkpoint_block", 1).add("stop.shutdown", 0.5)
    found = publish.publish_from_note({**NOTE, "seconds": 30, "snapshot": "1-a"})
    ledger = ledger_of(line, published_by=found, steps=3)
    told = ledger.to_dict()["publish"]
    assert told["accelerators"] == 1 and told["seconds"] == 30
    assert (told["would_cost_s"], told["did_cost_s"]) == (30, 1.5)
    assert told["error"] is None and "publishes" not in ledger.to_dict()


def test_a_run_that_never_trained_paid_nothing() -> None:
    assert publish.time_after_training(ledger_of(Line().add("start.launcher_init", 5))) == 0


def written(folder: Path, *events: dict[str, Any]) -> None:
    head = {"ev": "head", "schema": 1, "t": 0, "begin": 0, "boot": "b", "host": "h"}
    head |= {"wall": 10**18, "pid": 7, "launch": "l"}
    journal = folder / "journal"
    journal.mkdir(parents=True)
    launcher = [{**head, "role": "launcher"}, {"ev": "spawn", "t": 0, "pid": 8, "command": ["x"]}]
    launcher.append({"ev": "exit", "t": 20 * NS, "code": 0})
    for name, lines in (
        ("launcher-l", launcher),
        ("h-8-0", [{**head, "role": "process"}, *events]),
    ):
        path = journal / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_publish_is_a_run_that_names_its_training(tmp_path: Path) -> None:
    event = {"ev": "published", "t": 15 * NS, "seconds": 12.0, "snapshot": "1-a", "error": ""}
    written(
        tmp_path,
        {"ev": "span", "t": 3 * NS, "end": 15 * NS, "name": "publish", "th": 0},
        {**event, "anchor": "/a", "store": "/s", "run": "t", "ledger": "/r/t"},
        {"ev": "exit", "t": 20 * NS},
    )
    told = load(tmp_path).to_dict()
    assert told["publishes"]["run"] == "t" and told["publishes"]["folder"] == "/r/t"
    assert told["buckets"]["stop.publish"] == 12.0 and told["publishes"]["seconds"] == 12.0


def test_the_note_of_a_training_is_in_its_ledger(tmp_path: Path) -> None:
    written(tmp_path, {"ev": "exit", "t": 20 * NS})
    assert "publish" not in load(tmp_path).to_dict()
    notes.write_publish_note(tmp_path, {**NOTE, "error": "too large"})
    assert load(tmp_path).to_dict()["publish"]["error"] == "too large"
    (tmp_path / "publish.json").write_text("[")
    assert "publish" not in load(tmp_path).to_dict()
