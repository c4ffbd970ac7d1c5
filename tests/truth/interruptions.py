"""Truth about interruptions: kills, hangs, preemption, restarts, rollbacks."""

from __future__ import annotations

from headway.journal import pulse
from headway.testing import EPOCH, FakeJournal, FakeRun, Host
from headway.units import NS
from tests.truth.scenarios import AttemptTruth, Truth, scenario


def killed(job: FakeRun, rank: FakeJournal, seen: float) -> None:
    """The launcher of this rank sees it dead, and ends too."""
    launch = rank.lines[0]["launch"]
    launcher = next(j for j in job.journals if j.name == f"launcher-{launch}")
    launcher.event("death", seen, pid=rank.lines[0]["pid"], code=-9)
    launcher.exit(seen, code=137)


def life(
    job: FakeRun, number: int, start: float, init: float, steps: int, load: str = ""
) -> FakeJournal:
    """A launch with one rank that starts in `init` seconds and makes steps of 1 s."""
    job.launcher(start, launch=f"L{number}", index=number)
    rank = job.process(start, launch=f"L{number}")
    rank.span("train_module_creation", start, start + init)
    if load:
        rank.span("checkpoint_load", start + init, start + init, path=load)
    if steps:
        rank.train(1, steps, start + init, 1)
    return rank


def done(job: FakeRun, rank: FakeJournal, at: float) -> None:
    """The rank and its launcher end in order."""
    rank.exit(at)
    launch = rank.lines[0]["launch"]
    next(j for j in job.journals if j.name == f"launcher-{launch}").exit(at, code=0)


def save(rank: FakeJournal, at: float, step: int, path: str) -> None:
    """A save in no time."""
    rank.span("checkpoint_save", at, at, step=step, path=path)


@scenario(
    Truth(
        wall=155,
        buckets={
            "start.train_module_creation": 10,
            "train.effective": 100,  # 20 of the first life, 40 steps of 2 s of the second
            "failure.lost_training": 10,
            "recover.detection": 1,
            "recover.downtime": 19,
            "recover.train_module_creation": 10,
            "recover.checkpoint_load": 2,
            "stop.shutdown": 3,
        },
        tts=10,
        ttr=(32,),
        steps=60,
        attempts=(AttemptTruth("failed", 1, 30), AttemptTruth("completed", 21, 60, 20)),
        failures=(None,),
        ranks={
            3: {  # not there any more after the restart
                "start.train_module_creation": 10,
                "train.effective": 20,
                "failure.lost_training": 10,
                "recover.detection": 1,
                "recover.downtime": 19,
                "unknown": 95,
            },
        },
    )
)
def four_ranks_come_back_as_two() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    for number in range(4):
        rank = job.process(0, rank=number, world=4)
        rank.span("train_module_creation", 0, 10)
        rank.train(1, 30, 10, 1)
        if number == 0:
            save(rank, 30, 20, "step-20")
        if number == 2:
            launcher.event("death", 41, pid=rank.lines[0]["pid"], code=-9)
    launcher.exit(45, code=1)
    launcher = job.launcher(60, launch="L1", index=1)
    for number in range(2):
        rank = job.process(60, rank=number, world=2, launch="L1")
        rank.span("train_module_creation", 60, 70)
        rank.span("checkpoint_load", 70, 72, path="step-20")
        rank.train(1, 40, 72, 2)
        rank.exit(152)
    launcher.exit(155, code=0)
    return job


@scenario(
    Truth(
        wall=270,
        buckets={
            "start.train_module_creation": 10,
            "train.effective": 100,
            "failure.hang": 140,
            "recover.downtime": 10,
            "recover.train_module_creation": 10,
        },
        tts=10,
        ttr=(160,),
        steps=100,
        attempts=(AttemptTruth("failed", 1, 50), AttemptTruth("completed", 51, 100, 50)),
        failures=("hang",),
    )
)
def it_hangs_is_killed_and_comes_back() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 10, 50)
    save(rank, 60, 50, "a.pt")
    killed(job, rank, 200)
    rank = life(job, 1, 210, 10, 50, "a.pt")
    done(job, rank, 270)
    return job


