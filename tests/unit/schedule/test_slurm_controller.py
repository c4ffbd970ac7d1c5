"""An eviction from the signal to the requeue, with a fake clock and recorded output of Slurm."""

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


class Scenario:
    """A controller of the recorded cluster, with its log."""

    def __init__(
        self, statuses: dict[int, RunStatus], policy: str = "least-cost:phase=on", **more: object
    ):
        self.slurm, self.runs, self.now = RecordedSlurm(), FixedRunIndex(statuses), START
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
        """The commands that a poll runs, `after` seconds later."""
        self.now += after
        self.slurm.done.clear()
        self.watch.poll()
        return list(self.slurm.done)


def test_a_victim_is_asked_and_goes_once_it_has_saved() -> None:
    scenario = Scenario({1: CHEAP, 2: DEAR, 3: DEAR})
    assert scenario.look() == [("scancel", "--signal=USR1", "--batch", "1")]
    assert scenario.look(5) == []
    scenario.runs.statuses[1] = run_status(saved_at=START + 3)
    assert scenario.look(5) == [("scontrol", "requeue", "1")]
    assert scenario.look(1) == [], "nobody else goes while the waiter is about to start"
    scenario.slurm.becomes(4, job_state="RUNNING")
    assert scenario.look(1) == [] and not scenario.watch.evictions


def test_a_step_of_srun_gets_the_signal_not_the_script() -> None:
    scenario = Scenario({1: DEAR, 2: CHEAP, 3: DEAR})
    assert scenario.look() == [("scancel", "--signal=USR1", "2")]


def test_a_save_that_was_there_before_does_not_count_and_grace_ends() -> None:
    scenario = Scenario({1: CHEAP})
    scenario.look()
    scenario.runs.statuses[1] = run_status(saved_at=START - 1)
    assert scenario.look(29) == []
    assert scenario.look(1) == [("scontrol", "requeue", "1")]


def test_one_that_has_saved_and_left_is_requeued_one_that_is_done_is_not() -> None:
    for outcome, done in (("preempted", [("scontrol", "requeue", "1")]), ("completed", [])):
        scenario = Scenario({1: CHEAP, 2: DEAR})
        scenario.look()
        scenario.slurm.becomes(1)
        scenario.runs.statuses[1] = run_status(saved_at=START + 3, outcome=outcome)
        assert scenario.look(5) == done


def test_one_that_its_user_has_cancelled_stays_so() -> None:
    scenario = Scenario({1: CHEAP})
    scenario.look()
    scenario.slurm.becomes(1)
    scenario.slurm.ended = "CANCELLED"
    scenario.runs.statuses[1] = run_status(outcome="preempted")
    assert scenario.look(5) == []


def test_one_that_was_not_asked_and_ends_by_itself_stays_so() -> None:
    scenario = Scenario({3: CHEAP})
    scenario.look()
    scenario.slurm.becomes(3)
    assert scenario.look(5) == []


def test_a_script_that_would_die_of_the_signal_is_not_sent_one() -> None:
    scenario = Scenario({3: CHEAP})
    assert scenario.look() == []
    assert scenario.look(1) == [("scontrol", "requeue", "3")]


def test_those_that_cannot_save_go_last() -> None:
    scenario = Scenario({1: CHEAP, 2: CHEAP, 3: CHEAP}, "least-cost:each=0")
    scenario.slurm.becomes(4, tres_req_str="cpu=1,mem=1M,node=1,billing=1,gres/gpu=4")
    assert {words[-1] for words in scenario.look()} == {"1", "2"}
    scenario.runs.statuses[2] = run_status(saved_at=START + 1)
    assert scenario.look(5) == [("scontrol", "requeue", "2")]
    assert scenario.look(25) == [("scontrol", "requeue", "1")]
    assert scenario.look(1) == [("scontrol", "requeue", "3")]


def test_a_policy_without_notice_asks_nobody() -> None:
    scenario = Scenario({1: CHEAP}, "newest")
    assert scenario.look() == []
    assert scenario.look(1)[0][:2] == ("scontrol", "requeue")


def test_what_slurm_refuses_is_tried_again_and_told_once() -> None:
    scenario = Scenario({1: CHEAP})
    scenario.look()
    scenario.slurm.refuses.add("scontrol")
    for _ in range(3):
        assert scenario.look(31) == [("scontrol", "requeue", "1")]
    assert codes("\n".join(scenario.lines)).count("job-not-requeued") == 1
    scenario.slurm.refuses.clear()
    assert scenario.look(1) == [("scontrol", "requeue", "1")]
    assert scenario.look(1) == []


def test_an_eviction_that_started_nothing_is_the_last_for_that_waiter() -> None:
    scenario = Scenario({1: CHEAP, 2: DEAR, 3: DEAR})
    scenario.look()
    scenario.slurm.becomes(1)
    scenario.look(1)
    scenario.look(200)
    assert codes(scenario.lines[-1]) == ["eviction-in-vain"]
    assert scenario.look(1) == [] and not scenario.watch.evictions


def test_a_dry_run_touches_nothing() -> None:
    scenario = Scenario({1: CHEAP, 2: DEAR, 3: DEAR}, dry_run=True)
    assert scenario.look() == [] and len(scenario.lines) == 1
    assert scenario.look(5) == [] and not scenario.watch.evictions


def test_what_is_said(golden: Golden) -> None:
    saved, late, ended = (Scenario({1: CHEAP}) for _ in range(3))
    silent, refused = Scenario({3: CHEAP}), Scenario({1: CHEAP})
    dry = Scenario({1: CHEAP, 2: DEAR, 3: DEAR}, dry_run=True)
    without = Scenario({})
    refused.slurm.refuses |= {"scancel", "scontrol"}
    every = (saved, late, ended, silent, refused, dry, without)
    for scenario in every:
        scenario.look()
    saved.runs.statuses[1] = run_status(saved_at=START + 3)
    ended.slurm.becomes(1)
    ended.slurm.ended = "CANCELLED"
    for scenario in every:
        scenario.look(5)
    late.look(30)
    refused.look(30)
    golden(
        "slurm_controller.txt",
        "".join(f"{line}\n" for scenario in every for line in scenario.lines),
    )


def test_only_waiters_of_some_qos() -> None:
    with pytest.raises(UsageError, check=has_code("qos-unknown")) as error:
        Scenario({}, only_qos=frozenset({"hihg"})).look()
    assert error.value.fields["qos"] == "hihg"
    scenario = Scenario({1: CHEAP}, only_qos=frozenset({"normal"}))
    assert scenario.look() == [] and not scenario.lines


def test_a_stop_waits_for_what_was_begun() -> None:
    scenario = Scenario({1: CHEAP})
    waits: list[float] = []

    def stopped(seconds: float) -> bool:
        waits.append(seconds)
        scenario.now += seconds
        if len(waits) == 3:
            scenario.slurm.becomes(1)
            scenario.slurm.becomes(4, job_state="RUNNING")
        return True

    scenario.watch.loop(10.0, once=False, stopped=stopped)
    assert waits == [1.0] * 3 and scenario.slurm.done[-1] == ("scontrol", "requeue", "1")


def test_an_empty_queue() -> None:
    scenario = Scenario({})
    scenario.slurm.answers[JOBS_COMMAND] = '{"jobs": []}'
    assert scenario.look() == [] and not scenario.lines
