"""An anchor is released once it is published, and not before everybody is done with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from headway.checkpoint.store.cleanup import Policy, retain
from headway.checkpoint.store.store import Store as Checkpoints
from headway.publish import claims
from headway.publish.anchor import find_anchor, pending_anchors
from headway.publish.recipe import Recipe
from headway.publish.store import SnapshotStore
from headway.publish.validate import CheckResult, TargetCheck, check_here
from headway.storage import process_identity
from tests.support import codes, lazy
from tests.unit.publish.anchors import checkpoint, recipe, state

trained = lazy("tests.unit.publish.dlrm:trained")
watch = lazy("headway.publish.watch:watch")


@pytest.fixture(autouse=True)
def no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three calls are enough here."""
    monkeypatch.setattr("headway.publish.validate.TIMED_S", 0)


def releasing_recipe(folder: Path, *, release: bool = True, digest: str = "") -> Recipe:
    options = recipe(folder)
    return replace(options, release=release, digest=digest or options.digest)


@dataclass(frozen=True)
class Round:
    """What a worker did in one round, and the codes of what it turned down."""

    published: int = 0
    released: int = 0
    codes: tuple[str, ...] = ()


def watched(folder: Path, given: Recipe, to: str = "store", *, wrong: bool = False) -> Round:
    lines: list[str] = []
    there, anchored = len(SnapshotStore(folder / to).snapshots()), len(anchors(folder))

    def examine(check: TargetCheck) -> CheckResult:
        return replace(check_here(check), finite=False) if wrong else check_here(check)

    where, store = str(folder / "anchors"), SnapshotStore(folder / to)
    watch(where, given, store, log=lines.append, once=True, check_target=examine)
    published, released = len(store.snapshots()) - there, anchored - len(anchors(folder))
    logged = tuple(code for code in codes("\n".join(lines)) if code)
    assert len(lines) == published + released + len(logged)
    return Round(published, released, logged)


def anchors(folder: Path) -> list[int | None]:
    return [anchor.step for anchor in pending_anchors(str(folder / "anchors"))]


def test_what_is_published_is_released_and_then_retained_no_more(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint(tmp_path / "anchors", state(trained(step)), step)
    assert watched(tmp_path, releasing_recipe(tmp_path, release=False)) == Round(published=2)
    assert anchors(tmp_path) == [1, 2]
    assert watched(tmp_path, releasing_recipe(tmp_path)) == Round(released=2), (
        "a killed one goes on there"
    )
    assert anchors(tmp_path) == []
    retain(tmp_path / "anchors", Policy(last=1))
    assert [checkpoint.step for checkpoint in Checkpoints(tmp_path / "anchors").checkpoints()] == [
        2
    ]


def test_what_is_turned_down_stays(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchors", state(trained()), 1)
    assert watched(tmp_path, releasing_recipe(tmp_path), wrong=True) == Round(
        codes=("snapshot-rejected",)
    )
    assert watched(tmp_path, releasing_recipe(tmp_path)) == Round() and anchors(tmp_path) == [1]


def test_another_recipe_that_waits(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchors", state(trained(1)), 1)
    other = releasing_recipe(tmp_path, release=False, digest="0" * 64)
    assert watched(tmp_path, other, "other") == Round(published=1)
    checkpoint(tmp_path / "anchors", state(trained(2)), 2)
    # It has the first, and will come for the second.
    assert watched(tmp_path, releasing_recipe(tmp_path)) == Round(published=2, released=1)
    assert anchors(tmp_path) == [2]
    assert watched(tmp_path, other, "other") == Round(published=1)
    assert watched(tmp_path, releasing_recipe(tmp_path)) == Round(released=1)


def test_a_recipe_that_nobody_watches_for_any_more(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchors", state(trained(1)), 1)
    where = str(tmp_path / "anchors")
    name = claims.claim_recipe(where, "0" * 64, SnapshotStore(tmp_path / "other"))
    assert watched(tmp_path, releasing_recipe(tmp_path)) == Round(published=1)
    claim = tmp_path / "anchors" / "claims" / name
    os.utime(claim, (0, 0))
    assert watched(tmp_path, releasing_recipe(tmp_path)) == Round(released=1) and not claim.exists()


def test_a_publish_on_its_way(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchors", state(trained(1)), 1)
    anchor = find_anchor(str(tmp_path / "anchors"))
    with claims.claim_anchor(anchor) as own, claims.claim_anchor(anchor):
        assert not claims.release_anchor(anchor, own) and anchors(tmp_path) == [1]
    assert list((tmp_path / "anchors" / "claims").iterdir()) == []
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    who = json.loads(process_identity.identify_process(gone.pid))
    claim = tmp_path / "anchors" / "claims" / "x"
    claim.write_text(json.dumps({**who, "anchor": anchor.id}))
    assert not claims.release_anchor(anchor, "")
    gone.communicate()
    assert claims.release_anchor(anchor, "") and anchors(tmp_path) == [] and not claim.exists()


def test_a_claim_that_nobody_can_read_counts(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchors", state(trained(1)), 1)
    anchor = find_anchor(str(tmp_path / "anchors"))
    (tmp_path / "anchors" / "claims").mkdir()
    (tmp_path / "anchors" / "claims" / "x").write_text("{")
    assert not claims.release_anchor(anchor, "")