@scenario(
    Truth(
        wall=115,
        buckets={
            "start.train_module_creation": 10,
            "train.effective": 60,
            "failure.lost_training": 20,
            "waste.checkpoint_block": 3,  # from the open span to the last sign of life
            "recover.detection": 2,
            "recover.downtime": 10,
            "recover.train_module_creation": 10,
        },
        tts=10,
        ttr=(25,),
        steps=60,
        attempts=(AttemptTruth("failed", 1, 40), AttemptTruth("completed", 21, 60, 20)),
        failures=("unknown",),
    )
)
def killed_during_a_save() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 10, 40)
    save(rank, 30, 20, "latest.pt")
    rank.open("checkpoint_save", 50, step=40, path="latest.pt")
    rank.cells[pulse.ALIVE] = rank.at(53)
    killed(job, rank, 55)
    rank = life(job, 1, 65, 10, 40, "latest.pt")
    done(job, rank, 115)
    return job


@scenario(
    Truth(
        wall=60,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 30,
            "failure.lost_training": 13,
            "waste.checkpoint_block": 2,
            "recover.downtime": 5,
            "recover.train_module_creation": 5,
        },
        hidden={"waste.checkpoint_block": 5},
        tts=5,
        ttr=(10,),
        steps=30,
        attempts=(AttemptTruth("failed", 1, 23), AttemptTruth("completed", 11, 30, 10)),
        failures=("unknown",),
    )
)
def killed_before_a_background_save_was_durable() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 10)
    rank.span("checkpoint_save", 15, 16, step=10, path="latest", save=1)
    rank.span("checkpoint_save", 16, 18, th=9, background=True, step=10, path="latest", save=1)
    rank.train(11, 10, 16, 1)
    rank.span("checkpoint_save", 26, 27, step=20, path="latest", save=2)
    rank.open("checkpoint_save", 27, th=9, background=True, step=20, path="latest", save=2)
    rank.train(21, 3, 27, 1)
    killed(job, rank, 30)
    rank = life(job, 1, 35, 5, 20, "latest")
    done(job, rank, 60)
    return job


@scenario(
    Truth(
        wall=95,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 50,  # 20, 10 and 20 steps
            "failure.lost_training": 20,
            "recover.downtime": 10,
            "recover.train_module_creation": 10,
        },
        tts=5,
        ttr=(10, 10),
        steps=50,
        attempts=(
            AttemptTruth("failed", 1, 30),
            AttemptTruth("failed", 21, 40, 20),
            AttemptTruth("completed", 31, 50, 30),
        ),
        failures=("unknown", "unknown"),
    )
)
def two_failures_and_progress_between_them() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 30)
    save(rank, 25, 20, "step-20")
    killed(job, rank, 35)
    rank = life(job, 1, 40, 5, 20, "step-20")
    save(rank, 55, 10, "step-30")
    killed(job, rank, 65)
    rank = life(job, 2, 70, 5, 20, "step-30")
    done(job, rank, 95)
    return job


@scenario(
    Truth(
        wall=145,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 100,
            "failure.lost_training": 31,
            "recover.downtime": 4,
            "recover.train_module_creation": 5,
        },
        tts=5,
        ttr=(9,),
        steps=100,
        attempts=(AttemptTruth("failed", 1, 51), AttemptTruth("completed", 21, 100, 20)),
        failures=("unknown",),
    )
)
def it_resumes_from_an_older_checkpoint() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 51)
    save(rank, 25, 20, "step-20")
    save(rank, 45, 40, "step-40")
    killed(job, rank, 56)
    rank = life(job, 1, 60, 5, 80, "step-20")
    done(job, rank, 145)
    return job


@scenario(
    Truth(
        wall=75,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 30,
            "failure.lost_training": 30,
            "recover.downtime": 5,
            "recover.train_module_creation": 5,
        },
        tts=5,
        ttr=(10,),
        steps=30,
        attempts=(AttemptTruth("failed", 1, 30), AttemptTruth("completed", 1, 30, 0)),
        failures=("unknown",),
    )
)
def nothing_loaded_means_from_zero() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 30)
    save(rank, 25, 20, "step-20")
    killed(job, rank, 35)
    rank = life(job, 1, 40, 5, 30)
    done(job, rank, 75)
    return job


