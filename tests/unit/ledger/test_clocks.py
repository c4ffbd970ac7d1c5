from __future__ import annotations

from headway.ledger.clocks import ClockAlignment, align_clocks
from headway.testing import EPOCH, FakeJournal, FakeRun, Host
from headway.units import NS

NODE1 = Host("node1", "boot-1", monotonic=3.0)
BEHIND = Host("node1", "boot-1", monotonic=3.0, wall=-400.0)


def axis_of(job: FakeRun) -> ClockAlignment:
    journals = [made.journal() for made in job.journals]
    launchers = [j for j in journals if j.role == "launcher"]
    return align_clocks(launchers, [j for j in journals if j.role != "launcher"])


def true_time(job: FakeRun, axis: ClockAlignment, made: FakeJournal, seconds: float) -> float:
    """Where `seconds` of one journal lies after the alignment, on the first one's clock."""
    home = job.journals[0]
    return (made.at(seconds) + axis.shifts[made.name] - home.at(0)) / NS


def test_one_boot_needs_nothing_whatever_its_wall_clock_says() -> None:
    job = FakeRun()
    job.launcher(0)
    rank = job.process(5, host=Host(wall=9000.0))
    axis = axis_of(job)
    assert axis.shifts[rank.name] == 0
    assert not axis.notes


def test_another_boot_is_placed_by_the_wall_clock() -> None:
    job = FakeRun()
    job.launcher(0)
    rank = job.process(5, host=NODE1)
    axis = axis_of(job)
    assert true_time(job, axis, rank, 7) == 7
    assert not axis.notes


def test_the_clock_of_the_file_system_counts_more() -> None:
    job = FakeRun()
    job.launcher(0, fs=EPOCH * NS)
    rank = job.process(5, host=BEHIND, fs=(EPOCH + 5) * NS)
    axis = axis_of(job)
    assert true_time(job, axis, rank, 7) == 7
    assert not axis.notes


def test_ranks_leave_their_process_group_together() -> None:
    job = FakeRun()
    job.launcher(0)
    here, there = job.process(5), job.process(5, rank=1, host=BEHIND)
    for rank in (here, there):
        rank.span("process_group_init", 6, 8)
    axis = axis_of(job)
    assert true_time(job, axis, there, 8) == 8
    assert "400.000 s" in axis.notes[0] and axis.notes[0].endswith(" [clock-differs]")


def test_a_process_group_of_another_restart_says_nothing() -> None:
    job = FakeRun()
    job.launcher(0)
    job.process(5).span("process_group_init", 6, 8)
    there = job.process(20, host=NODE1, restart=1)
    there.span("process_group_init", 21, 30)
    assert true_time(job, axis_of(job), there, 30) == 30


def test_nothing_begins_before_it_was_started_or_lives_after_the_end() -> None:
    for wall in (-400.0, 400.0):
        job = FakeRun()
        launcher = job.launcher(0, spawn=5)
        rank = job.process(5, host=Host("node1", "boot-1", monotonic=3.0, wall=wall))
        rank.exit(20)
        launcher.exit(20, code=0)
        assert true_time(job, axis_of(job), rank, 5) == 5


def test_a_launcher_with_a_late_clock_comes_after_the_one_before_it() -> None:
    job = FakeRun()
    job.launcher(0).exit(100, code=1)
    second = job.launcher(130, launch="L1", index=1, host=BEHIND)
    axis = axis_of(job)
    assert true_time(job, axis, second, 130) == 100
    assert "370.000 s" in axis.notes[0] and axis.notes[0].endswith(" [clock-behind]")


def test_a_boot_has_one_shift_in_all_launches() -> None:
    """What the process group of the first launch told of a host holds for the second too."""
    job = FakeRun()
    first = job.launcher(0)
    for number, host in ((0, Host()), (1, BEHIND)):
        job.process(5, rank=number, host=host).span("process_group_init", 6, 8)
    first.exit(100, code=1)
    second = job.launcher(130, launch="L1", index=1, host=BEHIND)
    assert true_time(job, axis_of(job), second, 130) == 130


def test_processes_without_a_launcher_are_placed_too() -> None:
    job = FakeRun()
    job.launcher(0).exit(100, code=1)
    alone = job.process(150, launch="L1", host=NODE1)
    assert true_time(job, axis_of(job), alone, 150) == 150
