"""`headway ingest FILE...`, into a store."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from headway.cli import main
from headway.fleet import importers
from headway.fleet.importers.record import AttemptRecord, RunRecord
from headway.fleet.store.parquet import Store
from tests.support import Golden
from tests.unit.fleet.importers.ledgers import SAMPLES
from tests.unit.fleet.store_rows import content, contents

pytestmark = pytest.mark.timeout(60)


def test_files_of_several_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    files = [str(SAMPLES / name) for name in ("sacct_D.psv", "ml_goodput.jsonl")]
    url = str(tmp_path / "store")
    for _ in range(2):  # twice is once
        assert main(["ingest", *files, "--store", url, "--label", "project=night"]) == 0
    golden("ingest.txt", capsys.readouterr().out.replace(url, "STORE"))
    rows = contents(Store(url), runs="run attempts project queue_capacity_s", attempts="outcome")
    assert ("train_low-1", 2, "night", 0.0) in rows["runs"] and len(rows["runs"]) == 9
    assert rows["attempts"].count(("preempted",)) == 2 and len(rows["attempts"]) == 11
    assert main(["fleet", "ett", "--store", url, "--by", "team", "--csv"]) == 0
    assert "team_a" in capsys.readouterr().out


def test_a_folder_and_the_name_of_its_reader(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    assert (
        main(["ingest", str(SAMPLES / "torchtitan"), "--reader", "torchtitan", "--store", url]) == 0
    )
    rows = contents(Store(url), runs="run_id", attempts="attempt", nodes="host")
    assert [len(rows[name]) for name in ("runs", "attempts", "nodes")] == [1, 2, 2]


def test_a_reader_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ModuleType("own_reader")
    life = AttemptRecord(start=1.0, end=11.0, outcome="completed", accelerators=3)
    own.detect = lambda source: source.text == "mine"  # type: ignore[attr-defined]
    own.read = lambda sources: [RunRecord(key="k", run="mine", attempts=(life,))]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_reader", own)
    meta = tmp_path / "own-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(f"[{importers.GROUP}]\nown = own_reader\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "file").write_text("mine")
    url = str(tmp_path / "store")
    assert main(["ingest", str(tmp_path / "file"), "--store", url]) == 0
    assert content(Store(url), "runs", "run", "accelerators", "wall_s") == [("mine", 3, 10.0)]
