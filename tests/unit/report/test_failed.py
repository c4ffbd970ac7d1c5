"""A run that failed leads with its failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headway.ledger.model import NS, Attempt, Checkpoint, Failure, Ledger
from headway.report.failed import UnsavedTraining, run_failure, unsaved_training
from headway.report.html import page
from headway.report.terminal import print_report, print_summary
from tests.support import Golden
from tests.unit.report.ledgers import Line, killed, ledger_of, no_steps, still_running
from tests.unit.report.shown import text_of


def _dead(*, saved: int | None = None, retry: str = "bounded", **others: Any) -> Ledger:
    """49 steps of a quarter of a second, after 4 s of start, and a death."""
    line = Line().add("start.launcher_init", 4).add("train.effective", 12.25)
    line.add("stop.shutdown", 0.75)
    save = [] if saved is None else [
        Checkpoint(attempt=0, rank=0, start=4 * NS + saved * NS // 4, end=5 * NS + saved * NS // 4,
                   step=saved, path="ckpt.pt")
    ]  # fmt: skip
    category = "native_crash" if retry == "bounded" else "user_code"
    failure = Failure(
        attempt=0, at=17 * NS, category=category, owner="user", retry=retry, root_rank=1,
        evidence="rank 1 ended with SIGKILL (exit code -9)",
    )  # fmt: skip
    attempt = Attempt(
        index=0, start=0, end=17 * NS, outcome="failed", ranks=(0, 1), first_step=1, last_step=49
    )
    fields: dict[str, Any] = {
        "steps": 49, "attempts": (attempt,), "failures": (failure,), "exit_code": 137,
        "checkpoints": tuple(save), "saves": len(save), "time_to_start": 4 * NS,
    }  # fmt: skip
    return ledger_of(line, **{**fields, **others})


def _unstarted() -> Ledger:
    """It dies of an import."""
    line = Line().add("start.launcher_init", 2.5)
    failure = Failure(
        attempt=0, at=line.now, category="environment", owner="user", retry="no", root_rank=0,
        evidence="rank 0 raised \x1b[1;31mModuleNotFoundError\x1b[0m: No module named 'mine'",
    )  # fmt: skip
    attempt = Attempt(index=0, start=0, end=line.now, outcome="failed", ranks=(0,))
    return ledger_of(line, attempts=(attempt,), failures=(failure,), exit_code=1)


def test_only_a_run_whose_last_attempt_failed_has_one() -> None:
    assert run_failure(killed()) is None and run_failure(still_running()) is None
    assert run_failure(no_steps()) is None
    assert run_failure(_dead()) is not None and run_failure(replace(_dead(), running=True)) is None


def test_what_is_lost_begins_at_the_last_durable_save() -> None:
    assert unsaved_training(_dead()) == UnsavedTraining(None, 0, 49, 12_250_000_000)
    assert unsaved_training(_dead(saved=40)) == UnsavedTraining(40, 3 * NS, 9, 2_250_000_000)
    assert unsaved_training(_dead(saved=49)) == UnsavedTraining(49, 750_000_000, 0, 0)
    pending = replace(_dead(saved=40).checkpoints[0], unwritten=True)
    assert unsaved_training(_dead(checkpoints=(pending,))) == UnsavedTraining(
        None, 0, 49, 12_250_000_000
    )
    assert unsaved_training(_unstarted()) is None


def test_an_attempt_that_never_trained_adds_nothing() -> None:
    once = _dead(saved=40)
    again = Attempt(index=1, start=17 * NS, end=17 * NS, outcome="failed", ranks=(0,))
    assert unsaved_training(replace(once, attempts=(*once.attempts, again))) == unsaved_training(
        once
    )


def test_what_was_resumed_from_is_saved() -> None:
    once = _dead()
    resumed = replace(once.attempts[0], first_step=31, resumed_from=30)
    assert unsaved_training(replace(once, attempts=(resumed,))) == UnsavedTraining(
        30, 0, 19, 12_250_000_000
    )


def test_the_command_goes_on_with_what_helps() -> None:
    def command(ledger: Ledger) -> tuple[str, bool]:
        end = run_failure(ledger)
        assert end is not None
        return end.command, end.mend

    assert command(_dead()) == ("headway run --restarts 5 -- torchrun train.py", False)
    assert command(_dead(retry="no")) == ("headway run -- torchrun train.py", True)
    unknown = replace(_dead().failures[0], category="unknown")
    assert "--restarts" in command(_dead(failures=(unknown,)))[0]
    assert "--restarts" not in command(_dead(failures=(unknown,), steps=0))[0]
    on = {"boosters": ["restarts"]}
    assert command(_dead(facts=on)) == ("headway run -- torchrun train.py", False)


def test_golden(golden: Golden) -> None:
    for name, ledger in (("failed", _dead(saved=40)), ("unstarted", _unstarted())):
        golden(f"{name}-summary.txt", text_of(ledger, print_summary, 100))
    golden("failed-full.txt", text_of(_dead(), print_report, 100))


def test_a_job_that_died_at_once_shows_its_error_and_nothing_of_loops() -> None:
    for text in (
        text_of(_unstarted(), print_summary, 100),
        text_of(_unstarted(), print_report, 100),
    ):
        assert "ModuleNotFoundError: No module named 'mine'" in text
        assert "headway.step()" not in text and "[1;31m" not in text
    assert "headway.step()" in text_of(no_steps(), print_summary, 100)


def test_the_page_leads_with_the_failure() -> None:
    text = page(_dead())
    assert 0 < text.index("headway run --restarts 5") < text.index('class="hero"')
    assert "headway.step()" not in page(_unstarted())
    assert "The run failed" not in page(killed())
