"""Journals of real jobs: what is read from them today is what was read when they were recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headway.journal.run_files import JOURNAL
from headway.journal.writer import SCHEMA
from headway.ledger.buckets import BUCKETS
from headway.report.html import page
from headway.settings import read_toml
from tests.journals.recorded import FOLDER, NAMES, load, rendered, unpack
from tests.journals.scenarios import SCENARIOS

each = pytest.mark.parametrize("name", NAMES)
# Folders that recordings may name (`__w` is where torch was built): others are those of a machine.
NEUTRAL = {"job", "opt", "usr", "dev", "proc", "bin", "lib", "__w"}


@each
def test_ledger_and_texts_are_as_recorded(name: str, request: pytest.FixtureRequest) -> None:
    for file, content in rendered(name).items():
        golden = FOLDER / name / file
        if request.config.getoption("--update-golden"):
            golden.write_text(content, encoding="utf-8")
        assert content == golden.read_text(encoding="utf-8"), f"{file} of {name}"


@each
def test_every_second_is_in_one_bucket(name: str) -> None:
    ledger = load(name).ledger
    assert sum(ledger.buckets.values()) == ledger.wall > 0
    for rank in ledger.ranks:
        assert sum(rank.buckets.values()) == ledger.wall
    assert not [note for note in ledger.notes if "hook-off" in note or "switched off" in note]


@each
def test_the_page_has_the_same_data(name: str) -> None:
    text = page(load(name).ledger)
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    data = json.loads(found)
    expected = json.loads((FOLDER / name / "expected.json").read_text())
    tick: int = data["tick"]
    assert data["wall"] == round(expected["wall_s"] * 1e9) and data["floor"] == 0
    accounts = [expected["buckets"], *(rank["buckets"] for rank in expected["per_rank"])]
    assert len(data["tracks"]) == len(accounts)
    for track, buckets in zip(data["tracks"], accounts, strict=True):
        pieces = re.findall(r"([A-Za-z])(\d+)", track)
        for letter, leaf in zip(data["letters"], BUCKETS, strict=False):
            drawn = sum(int(length) for own, length in pieces if own == letter) * tick
            assert abs(drawn - buckets.get(leaf, 0) * 1e9) <= tick * (len(pieces) + 1), leaf
    attempts = [[a["index"], a["outcome"], a["first_step"], a["last_step"]]
                for a in expected["attempts"]]  # fmt: skip
    assert [[one[0], *one[3:]] for one in data["attempts"]] == attempts
    failures = [[f["attempt"], f["root_rank"], f["category"]] for f in expected["failures"]]
    assert [one[1:4] for one in data["failures"]] == failures


def paths(value: Any) -> set[str]:
    """The first folder of each absolute path in a text."""
    return set(re.findall(r"(?<![\w./:<\]-])/(\w[\w.-]*)/[\w.]", value))


@each
def test_it_tells_nothing_of_the_machine_that_recorded_it(name: str, tmp_path: Path) -> None:
    folder = unpack(name, tmp_path)
    journals = sorted((folder / JOURNAL).glob("*.jsonl"))
    for path in (*journals, *folder.glob("*.json"), *(FOLDER / name).glob("*.t*")):
        assert not paths(path.read_text()) - NEUTRAL, path.name
    heads = [json.loads(path.read_text().split("\n")[0]) for path in journals]
    assert {head["host"] for head in heads} <= {"node-0", "node-1"}
    assert {head["boot"] for head in heads} == {"00000000-0000-4000-8000-000000000000"}


@each
def test_it_says_what_made_it(name: str) -> None:
    about = read_toml(FOLDER / name / "about.toml")
    assert about["what"] and about["commands"] and about["versions"]["torch"]
    assert re.fullmatch(r"[0-9a-f]{7,}", about["commit"])


def test_there_is_a_recording_of_each_job_and_schema() -> None:
    assert sorted(name for scenario in SCENARIOS for name in scenario.about) == NAMES
    schemas = {read_toml(FOLDER / name / "about.toml")["schema"] for name in NAMES}
    assert schemas == set(range(1, SCHEMA + 1))


def test_they_are_small() -> None:
    sizes = {
        name: sum(path.stat().st_size for path in (FOLDER / name).rglob("*") if path.is_file())
        for name in NAMES
    }
    assert max(sizes.values()) < 200_000 and sum(sizes.values()) < 3_000_000, sizes