@scenario(
    Truth(
        wall=65,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 34,  # 20 steps, 4 of the device behind the save, 10 steps
            "failure.lost_training": 10,
            "waste.checkpoint_block": 6,
            "recover.downtime": 5,
            "recover.train_module_creation": 5,
        },
        tts=5,
        ttr=(10,),
        steps=30,
        attempts=(AttemptTruth("failed", 1, 30), AttemptTruth("completed", 21, 30, 20)),
        failures=("unknown",),
    )
)
def what_the_device_worked_off_behind_a_save_is_in_it() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 20)
    rank.span("checkpoint_save", 25, 35, step=20, path="a.pt")
    rank.event("drain", 25, ns=4 * NS)
    rank.train(21, 10, 35, 1)
    killed(job, rank, 45)
    rank = life(job, 1, 50, 5, 10, "a.pt")
    done(job, rank, 65)
    return job


@scenario(
    Truth(
        wall=35,
        buckets={
            "start.launcher_init": 4,
            "start.train_module_creation": 6,
            "start.get_first_batch_data": 1,
            "start.pt2_compile": 19,
            "recover.detection": 5,
        },
        tts=None,
        steps=0,
        attempts=(AttemptTruth("preempted"),),
        failures=("preemption",),
    )
)
def preempted_while_it_compiles() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(1)
    rank.span("import", 1, 4, module="torch")
    rank.span("train_module_creation", 4, 10)
    rank.span("data_wait", 10, 11)
    rank.open("compile", 11)
    launcher.event("signal", 30, signal=15)
    rank.event("signal", 30, signal=15)
    launcher.event("death", 35, pid=rank.lines[0]["pid"], code=-15)
    launcher.exit(35, code=143)
    return job


@scenario(
    Truth(
        wall=118,
        buckets={
            "start.train_module_creation": 10,
            "train.effective": 60,
            "waste.checkpoint_block": 3,
            "recover.downtime": 37,
            "recover.launcher_init": 1,
            "recover.train_module_creation": 5,
            "recover.checkpoint_load": 2,
        },
        tts=10,
        ttr=(48,),
        steps=60,
        attempts=(AttemptTruth("preempted", 1, 50), AttemptTruth("completed", 51, 60, 50)),
        failures=("preemption",),
    )
)
def preempted_and_requeued_on_another_host() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 10, 50)
    launcher = job.journals[0]
    launcher.event("signal", 60, signal=15)
    rank.span("checkpoint_save", 60, 63, step=50, path="a.pt")
    rank.exit(63)
    launcher.exit(63, code=143)
    other = Host("node7", "boot-7", monotonic=31.0)
    launcher = job.launcher(100, launch="L1", index=1, host=other)
    rank = job.process(101, launch="L1", host=other)
    rank.span("train_module_creation", 101, 106)
    rank.span("checkpoint_load", 106, 108, path="a.pt")
    rank.train(1, 10, 108, 1)
    rank.exit(118)
    launcher.exit(118, code=0)
    return job


@scenario(
    Truth(
        wall=65,  # without 40 to 80 in the queue
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 40,
            "recover.downtime": 5,
            "recover.hardware_setup": 10,
            "recover.train_module_creation": 5,
        },
        tts=5,
        ttr=(20,),
        steps=40,
        attempts=(AttemptTruth("preempted", 1, 30), AttemptTruth("completed", 31, 40, 30)),
        failures=("preemption",),
        queue=40,
    )
)
def preempted_queued_and_allocated_again() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 30)
    save(rank, 35, 30, "a.pt")
    rank.exit(35)
    job.journals[0].event("signal", 35, signal=15)
    job.journals[0].exit(35, code=143)
    clocks = {"queued": (EPOCH + 40) * NS, "allocated": (EPOCH + 80) * NS}
    launcher = job.launcher(90, launch="L1", index=1, **clocks)
    rank = job.process(90, launch="L1")
    rank.span("train_module_creation", 90, 95)
    rank.span("checkpoint_load", 95, 95, path="a.pt")
    rank.train(1, 10, 95, 1)
    rank.exit(105)
    launcher.exit(105, code=0)
    return job


