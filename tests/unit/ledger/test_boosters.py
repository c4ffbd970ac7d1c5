"""What the boosters of `--auto` brought, by ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.ledger.boosters import comparison_key
from headway.ledger.model import AutoRun, BoosterResult
from headway.run import load
from headway.testing import FakeRun

KIND = comparison_key("", [], 1)


def auto(tmp_path: Path, *, known: Any = None, warm: bool = True, **told: Any) -> AutoRun:
    """A run of two attempts: the second one trains 2 s after the first has died."""
    run = FakeRun()
    first = run.launcher(0.0, spawn=0.0, launch="L0")
    event = {"job": "train-1", "on": ["warm"], "off": {}, "gpus": [], "known": known or {}}
    first.event("auto", 0.1, **{**event, **told})
    one = run.process(0.0, launch="L0")
    one.train(1, 10, 10.0, 0.1)
    first.exit(12.0, code=1)
    second = run.launcher(12.0, spawn=12.0, launch="L0.1")
    second.event("auto", 12.1, **{**event, **told})
    two = run.process(12.0, launch="L0.1", warm=warm)
    two.train(1, 10, 13.0, 0.1)
    two.exit(14.0)
    second.exit(14.0, code=0)
    found = load(run.write(tmp_path / "run")).ledger
    assert found.auto is not None and found.to_dict()["auto"]["job"] == "train-1"
    return found.auto


def only(told: AutoRun, name: str) -> BoosterResult:
    (found,) = [one for one in told.boosters if one.name == name]
    return found


def test_a_run_without_auto_has_none(tmp_path: Path) -> None:
    run = FakeRun()
    run.launcher(0.0, spawn=0.0).exit(1.0, code=0)
    assert load(run.write(tmp_path / "run")).ledger.auto is None


def test_a_warm_restart_is_compared_with_a_cold_one(tmp_path: Path) -> None:
    known = {KIND: {"recover_s": 6.0}, "another kind": {"recover_s": 60.0}}
    warm = only(auto(tmp_path, known=known), "warm")
    assert warm.state == "acted" and warm.baseline == 6 * 10**9
    assert warm.time is not None and warm.saved == warm.baseline - warm.time


def test_without_a_cold_one_it_is_not_known_what_it_brought(tmp_path: Path) -> None:
    warm = only(auto(tmp_path), "warm")
    assert warm.state == "acted" and warm.time is not None
    assert (warm.baseline, warm.saved) == (None, None)


def test_a_cold_one_is_no_act_of_it(tmp_path: Path) -> None:
    warm = only(auto(tmp_path, warm=False), "warm")
    assert (warm.state, warm.time, warm.saved) == ("on", None, None)
    assert warm.what  # it was on, and a restart was cold: that is not "nothing to do"


def test_saves_are_compared_by_the_checkpoint(tmp_path: Path) -> None:
    """Five files make one checkpoint, and what blocks besides counts."""
    run = FakeRun()
    launcher = run.launcher(0.0)
    known = {KIND: {"save_s": 0.3}}
    launcher.event("auto", 0.1, job="train-1", on=["async_save"], off={}, gpus=[], known=known)
    rank = run.process(0.0)
    rank.train(1, 20, 1.0, 0.1)
    for number in range(5):
        rank.span("checkpoint_save", 3.0 + 0.1 * number, 3.1 + 0.1 * number, path=f"s/{number}")
        rank.event("behind", 3.1 + 0.1 * number, bytes=9, blocked=20_000_000)
    rank.train(21, 20, 3.5, 0.1)
    rank.exit(6.0)
    launcher.exit(6.0, code=0)
    ledger = load(run.write(tmp_path / "run")).ledger
    assert ledger.auto is not None and ledger.async_save is not None
    saves = only(ledger.auto, "async_save")
    assert (ledger.saves, ledger.async_save.saves) == (1, 5)
    assert saves.time == ledger.buckets["waste.checkpoint_block"] == 500_000_000
    assert (saves.baseline, saves.saved) == (300_000_000, -200_000_000)


def test_boosters_that_are_off_say_why(tmp_path: Path) -> None:
    told = auto(tmp_path, on=["learn", "unheard_of"], off={"warm": "no fork", "learn": "slow"})
    assert only(told, "warm") == BoosterResult(name="warm", state="off", why="no fork")
    assert (only(told, "learn").state, only(told, "learn").why) == ("off", "slow")
    assert only(told, "unheard_of").state == "on"


@pytest.mark.parametrize("bad", [None, 3, "x", [1], {"k": 3}, {KIND: {"recover_s": "x"}}])
def test_damage_is_lived_with(tmp_path: Path, bad: Any) -> None:
    told = auto(tmp_path, known=bad, off=bad, gpus=None)
    assert only(told, "warm").state in ("acted", "off")
