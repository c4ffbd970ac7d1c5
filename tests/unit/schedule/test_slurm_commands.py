"""`headway schedule slurm` reports a missing or unsuitable set-up in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headway import slurm
from headway.cli import main
from headway.errors import SlurmRefused, UsageError
from headway.schedule.slurm import cluster
from headway.schedule.slurm.cluster import QOS_COMMAND, read_cluster
from headway.schedule.slurm.eviction import responds_to_signal
from tests.support import codes, has_code
from tests.unit.schedule.recorded_slurm import CONFIG, RecordedSlurm, run_status


def test_slurm_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["schedule", "slurm", "--once"]) == 2
    assert codes(capsys.readouterr().err) == ["slurm-not-installed"]
    with pytest.raises(UsageError, check=has_code("slurm-not-installed")) as error:
        cluster.check_programs(str(tmp_path))
    assert error.value.fields["programs"] == list(cluster.PROGRAMS)


def test_users_that_may_requeue_jobs() -> None:
    def level(text: str) -> slurm.RunCommand:
        return lambda *words: text

    cluster.check_rights(level(""), CONFIG, user="root")
    cluster.check_rights(level("Operator\n"), CONFIG, user="ann")
    cluster.check_rights(level(""), CONFIG.replace("root(0)", "slurm(64)"), user="slurm")
    for text in ("None\n", ""):
        with pytest.raises(UsageError, check=has_code("slurm-no-rights")):
            cluster.check_rights(level(text), CONFIG, user="ann")


def test_quotas_of_unknown_accounts() -> None:
    def ask(*words: str) -> str:
        assert words == ("sacctmgr", "-nP", "show", "account", "format=Account")
        return "root\nads\nfeed\n"

    cluster.check_accounts(ask, ("ads", "feed"))
    with pytest.raises(UsageError, check=has_code("account-unknown")) as error:
        cluster.check_accounts(ask, ("ads", "adz"))
    assert error.value.fields["account"] == "adz"


def test_the_error_of_a_program_is_shown() -> None:
    words = (sys.executable, "-c", "import sys; print('first'); sys.exit('Invalid job id')")
    with pytest.raises(SlurmRefused, check=has_code("slurm-refused")) as error:
        slurm.run_command(*words)
    assert error.value.fields["reason"] == "Invalid job id"
    assert slurm.run_command(sys.executable, "-c", "print(1)") == "1\n"


def test_a_warning_if_slurmctld_evicts_itself() -> None:
    slurm = RecordedSlurm()
    assert list(cluster.exemption_warnings(slurm, CONFIG)) == []
    slurm.answers[QOS_COMMAND] = slurm.answers[QOS_COMMAND].replace("7-00:00:00", "")
    (line,) = cluster.exemption_warnings(slurm, CONFIG)
    assert codes(line) == ["qos-not-exempt"]
    assert "sacctmgr modify qos low set PreemptExemptTime=7-00:00:00" in line
    assert (
        list(cluster.exemption_warnings(slurm, CONFIG.replace("preempt/qos", "preempt/none"))) == []
    )
    everybody = CONFIG.replace(
        "PreemptExemptTime       = 00:00:00", "PreemptExemptTime = 1-00:00:00"
    )
    assert list(cluster.exemption_warnings(slurm, everybody)) == []


@pytest.mark.parametrize(
    ("script", "reached"),
    [
        ("exec headway run -- python train.py", True),
        ("trap 'kill -USR1 $pid' USR1\nheadway run -- python train.py &", True),
        ("trap 'kill -USR1 $pid' SIGUSR1", True),
        ("headway run -- python train.py", False),
        ("exec > log 2>&1\nheadway run -- python train.py", False),
        ("exec 2>&1\nheadway run -- python train.py", False),
        ("trap '' USR1\nheadway run -- python train.py", False),
        ("trap - USR1\nheadway run -- python train.py", False),
        ("# exec headway run\nheadway run -- python train.py", False),
    ],
)
def test_scripts_that_forward_the_signal(script: str, reached: bool) -> None:
    job = read_cluster(RecordedSlurm()).running()[0]
    answer = f"#!/bin/sh\n{script}\n"
    assert responds_to_signal(job, run_status(), frozenset(), lambda *_: answer) is reached
    assert responds_to_signal(job, run_status(), frozenset({job.number}), lambda *_: answer), (
        "a step of srun"
    )
    assert not responds_to_signal(
        job, run_status(save=None), frozenset({job.number}), lambda *_: answer
    )
