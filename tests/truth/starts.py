"""Truth about starts: stages, overlap, the cluster, several ranks, lost clocks."""

from __future__ import annotations

from headway.testing import EPOCH, FakeRun, Host
from headway.units import NS
from tests.truth.scenarios import AttemptTruth, Truth, scenario

BEHIND = Host("node1", "boot-1", monotonic=9.0, wall=-400.0)
AHEAD = Host("node1", "boot-1", monotonic=9.0, wall=400.0)


@scenario(
    Truth(
        wall=40,
        buckets={
            "start.launcher_init": 2,
            "start.process_group_init": 2,
            "start.train_module_creation": 10,  # 4 to 14, by the slow rank
            "start.get_first_batch_data": 1,
            "train.effective": 20,  # 15 to 20 and 23 to 38
            "waste.data_stall": 3,
            "stop.shutdown": 2,
        },
        tts=15,
        steps=20,
        attempts=(AttemptTruth("completed", 1, 20),),
        ranks={
            0: {
                "start.launcher_init": 2,
                "start.process_group_init": 2,
                "start.train_module_creation": 6,
                "start.get_first_batch_data": 1,
                "train.effective": 27,  # 11 to 38: it waits for rank 3 inside its own steps
                "stop.shutdown": 2,
            },
            3: {
                "start.launcher_init": 2,
                "start.process_group_init": 2,
                "start.train_module_creation": 10,
                "start.get_first_batch_data": 1,
                "train.effective": 20,
                "waste.data_stall": 3,
                "stop.shutdown": 2,
            },
        },
    )
)
def several_ranks_and_one_is_slow() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    for number in range(4):
        slow = number == 3
        rank = job.process(2, rank=number, world=4)
        rank.span("process_group_init", 2, 4)
        rank.span("train_module_creation", 4, 14 if slow else 10)
        rank.span("data_wait", 14 if slow else 10, 15 if slow else 11)
        rank.train(1, 5, 15, 1)
        if slow:
            rank.span("data_wait", 20, 23)
        rank.train(6, 1, 20, 4)
        rank.train(7, 14, 24, 1)
        rank.exit(39)
    launcher.exit(40, code=0)
    return job


@scenario(
    Truth(
        wall=31,
        buckets={
            "start.preproc_creation": 3,  # until the load begins, which ends later
            "start.checkpoint_load": 17,
            "start.get_first_batch_data": 1,
            "train.effective": 10,
        },
        hidden={"start.train_module_creation": 8, "start.preproc_creation": 11},
        tts=21,
        steps=10,
        attempts=(AttemptTruth("completed", 1, 10),),
    )
)
def three_stages_of_init_overlap() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 8, th=11)
    rank.span("preproc_creation", 0, 14, th=12)
    rank.span("checkpoint_load", 3, 20, th=13, path="weights.pt")
    rank.span("data_wait", 20, 21)
    rank.train(1, 10, 21, 1)
    rank.exit(31)
    launcher.exit(31, code=0)
    return job


@scenario(
    Truth(
        wall=31,
        buckets={
            "start.train_module_creation": 8,  # 0 to 3 and 15 to 20: what is not nested in it
            "start.device_init": 5,
            "start.process_group_init": 7,
            "start.get_first_batch_data": 1,
            "train.effective": 10,
        },
        tts=21,
        steps=10,
        attempts=(AttemptTruth("completed", 1, 10),),
    )
)
def of_nested_stages_the_innermost_counts() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    outer = rank.open("train_module_creation", 0)
    middle = rank.open("device_init", 3)
    rank.span("process_group_init", 5, 12)
    rank.close(middle, 15)
    rank.close(outer, 20)
    rank.span("data_wait", 20, 21)
    rank.train(1, 10, 21, 1)
    rank.exit(31)
    launcher.exit(31, code=0)
    return job


@scenario(
    Truth(
        wall=61,  # from the allocation at 70
        buckets={
            "start.hardware_setup": 30,
            "start.launcher_init": 4,
            "start.train_module_creation": 6,
            "train.effective": 20,
            "stop.shutdown": 1,
        },
        tts=40,
        steps=20,
        attempts=(AttemptTruth("completed", 1, 20),),
        queue=60,
    )
)
def allocated_and_queued_by_a_scheduler() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(100, spawn=102, queued=(EPOCH + 10) * NS, allocated=(EPOCH + 70) * NS)
    rank = job.process(104)
    rank.span("train_module_creation", 104, 110)
    rank.train(1, 20, 110, 1)
    rank.exit(131)
    launcher.exit(131, code=0)
    return job


