from __future__ import annotations

import pytest

from headway.ledger.model import Failure
from headway.taxonomy import OWNERS
from headway.testing import FakeRun


def failure(job: FakeRun) -> Failure:
    (found,) = job.ledger().failures
    assert (found.owner, found.retry) == OWNERS[found.category]
    return found


def raised(kind: str, message: str) -> Failure:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.train(1, 3, 5, 1)
    rank.event("error", 8, type=kind, message=message)
    rank.exit(8)
    launcher.exit(9, code=1)
    return failure(job)


@pytest.mark.parametrize(
    ("kind", "message", "category"),
    [
        ("torch.OutOfMemoryError", "CUDA out of memory", "gpu_oom"),
        ("MemoryError", "", "host_oom"),
        ("OSError", "[Errno 28] No space left on device", "disk_full"),
        ("OSError", "something else", "user_code"),
        ("ModuleNotFoundError", "No module named 'x'", "environment"),
        ("RuntimeError", "Timed out waiting 1800000ms", "comm_timeout"),
        ("RuntimeError", "shapes do not match", "user_code"),
        ("torch.distributed.DistBackendError", "NCCL error", "network"),
        ("mine.Strange", "", "user_code"),
    ],
)
def test_of_an_exception(kind: str, message: str, category: str) -> None:
    found = raised(kind, message)
    assert (found.category, found.root_rank) == (category, 0)
    assert kind in found.evidence


@pytest.mark.parametrize(
    ("code", "category", "says"),
    [
        (1, "user_code", "exit code 1"),
        (2, "unknown", "exit code 2"),
        (-11, "native_crash", "SIGSEGV"),
        (139, "native_crash", "SIGSEGV"),
        (134, "native_crash", "SIGABRT"),
        (137, "unknown", "SIGKILL"),
        (-63, "unknown", "signal 63"),
    ],
)
def test_of_an_exit_code(code: int, category: str, says: str) -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    job.process(0).train(1, 3, 5, 1)
    launcher.exit(8, code=code)
    found = failure(job)
    assert found.category == category
    assert says in found.evidence


def test_the_first_cause_is_named_and_not_its_echo() -> None:
    """Rank 0 says first that its peer is gone; the reason is rank 1's."""
    job = FakeRun()
    launcher = job.launcher(0)
    for number, at, message in ((0, 8, "Connection closed by peer"), (1, 9, "boom")):
        rank = job.process(0, rank=number, world=2)
        rank.train(1, 3, 5, 1)
        rank.event("error", at, type="RuntimeError", message=message)
        rank.exit(at)
    launcher.exit(10, code=1)
    found = failure(job)
    assert (found.category, found.root_rank) == ("user_code", 1)
    assert found.evidence == "rank 1 raised RuntimeError: boom"


def test_a_rank_that_its_agent_ended_is_not_the_cause() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    agent = job.process(0, rank=None, world=None)
    ranks = [job.process(0, rank=number, world=2) for number in range(2)]
    for rank in ranks:
        rank.train(1, 3, 5, 1)
    agent.event("worker_failed", 9, pid=ranks[0].lines[0]["pid"], code=-15)
    agent.event("worker_failed", 9, pid=ranks[1].lines[0]["pid"], code=-6)
    launcher.exit(10, code=1)
    found = failure(job)
    assert (found.category, found.root_rank) == ("native_crash", 1)


def test_a_hang_is_the_cause_of_a_kill() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    job.process(0).train(1, 30, 5, 1)
    launcher.exit(500, code=-9)
    found = failure(job)
    assert (found.category, found.root_rank) == ("hang", 0)


def test_no_clue_at_all() -> None:
    job = FakeRun()
    job.launcher(0)
    for number in range(2):
        job.process(0, rank=number, world=2).train(1, 3, 5, 1)
    job.launcher(20, launch="L1", index=1)
    found = failure(job)
    assert (found.category, found.root_rank) == ("unknown", None)
    assert found.evidence == "it ended without leaving a reason"


def test_a_stopped_run_did_not_fail() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    job.process(0).train(1, 3, 5, 1)
    launcher.event("signal", 8, signal=2)
    launcher.exit(9, code=130)
    assert job.ledger().failures == ()


@pytest.mark.parametrize("code", [130, -2])
def test_ctrl_c_is_no_failure(code: int) -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    job.process(0).train(1, 3, 5, 1)
    launcher.exit(9, code=code)
    ledger = job.ledger()
    assert (ledger.attempts[0].outcome, ledger.failures) == ("stopped", ())


def test_ctrl_c_of_torchrun_is_told_by_its_agent() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    agent = job.process(0, rank=None)
    agent.event("agent", 1, name="START")
    kind = "torch.distributed.elastic.multiprocessing.api.SignalException"
    agent.event("error", 9, type=kind, message="Process 7 got signal: 2")
    job.process(1).train(1, 3, 5, 1)
    launcher.exit(9, code=1)
    assert job.ledger().attempts[0].outcome == "stopped"


def test_the_parent_of_mp_spawn_tells_of_a_killed_rank() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    parent = job.process(0, rank=None)
    kind = "torch.multiprocessing.spawn.ProcessExitedException"
    parent.event("error", 9, type=kind, message="process 1 terminated with signal SIGKILL")
    parent.exit(9)
    for rank in (0, 1):
        job.process(1, rank=rank, world=2).train(1, 3, 5, 1)
    launcher.exit(9, code=1)
    found = failure(job)
    assert found.category == "unknown"
    assert "signal SIGKILL" in found.evidence
