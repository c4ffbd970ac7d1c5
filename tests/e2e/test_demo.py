"""`make demo`: the same job three ways, and whether they trained the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headway.run import load

EXAMPLES = Path(__file__).parents[2] / "examples"
DEMO = EXAMPLES / "demo.py"
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "dlrm")]

import demo_equal  # noqa: E402
from demo_plan import RANKS, WAYS, Plan, Way  # noqa: E402


def ways(folder: Path, plan: Plan) -> list[Way]:
    """Three runs whose records say that each batch was trained on once."""
    found = [Way(name, plan, folder) for name in WAYS]
    for way in found:
        way.trained.mkdir(parents=True)
        for rank in range(RANKS):
            lines = [f"{step} {(step - 1) * RANKS + rank} 7" for step in range(1, plan.steps + 1)]
            (way.trained / f"rank{rank}.txt").write_text("\n".join(lines) + "\n")
    return found


def test_every_fault_comes_once_between_two_saves() -> None:
    plan = Plan()
    plan.check()
    steps = [fault["step"] for fault in plan.faults]
    assert [fault["signal"] for fault in plan.faults] == ["SIGKILL", "SIGSTOP", "SIGKILL"]
    assert steps == sorted(set(steps)) and plan.steps % plan.save_every == 0
    for before, after in zip([0, *steps], [*steps, plan.steps], strict=True):
        assert before // plan.save_every < after // plan.save_every  # a save lies between


@pytest.mark.parametrize("steps", ["405", "100"])
def test_steps_that_make_no_demonstration_are_refused(steps: str) -> None:
    with pytest.raises(SystemExit, match=rf"^demo: --steps is {steps}; give "):
        Plan(steps=int(steps)).check()


def test_the_same_job_is_run_in_all_ways(tmp_path: Path) -> None:
    plan = Plan()
    plain, auto, headway = (Way(name, plan, tmp_path).command(None) for name in WAYS)
    assert plain[plain.index("--") :] != auto  # restarts are torchrun's, or Headway's
    assert "--auto" in auto and "--max-restarts" not in auto and "--restarts" in headway
    for flag in ("--steps", "--batch", "--faults", "--group-timeout", "--data-warmup"):
        values = {words[words.index(flag) + 1] for words in (plain, auto, headway)}
        assert len(values) == 1


def test_a_batch_that_is_trained_again_counts_once(tmp_path: Path) -> None:
    plan = Plan(steps=8, save_every=1)
    found = ways(tmp_path, plan)
    with (found[1].trained / "rank1.txt").open("a") as log:
        log.write("5 9 7\n6 11 7\n")  # rolled back, and made again
    assert demo_equal.samples_wrong(plan, found) == ""


@pytest.mark.parametrize(
    ("line", "told"),
    [("5 8 7", "has not trained on each of 16 batches once"), ("5 9 8", "other samples")],
)
def test_other_data_is_noticed(tmp_path: Path, line: str, told: str) -> None:
    plan = Plan(steps=8, save_every=1)
    found = ways(tmp_path, plan)
    with (found[2].trained / "rank1.txt").open("a") as log:
        log.write(f"{line}\n")
    wrong = demo_equal.samples_wrong(plan, found)
    assert wrong.startswith("headway has") and told in wrong
    assert demo_equal.verdict(plan, found) == (f"NOT the same: {wrong}", "")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demonstration(tmp_path: Path) -> None:
    small = ("--steps", "80", "--save-every", "10", "--batch", "64", "--timeout", "20")
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, str(DEMO), *small, "-o", str(folder)],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all trained the same: each of 10,240 samples once" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("Your job:")
    ledgers = {name: load(folder / name).ledger for name in WAYS}
    assert all(len(ledger.failures) == 3 and ledger.steps >= 80 for ledger in ledgers.values())
    assert all(ledger.failures[1].category == "hang" for ledger in ledgers.values())
    assert ledgers["plain"].auto is None and ledgers["plain"].buckets["stop.publish"]
    acted = ledgers["auto"].auto
    assert acted and {"restarts", "warm"} <= {b.name for b in acted.boosters if b.state == "acted"}
    resumed = [one.resumed_from for one in ledgers["headway"].attempts[1:]]
    assert resumed == [20, 40, 60] and ledgers["headway"].attempts[1].resumed_by == "memory"
    page = (folder / "demo.html").read_text()
    assert page.count('class="line"') == 9 and "://" not in page  # three runs of two ranks
    assert len(json.loads((folder / "faults.json").read_text())) == 3
