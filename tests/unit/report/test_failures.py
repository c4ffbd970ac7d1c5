"""Failures, preemption notices and injected faults in the reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headway.ledger.model import Attempt, Checkpoint, Failure, Fault, Ledger, PreemptionNotice
from headway.report.failures import UnsavedTraining, describe_notice, run_failure, unsaved_training
from headway.report.html import page
from headway.report.terminal import print_report, print_summary
from headway.testing import FakeRun
from headway.units import NS
from tests.support import Golden
from tests.unit.report.ledgers import Line, killed, ledger_of, no_steps, still_running
from tests.unit.report.rendering import page_of, summary_of, text_of


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
    pending = replace(_dead(saved=40).checkpoints[0], not_durable=True)
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
        return end.command, end.needs_fix

    assert command(_dead()) == ("headway run --restarts 5 -- torchrun train.py", False)
    assert command(_dead(retry="no")) == ("headway run -- torchrun train.py", True)
    unknown = replace(_dead().failures[0], category="unknown")
    assert "--restarts" in command(_dead(failures=(unknown,)))[0]
    assert "--restarts" not in command(_dead(failures=(unknown,), steps=0))[0]
    on = {"boosters": ["restarts"]}
    assert command(_dead(metadata=on)) == ("headway run -- torchrun train.py", False)


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


SAVED = PreemptionNotice(
    attempt=0,
    at=45 * NS,
    response="saved",
    accelerators=8,
    step=1_041,
    saved=242 * NS,
    saved_steps=412,
    lost=0,
    lost_steps=0,
)
LOST = replace(SAVED, response="none", step=None, saved=0, saved_steps=0, lost=NS, lost_steps=1)


def test_in_words(golden: Golden) -> None:
    notices = [
        SAVED,
        replace(SAVED, accelerators=1, lost=None, lost_steps=None),
        replace(SAVED, lost=6 * NS, lost_steps=6),
        replace(LOST, response="saved", step=1_041),
        replace(LOST, response="late", step=1_041),
        replace(LOST, response="late"),
        replace(LOST, response="skipped"),
        LOST,
    ]
    golden("notices.txt", "".join(f"{describe_notice(notice)}\n" for notice in notices))


def preempted() -> Ledger:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(1)
    rank.train(1, 20, 5, 1)
    rank.event("preempted", 25, step=20, saved=True, left_s=20.0)
    rank.event("checkpoint", 28, step=20, level="disk", durable_s=3.0, bytes=1)
    rank.exit(29)
    launcher.exit(30, code=0)
    return job.ledger()


def test_beside_the_failure(golden: Golden) -> None:
    ledger = preempted()
    golden("preempted.txt", text_of(ledger) + page_of(ledger))
    bare = replace(ledger, notices=())
    assert len(page_of(bare).splitlines()) == len(page_of(ledger).splitlines()) - 1


def rehearsed() -> Ledger:
    ledger = killed()
    failure = replace(ledger.failures[0], decision="restart: restart 1 of 3")
    hit = Fault(
        attempt=0,
        at=failure.at - 2 * NS,
        kind="kill",
        who="rank 1",
        planned="kill rank 1 at step 30",
        step=1030,
        failure=0,
        detected=failure.category,
        detected_after=2 * NS,
    )
    soft = replace(hit, kind="data", planned="delay <each> batch", failure=None, detected=None)
    missed = replace(soft, who="none", missed="its trigger was never reached", step=None)
    return replace(ledger, failures=(failure, *ledger.failures[1:]), faults=(hit, soft, missed))


def test_in_the_reports(golden: Golden) -> None:
    ledger = rehearsed()
    golden("faults.txt", text_of(ledger))
    golden("faults-summary.txt", summary_of(ledger))
    golden("faults-html.txt", page_of(ledger))
    assert "delay &lt;each&gt; batch" in page(ledger)