@scenario(
    Truth(
        wall=21,
        buckets={
            "start.launcher_init": 5,  # rank 1 loads torch until 5, rank 0 waits for it
            "start.process_group_init": 1,
            "start.train_module_creation": 4,
            "train.effective": 10,
            "stop.shutdown": 1,
        },
        tts=10,
        steps=10,
        attempts=(AttemptTruth("completed", 1, 10),),
        note="[clock-differs]",
    )
)
def a_host_400_s_behind_is_placed_by_its_process_group() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0, spawn=1)
    for number, host, loaded in ((0, Host(), 2), (1, BEHIND, 5)):
        rank = job.process(1, rank=number, world=2, host=host)
        rank.span("import", 1, loaded, module="torch")
        rank.span("process_group_init", loaded, 6)
        rank.span("train_module_creation", 6, 10)
        rank.train(1, 10, 10, 1)
        rank.exit(20)
    launcher.exit(21, code=0)
    return job


_PLACED = Truth(
    wall=20,
    buckets={
        "start.launcher_init": 2,
        "start.train_module_creation": 8,
        "train.effective": 10,
    },
    tts=10,
    steps=10,
    attempts=(AttemptTruth("completed", 1, 10),),
    note="[clock-differs]",
)


def _elsewhere(host: Host) -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0, spawn=2)
    rank = job.process(2, host=host)
    rank.span("train_module_creation", 2, 10)
    rank.train(1, 10, 10, 1)
    rank.exit(20)
    launcher.exit(20, code=0)
    return job


@scenario(_PLACED)
def a_host_400_s_behind_cannot_begin_before_its_launcher() -> FakeRun:
    return _elsewhere(BEHIND)


@scenario(_PLACED)
def a_host_400_s_ahead_cannot_outlive_its_launcher() -> FakeRun:
    return _elsewhere(AHEAD)


@scenario(
    Truth(
        wall=20,
        buckets={"start.train_module_creation": 10, "train.effective": 10},
        tts=10,
        steps=10,
        attempts=(AttemptTruth("completed", 1, 10),),
        note="(1) [ranks-missing]",
    )
)
def a_rank_is_missing() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0, rank=0, world=2)
    rank.span("train_module_creation", 0, 10)
    rank.train(1, 10, 10, 1)
    rank.exit(20)
    launcher.exit(20, code=0)
    return job


@scenario(
    Truth(
        wall=36,
        buckets={
            "start.train_module_creation": 5,
            "unknown": 20,
            "start.get_first_batch_data": 1,
            "train.effective": 10,
        },
        tts=26,
        steps=10,
        attempts=(AttemptTruth("completed", 1, 10),),
    )
)
def what_no_span_covers_is_unknown() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.span("data_wait", 25, 26)
    rank.train(1, 10, 26, 1)
    rank.exit(36)
    launcher.exit(36, code=0)
    return job


@scenario(
    Truth(
        wall=16,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 10,
            "stop.shutdown": 1,
        },
        tts=5,
        steps=10,
        attempts=(AttemptTruth("completed", 1, 10),),
        note="[launcher-journal-missing]",
    )
)
def the_launcher_left_no_journal() -> FakeRun:
    job = FakeRun()
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 10, 5, 1)
    rank.exit(16)
    return job


@scenario(
    Truth(
        wall=30,
        buckets={"start.launcher_init": 2, "unknown": 28},
        tts=None,
        steps=0,
        attempts=(AttemptTruth("completed"),),
    )
)
def no_process_left_a_journal() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0, spawn=2)
    launcher.exit(30, code=0)
    return job


@scenario(
    Truth(
        wall=70,
        buckets={
            "start.launcher_init": 6,  # node 1 comes last: its rank's process begins at 6
            "start.train_module_creation": 6,  # rank 1's, from 6 to 12
            "start.process_group_init": 2,  # both in it, from 12 to 14
            "start.pre_train": 6,  # to 20
            "train.effective": 40,
            "stop.shutdown": 10,  # node 0's launcher ends last
        },
        tts=20,
        steps=20,
        attempts=(AttemptTruth("completed", 1, 20),),
        batches=1,
    )
)
def one_launcher_on_each_node_is_one_launch() -> FakeRun:
    """The second node's wall clock is a minute off; its process group ties it to the first."""
    job = FakeRun()
    nodes = (Host(), Host("node1", "boot-1", monotonic=7.0, wall=60.0))
    for rank, (host, begin, end) in enumerate(zip(nodes, (0, 3), (70, 62), strict=True)):
        launcher = job.launcher(begin, host=host, spawn=begin + 1)
        process = job.process(begin + 3, rank=rank, world=2, host=host)
        process.span("train_module_creation", begin + 3, 8 if rank == 0 else 12)
        process.span("process_group_init", 8 if rank == 0 else 12, 14)
        process.span("pre_train", 14, 20)
        process.train(1, 20, 20, 2)
        process.exit(61)
        launcher.exit(end, code=0)
    return job
