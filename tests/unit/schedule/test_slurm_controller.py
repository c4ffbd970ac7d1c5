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


def test_a_victim_is_requeued_after_its_save() -> None:
    scenario = Scenario({1: CHEAP, 2: DEAR, 3: DEAR})
    assert scenario.look() == [("scancel", "--signal=USR1", "--batch", "1")]
    assert scenario.look(5) == []
    scenario.runs.statuses[1] = run_status(saved_at=START + 3)
    assert scenario.look(5) == [("scontrol", "requeue", "1")]
    assert scenario.look(1) == [], "nobody else goes while the waiter is about to start"
    scenario.slurm.becomes(4, job_state="RUNNING")
    assert scenario.look(1) == [] and not scenario.watch.evictions


def test_an_srun_step_gets_the_signal_instead_of_the_script() -> None:
    scenario = Scenario({1: DEAR, 2: CHEAP, 3: DEAR})
    assert scenario.look() == [("scancel", "--signal=USR1", "2")]


def test_an_older_save_does_not_count() -> None:
    scenario = Scenario({1: CHEAP})
    scenario.look()
    scenario.runs.statuses[1] = run_status(saved_at=START - 1)
    assert scenario.look(29) == []
    assert scenario.look(1) == [("scontrol", "requeue", "1")]


def test_an_ended_victim_is_requeued_unless_it_is_complete() -> None:
    for outcome, done in (("preempted", [("scontrol", "requeue", "1")]), ("completed", [])):
        scenario = Scenario({1: CHEAP, 2: DEAR})
        scenario.look()
        scenario.slurm.becomes(1)
        scenario.runs.statuses[1] = run_status(saved_at=START + 3, outcome=outcome)
        assert scenario.look(5) == done


def test_a_cancelled_victim_is_not_requeued() -> None:
    scenario = Scenario({1: CHEAP})
    scenario.look()
    scenario.slurm.becomes(1)
    scenario.slurm.ended = "CANCELLED"
    scenario.runs.statuses[1] = run_status(outcome="preempted")
    assert scenario.look(5) == []


def test_a_victim_without_signal_that_ends_is_not_requeued() -> None:
    scenario = Scenario({3: CHEAP})
    scenario.look()
    scenario.slurm.becomes(3)
    assert scenario.look(5) == []


def test_a_plain_script_gets_no_signal() -> None:
    scenario = Scenario({3: CHEAP})
    assert scenario.look() == []
    assert scenario.look(1) == [("scontrol", "requeue", "3")]


def test_victims_that_cannot_save_are_requeued_last() -> None:
    scenario = Scenario({1: CHEAP, 2: CHEAP, 3: CHEAP}, "least-cost:each=0")
    scenario.slurm.becomes(4, tres_req_str="cpu=1,mem=1M,node=1,billing=1,gres/gpu=4")
    assert {words[-1] for words in scenario.look()} == {"1", "2"}
    scenario.runs.statuses[2] = run_status(saved_at=START + 1)
    assert scenario.look(5) == [("scontrol", "requeue", "2")]
    assert scenario.look(25) == [("scontrol", "requeue", "1")]
    assert scenario.look(1) == [("scontrol", "requeue", "3")]


def test_a_policy_without_notice_sends_no_signal() -> None:
    scenario = Scenario({1: CHEAP}, "newest")
    assert scenario.look() == []
    assert scenario.look(1)[0][:2] == ("scontrol", "requeue")


def test_a_refused_requeue_is_retried_and_logged_once() -> None:
    scenario = Scenario({1: CHEAP})
    scenario.look()
    scenario.slurm.refuses.add("scontrol")
    for _ in range(3):
        assert scenario.look(31) == [("scontrol", "requeue", "1")]
    assert codes("\n".join(scenario.lines)).count("job-not-requeued") == 1
    scenario.slurm.refuses.clear()
    assert scenario.look(1) == [("scontrol", "requeue", "1")]
    assert scenario.look(1) == []


def test_no_second_eviction_for_a_job_that_did_not_start() -> None:
    scenario = Scenario({1: CHEAP, 2: DEAR, 3: DEAR})
    scenario.look()
    scenario.slurm.becomes(1)
    scenario.look(1)
    scenario.look(200)
    assert codes(scenario.lines[-1]) == ["eviction-in-vain"]
    assert scenario.look(1) == [] and not scenario.watch.evictions


def test_a_dry_run_changes_nothing() -> None:
    scenario = Scenario({1: CHEAP, 2: DEAR, 3: DEAR}, dry_run=True)
    assert scenario.look() == [] and len(scenario.lines) == 1
    assert scenario.look(5) == [] and not scenario.watch.evictions


def test_the_log(golden: Golden) -> None:
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


def test_waiting_jobs_of_some_qos_only() -> None:
    with pytest.raises(UsageError, check=has_code("qos-unknown")) as error:
        Scenario({}, only_qos=frozenset({"hihg"})).look()
    assert error.value.fields["qos"] == "hihg"
    scenario = Scenario({1: CHEAP}, only_qos=frozenset({"normal"}))
    assert scenario.look() == [] and not scenario.lines


def test_a_stop_completes_active_evictions() -> None:
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