@scenario(
    Truth(
        wall=60,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 40,
            "recover.downtime": 10,
            "recover.train_module_creation": 5,
        },
        tts=5,
        ttr=(15,),
        steps=40,
        attempts=(AttemptTruth("failed", 1, 20), AttemptTruth("completed", 21, 40, 20)),
        failures=("unknown",),
    )
)
def the_wall_clock_jumps_back_two_hours() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 20)
    save(rank, 25, 20, "a.pt")
    killed(job, rank, 25)
    set_back = Host(wall=-7200.0)  # the same boot
    launcher = job.launcher(35, launch="L1", index=1, host=set_back)
    rank = job.process(35, launch="L1", host=set_back)
    rank.span("train_module_creation", 35, 40)
    rank.span("checkpoint_load", 40, 40, path="a.pt")
    rank.train(1, 20, 40, 1)
    rank.exit(60)
    launcher.exit(60, code=0)
    return job


@scenario(
    Truth(
        wall=65,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 35,
            "recover.downtime": 20,
            "recover.train_module_creation": 5,
        },
        tts=5,
        ttr=(25,),
        steps=35,
        attempts=(AttemptTruth("failed", 1, 25), AttemptTruth("completed", 26, 35, 25)),
        failures=("unknown",),
    )
)
def the_host_dies_with_its_launcher() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 25)
    save(rank, 30, 25, "a.pt")
    job.journals[0].cells[pulse.ALIVE] = job.journals[0].at(30)
    rank = life(job, 1, 50, 5, 10, "a.pt")
    done(job, rank, 65)
    return job


@scenario(
    Truth(
        wall=58,
        buckets={
            "start.train_module_creation": 8,
            "train.effective": 10,
            "recover.detection": 2,
            "recover.downtime": 22,
            "recover.train_module_creation": 16,
        },
        tts=48,
        ttr=(),  # it had nothing to recover yet
        steps=10,
        attempts=(
            AttemptTruth("failed"),
            AttemptTruth("failed"),
            AttemptTruth("completed", 1, 10, 0),
        ),
        failures=("environment", "environment"),
    )
)
def it_fails_twice_before_it_ever_trained() -> FakeRun:
    job = FakeRun()
    for number, start in ((0, 0), (1, 20)):
        rank = life(job, number, start, 8, 0)
        rank.event("error", start + 8, type="ModuleNotFoundError", message="No module named 'x'")
        rank.exit(start + 8)
        job.journals[-2].exit(start + 9, code=1)
    rank = life(job, 2, 40, 8, 10)
    done(job, rank, 58)
    return job


@scenario(
    Truth(
        wall=70,
        buckets={
            "start.launcher_init": 2,
            "start.train_module_creation": 8,
            "train.effective": 40,
            "failure.lost_training": 5,
            "recover.detection": 3,
            "recover.downtime": 3,
            "recover.train_module_creation": 8,
            "stop.shutdown": 1,
        },
        tts=10,
        ttr=(14,),
        steps=40,
        attempts=(AttemptTruth("failed", 1, 20), AttemptTruth("completed", 16, 40, 15)),
        failures=("unknown",),
    )
)
def the_elastic_agent_sees_a_worker_fail() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    agent = job.process(0, rank=None, world=None)
    agent.event("agent", 1, state="rendezvous")
    ranks = [job.process(2, rank=number, world=2) for number in range(2)]
    for rank in ranks:
        rank.span("train_module_creation", 2, 10)
        rank.train(1, 20, 10, 1)
    save(ranks[0], 25, 15, "a.pt")
    agent.event("worker_failed", 33, pid=ranks[1].lines[0]["pid"], code=-9)
    agent.event("worker_failed", 34, pid=ranks[0].lines[0]["pid"], code=-15)
    for number in range(2):
        rank = job.process(36, rank=number, world=2, restart=1)
        rank.span("train_module_creation", 36, 44)
        rank.span("checkpoint_load", 44, 44, path="a.pt")
        rank.train(1, 25, 44, 1)
        rank.exit(69)
    agent.exit(70)
    launcher.exit(70, code=0)
    return job


