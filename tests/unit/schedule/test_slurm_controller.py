"""An eviction from the signal to the requeue, on a clock of its own, beside recorded answers."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.schedule.policies import parse_policy
from headway.schedule.slurm.cluster import JOBS_COMMAND
from headway.schedule.slurm.controller import PreemptionController
from headway.schedule.slurm.victims import RunStatus
from tests.support import Golden, codes, has_code
from tests.unit.schedule.recorded_slurm import FixedRunIndex, RecordedSlurm, run_status

START = 2_000_000_000.0
CHEAP, DEAR = run_status(unsaved=900), run_status(unsaved=900, recover=9000)


class Beside:
    """A watch over the recorded cluster, and all that it says."""

    def __init__(
        self, said: dict[int, RunStatus], policy: str = "least-cost:phase=on", **more: object
    ):
        self.slurm, self.runs, self.now = RecordedSlurm(), FixedRunIndex(said), START
        self.lines: list[str] = []
        self.watch = PreemptionController(
            run_command=self.slurm,
            log=self.lines.append,
            policy=parse_policy(policy),
            runs=self.runs,
            grace=30.0,
            clock=lambda: self.now,
            **more,  # type: ignore[arg-type]
        )

    def look(self, after: float = 0.0) -> list[tuple[str, ...]]:
        """What Slurm was told to do at a look, so many seconds later."""
        self.now += after
        self.slurm.done.clear()
        self.watch.poll()
        return list(self.slurm.done)


def test_a_victim_is_asked_and_goes_once_it_has_saved() -> None:
    beside = Beside({1: CHEAP, 2: DEAR, 3: DEAR})
    assert beside.look() == [("scancel", "--signal=USR1", "--batch", "1")]
    assert beside.look(5) == []
    beside.runs.said[1] = run_status(saved_at=START + 3)
    assert beside.look(5) == [("scontrol", "requeue", "1")]
    assert beside.look(1) == [], "nobody else goes while the waiter is about to start"
    beside.slurm.becomes(4, job_state="RUNNING")
    assert beside.look(1) == [] and not beside.watch.evictions


def test_a_step_of_srun_gets_the_signal_not_the_script() -> None:
    beside = Beside({1: DEAR, 2: CHEAP, 3: DEAR})
    assert beside.look() == [("scancel", "--signal=USR1", "2")]


def test_a_save_that_was_there_before_does_not_count_and_grace_ends() -> None:
    beside = Beside({1: CHEAP})
    beside.look()
    beside.runs.said[1] = run_status(saved_at=START - 1)
    assert beside.look(29) == []
    assert beside.look(1) == [("scontrol", "requeue", "1")]


def test_one_that_has_saved_and_left_is_requeued_one_that_is_done_is_not() -> None:
    for outcome, done in (("preempted", [("scontrol", "requeue", "1")]), ("completed", [])):
        beside = Beside({1: CHEAP, 2: DEAR})
        beside.look()
        beside.slurm.becomes(1)
        beside.runs.said[1] = run_status(saved_at=START + 3, outcome=outcome)
        assert beside.look(5) == done


def test_one_that_its_user_has_cancelled_stays_so() -> None:
    beside = Beside({1: CHEAP})
    beside.look()
    beside.slurm.becomes(1)
    beside.slurm.ended = "CANCELLED"
    beside.runs.said[1] = run_status(outcome="preempted")
    assert beside.look(5) == []


def test_one_that_was_not_asked_and_ends_by_itself_stays_so() -> None:
    beside = Beside({3: CHEAP})
    beside.look()
    beside.slurm.becomes(3)
    assert beside.look(5) == []


def test_a_script_that_would_die_of_the_signal_is_not_sent_one() -> None:
    beside = Beside({3: CHEAP})
    assert beside.look() == []
    assert beside.look(1) == [("scontrol", "requeue", "3")]


def test_those_that_cannot_save_go_last() -> None:
    beside = Beside({1: CHEAP, 2: CHEAP, 3: CHEAP}, "least-cost:each=0")
    beside.slurm.becomes(4, tres_req_str="cpu=1,mem=1M,node=1,billing=1,gres/gpu=4")
    assert {words[-1] for words in beside.look()} == {"1", "2"}
    beside.runs.said[2] = run_status(saved_at=START + 1)
    assert beside.look(5) == [("scontrol", "requeue", "2")]
    assert beside.look(25) == [("scontrol", "requeue", "1")]
    assert beside.look(1) == [("scontrol", "requeue", "3")]


def test_a_policy_without_notice_asks_nobody() -> None:
    beside = Beside({1: CHEAP}, "newest")
    assert beside.look() == []
    assert beside.look(1)[0][:2] == ("scontrol", "requeue")


def test_what_slurm_refuses_is_tried_again_and_told_once() -> None:
    beside = Beside({1: CHEAP})
    beside.look()
    beside.slurm.refuses.add("scontrol")
    for _ in range(3):
        assert beside.look(31) == [("scontrol", "requeue", "1")]
    assert codes("\n".join(beside.lines)).count("job-not-requeued") == 1
    beside.slurm.refuses.clear()
    assert beside.look(1) == [("scontrol", "requeue", "1")]
    assert beside.look(1) == []


def test_an_eviction_that_started_nothing_is_the_last_for_that_waiter() -> None:
    beside = Beside({1: CHEAP, 2: DEAR, 3: DEAR})
    beside.look()
    beside.slurm.becomes(1)
    beside.look(1)
    beside.look(200)
    assert codes(beside.lines[-1]) == ["eviction-in-vain"]
    assert beside.look(1) == [] and not beside.watch.evictions


def test_a_dry_run_touches_nothing() -> None:
    beside = Beside({1: CHEAP, 2: DEAR, 3: DEAR}, dry_run=True)
    assert beside.look() == [] and len(beside.lines) == 1
    assert beside.look(5) == [] and not beside.watch.evictions


def test_what_is_said(golden: Golden) -> None:
    saved, late, ended = (Beside({1: CHEAP}) for _ in range(3))
    silent, refused = Beside({3: CHEAP}), Beside({1: CHEAP})
    dry = Beside({1: CHEAP, 2: DEAR, 3: DEAR}, dry_run=True)
    without = Beside({})
    refused.slurm.refuses |= {"scancel", "scontrol"}
    every = (saved, late, ended, silent, refused, dry, without)
    for beside in every:
        beside.look()
    saved.runs.said[1] = run_status(saved_at=START + 3)
    ended.slurm.becomes(1)
    ended.slurm.ended = "CANCELLED"
    for beside in every:
        beside.look(5)
    late.look(30)
    refused.look(30)
    golden(
        "slurm_controller.txt", "".join(f"{line}\n" for beside in every for line in beside.lines)
    )


def test_only_waiters_of_some_qos() -> None:
    with pytest.raises(UsageError, check=has_code("qos-unknown")) as error:
        Beside({}, only_qos=frozenset({"hihg"})).look()
    assert error.value.fields["qos"] == "hihg"
    beside = Beside({1: CHEAP}, only_qos=frozenset({"normal"}))
    assert beside.look() == [] and not beside.lines


def test_a_stop_waits_for_what_was_begun() -> None:
    beside = Beside({1: CHEAP})
    waits: list[float] = []

    def stopped(seconds: float) -> bool:
        waits.append(seconds)
        beside.now += seconds
        if len(waits) == 3:
            beside.slurm.becomes(1)
            beside.slurm.becomes(4, job_state="RUNNING")
        return True

    beside.watch.loop(10.0, once=False, stopped=stopped)
    assert waits == [1.0] * 3 and beside.slurm.done[-1] == ("scontrol", "requeue", "1")


def test_an_empty_queue() -> None:
    beside = Beside({})
    beside.slurm.answers[JOBS_COMMAND] = '{"jobs": []}'
    assert beside.look() == [] and not beside.lines
