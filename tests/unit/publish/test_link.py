"""A publish and the training that its anchor is of: headway/publish/link.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.errors import PublishFailed, RunNotFound
from headway.journal import run_files as notes
from headway.publish.anchor import find_anchor
from headway.publish.store import SnapshotStore
from headway.publish.validate import check_here
from headway.storage.lease import AlreadyPublishing, lease
from tests.support import lazy
from tests.unit.publish.anchors import checkpoint, recipe, state

linked = lazy("headway.publish.link:with_training_run")
publish = lazy("headway.publish.link:publish_linked")
trained = lazy("tests.unit.publish.dlrm:trained")
watch = lazy("headway.publish.watch:watch")

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.publish.validate.TIMED_S", 0)


def run_folder(folder: Path) -> Path:
    path = folder / "night"
    (path / "journal").mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"run": "night", "created": 1.0}))
    return path


def published(folder: Path, run: Path, **sections: str) -> Any:
    anchor = linked(find_anchor(str(folder / "anchor")), str(run))
    return publish(
        anchor, recipe(folder, **sections), SnapshotStore(folder / "store"), check_target=check_here
    )


def test_both_name_each_other(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchor", state(trained()))
    run = run_folder(tmp_path)
    notes.write_publish_note(run, {"run": "night-publish", "folder": "/there"})
    outcome = published(tmp_path, run)
    anchor = outcome.snapshot.manifest.anchor
    assert (anchor["run"], anchor["ledger"]) == ("night", str(run))
    note = notes.read_publish_note(run)
    assert note["snapshot"] == outcome.snapshot.name and note["run"] == "night-publish"
    assert note["seconds"] > 0 and note["error"] == ""
    written = json.loads((run / "ledger.json").read_text())["publish"]
    assert written["snapshot"] == outcome.snapshot.name and (run / "report.html").exists()
    again = published(tmp_path, run)
    assert not again.fresh
    took = sum(outcome.snapshot.manifest.seconds.values())
    assert notes.read_publish_note(run)["seconds"] == pytest.approx(took), (
        "what it took when it was made"
    )


def test_why_there_is_no_snapshot(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchor", state(trained()))
    run = run_folder(tmp_path)
    with pytest.raises(PublishFailed):
        published(tmp_path, run, limits="size_mb = 0.001")
    assert (
        "0.001" in notes.read_publish_note(run)["error"]
        and not notes.read_publish_note(run)["snapshot"]
    )


def test_who_comes_second_says_nothing(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchor", state(trained()))
    run = run_folder(tmp_path)
    key = find_anchor(str(tmp_path / "anchor")).key(recipe(tmp_path).digest)
    store = SnapshotStore(tmp_path / "store")
    with store.sweep_blocked(), lease(store.place, key), pytest.raises(AlreadyPublishing):
        published(tmp_path, run)
    assert notes.read_publish_note(run) == {}


def test_a_training_that_is_not_here(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchor", state(trained()))
    anchor = find_anchor(str(tmp_path / "anchor"))
    assert linked(anchor, None) == anchor
    with pytest.raises(RunNotFound):
        linked(anchor, str(tmp_path / "nowhere"))
    gone = replace(anchor, extra={"run": "night", "ledger": str(tmp_path / "gone")})
    outcome = publish(
        gone, recipe(tmp_path), SnapshotStore(tmp_path / "store"), check_target=check_here
    )
    assert outcome.snapshot.manifest.anchor["run"] == "night" and not (tmp_path / "gone").exists()


def test_a_standing_worker_says_it_too(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    named = {"run": "night", "ledger": str(run)}
    checkpoint(tmp_path / "anchor", state(trained()), extra=named)
    store = SnapshotStore(tmp_path / "store")
    how: Any = {"once": True, "check_target": check_here, "publish": publish}
    watch(str(tmp_path / "anchor"), recipe(tmp_path), store, log=print, **how)
    assert notes.read_publish_note(run)["snapshot"] == store.snapshot().name