@scenario(
    Truth(
        wall=43,
        buckets={
            "start.launcher_init": 1,
            "start.train_module_creation": 9,
            "train.effective": 10,
            "failure.lost_training": 10,
            "recover.downtime": 4,
            "recover.train_module_creation": 9,
        },
        tts=10,
        ttr=(13,),
        steps=10,
        attempts=(AttemptTruth("failed", 1, 10), AttemptTruth("completed", 1, 10, 0)),
        failures=("user_code",),
    )
)
def restarted_within_one_launch() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    for restart, start in ((0, 1), (1, 24)):
        rank = job.process(start, restart=restart)
        rank.span("train_module_creation", start, start + 9)
        rank.train(1, 10, start + 9, 1)
        if restart == 0:
            rank.event("error", 20, type="RuntimeError", message="boom")
        rank.exit(start + 19)
    launcher.exit(43, code=0)
    return job


@scenario(
    Truth(
        wall=56,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 20,
            "waste.data_stall": 30,  # it waited until it gave up
            "recover.detection": 1,
        },
        tts=5,
        steps=20,
        attempts=(AttemptTruth("failed", 1, 20),),
        failures=("network",),
    )
)
def the_data_source_breaks() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 20)
    rank.span("data_wait", 25, 55, last=False)
    rank.event("error", 55, type="ConnectionError", message="no route to the data")
    rank.exit(55)
    job.journals[0].exit(56, code=1)
    return job


@scenario(
    Truth(
        wall=15,
        buckets={"start.train_module_creation": 5, "train.effective": 10},
        tts=5,
        steps=10,
        attempts=(AttemptTruth("failed", 1, 10),),
        failures=("user_code",),
    )
)
def it_raises_and_there_is_no_launcher() -> FakeRun:
    job = FakeRun()
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 10, 5, 1)
    rank.event("error", 15, type="ValueError", message="no")
    rank.exit(15)
    return job


@scenario(
    Truth(
        wall=17,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 10,
            "stop.shutdown": 2,
        },
        tts=5,
        steps=10,
        attempts=(AttemptTruth("stopped", 1, 10),),
    )
)
def stopped_by_its_user() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 10)
    job.journals[0].event("signal", 15, signal=2)
    rank.event("error", 15, type="KeyboardInterrupt", message="")
    rank.exit(16)
    job.journals[0].exit(17, code=130)
    return job


@scenario(
    Truth(
        wall=317,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 10,
            "failure.hang": 300,
            "stop.shutdown": 2,
        },
        tts=5,
        steps=10,
        attempts=(AttemptTruth("stopped", 1, 10),),
    )
)
def it_hangs_until_its_user_stops_it() -> FakeRun:
    job = FakeRun()
    life(job, 0, 0, 5, 10)
    job.journals[0].event("signal", 315, signal=2)
    job.journals[0].exit(317, code=130)
    return job


@scenario(
    Truth(
        wall=24,
        buckets={
            "start.launcher_init": 2,
            "start.train_module_creation": 2,
            "train.effective": 20,  # 4 to 24
        },
        tts=4,
        steps=20,
        attempts=(AttemptTruth("failed", 1, 20),),
        failures=(None,),
        note="launcher-died",
    )
)
def the_launcher_was_killed() -> FakeRun:
    """With its job, on a machine that is gone: long ago, as nobody gives a sign of life."""
    job = FakeRun()
    launcher = job.launcher(0, spawn=2, pids=1)
    launcher.cells[pulse.ALIVE] = launcher.at(24)
    rank = job.process(2, pids=1)
    rank.span("train_module_creation", 2, 4)
    rank.train(1, 20, 4, 1)
    return job
