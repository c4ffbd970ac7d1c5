"""Truth about starts, ends and silences that random jobs (test_random_jobs.py) have found."""

from __future__ import annotations

from headway.journal import pulse
from headway.testing import FakeRun
from tests.truth.interruptions import done, life, save
from tests.truth.loops import window
from tests.truth.scenarios import AttemptTruth, Truth, scenario


@scenario(
    Truth(
        wall=115,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 10,
            "failure.hang": 100,
        },
        tts=5,
        steps=10,
        attempts=(AttemptTruth("failed", 1, 10),),
        failures=("hang",),
        note="launcher-died",
    )
)
def it_hangs_until_its_launcher_is_killed() -> FakeRun:
    """Nobody saw the rank dead; that it lived and made no step is known up to 115."""
    job = FakeRun()
    launcher = job.launcher(0, pids=1)
    launcher.cells[pulse.ALIVE] = launcher.at(115)
    rank = job.process(0, pids=1)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 10, 5, 1)
    return job


@scenario(
    Truth(
        wall=55,
        buckets={
            "start.train_module_creation": 5,
            "recover.train_module_creation": 5,
            "train.effective": 30,
            "waste.checkpoint_block": 5,  # by rank 0, when rank 1 is gone already
            "recover.detection": 1,
            "recover.downtime": 9,
        },
        tts=5,
        ttr=(20,),
        steps=30,
        attempts=(AttemptTruth("preempted", 1, 20), AttemptTruth("completed", 21, 30, 20)),
        failures=("preemption",),
    )
)
def one_rank_leaves_while_another_one_still_saves() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    ranks = [job.process(0, rank=number, world=2) for number in range(2)]
    for rank in ranks:
        rank.span("train_module_creation", 0, 5)
        rank.train(1, 20, 5, 1)
    launcher.event("signal", 25, signal=15)
    ranks[1].exit(25)
    launcher.event("death", 25, pid=ranks[1].lines[0]["pid"], code=0)
    ranks[0].span("checkpoint_save", 25, 30, step=20, path="a.pt")
    ranks[0].exit(30)
    launcher.event("death", 31, pid=ranks[0].lines[0]["pid"], code=0)
    launcher.exit(32, code=143)
    launcher = job.launcher(40, launch="L1", index=1)
    for number in range(2):
        rank = job.process(40, rank=number, world=2, launch="L1")
        rank.span("train_module_creation", 40, 45)
        rank.span("checkpoint_load", 45, 45, path="a.pt")
        rank.train(1, 10, 45, 1)
        rank.exit(55)
    launcher.exit(55, code=0)
    return job


@scenario(
    Truth(
        wall=65,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 20,
            "recover.detection": 40,
        },
        tts=5,
        steps=20,
        attempts=(AttemptTruth("preempted", 1, 20),),
        failures=("preemption",),
    )
)
def silent_only_after_it_was_told_to_stop() -> FakeRun:
    """A handler of its own takes 40 s: that is no hang."""
    job = FakeRun()
    rank = life(job, 0, 0, 5, 20)
    job.journals[0].event("signal", 25, signal=15)
    rank.event("signal", 25, signal=15)
    job.journals[0].event("death", 65, pid=rank.lines[0]["pid"], code=-9)
    job.journals[0].exit(65, code=143)
    return job


@scenario(
    Truth(
        wall=57,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 20,
            "recover.detection": 31.5,
            "stop.shutdown": 0.5,
        },
        tts=5,
        steps=20,
        attempts=(AttemptTruth("failed", 1, 20),),
        failures=("user_code",),
        ranks={
            1: {
                "start.train_module_creation": 5,
                "train.effective": 20,
                "recover.detection": 31.5,
                "stop.shutdown": 0.5,
            },
        },
    )
)
def the_others_wait_for_a_rank_that_has_raised() -> FakeRun:
    """It takes 30 s to end, for what it has registered to be done at its exit."""
    job = FakeRun()
    launcher = job.launcher(0)
    ranks = [job.process(0, rank=number, world=2) for number in range(2)]
    for rank in ranks:
        rank.span("train_module_creation", 0, 5)
        rank.train(1, 20, 5, 1)
    ranks[0].event("error", 26, type="ValueError", message="no")
    ranks[0].exit(56)
    launcher.event("death", 56.5, pid=ranks[0].lines[0]["pid"], code=1)
    launcher.event("death", 56.8, pid=ranks[1].lines[0]["pid"], code=-15)
    launcher.exit(57, code=1)
    return job


@scenario(
    Truth(
        wall=38,
        buckets={
            "start.train_module_creation": 5,
            "unknown": 1,
            "start.get_first_batch_data": 2,
            "train.effective": 30,
        },
        tts=8,
        steps=15,
        attempts=(AttemptTruth("completed", 1, 15),),
    )
)
def the_first_batch_is_there_when_the_iterator_is_made() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 0)
    rank.span("data_iter", 6, 8)
    rank.train(1, 15, 8, 2)
    done(job, rank, 38)
    return job


@scenario(
    Truth(
        wall=30,
        buckets={
            "start.train_module_creation": 5,
            "start.get_first_batch_data": 2,
            "train.effective": 21,
            "waste.data_stall": 2,  # the second epoch begins within the first step
        },
        tts=7,
        steps=12,
        attempts=(AttemptTruth("completed", 1, 12),),
    )
)
def a_second_iterator_within_the_first_step() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 0)
    rank.span("data_iter", 5, 6)
    rank.span("data_wait", 6, 7)
    rank.span("data_iter", 10, 11)
    rank.span("data_wait", 11, 12)
    rank.train(1, 1, 7, 12)
    rank.train(2, 11, 19, 1)
    done(job, rank, 30)
    return job


@scenario(
    Truth(
        wall=43,
        buckets={"start.launcher_init": 3, "train.effective": 40},
        tts=3,
        steps=20,
        attempts=(AttemptTruth("completed", 1, 20),),
    )
)
def the_interpreter_starts_before_it_can_train() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(1)
    rank.lines[0]["t"] = rank.at(3)  # begun at 1
    rank.train(1, 20, 3, 2)
    rank.exit(43)
    launcher.exit(43, code=0)
    return job


@scenario(
    Truth(
        wall=31,
        buckets={
            "unknown": 1,
            "start.train_module_creation": 4,
            "start.checkpoint_load": 6,  # from 5 on nothing else is known
            "train.effective": 20,
        },
        hidden={"start.checkpoint_load": 21},
        tts=11,
        steps=20,
        attempts=(AttemptTruth("completed", 1, 20),),
    )
)
def the_first_step_does_not_wait_for_a_load_that_ends_after_it() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 1, 5)
    rank.span("checkpoint_load", 3, 30, th=9, path="teacher.pt")
    window(rank, 1, 0, 12)
    for step in range(2, 21):
        window(rank, step, 10 + step, 11 + step)
    rank.exit(31)
    launcher.exit(31, code=0)
    return job


@scenario(
    Truth(
        wall=32,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 13,
            "recover.detection": 2,
            "stop.shutdown": 12,
        },
        hidden={"waste.checkpoint_block": 2},  # the rest is written after the attempt's end
        tts=5,
        steps=13,
        attempts=(AttemptTruth("failed", 1, 13),),
        failures=("unknown",),
    )
)
def a_save_is_still_written_when_another_rank_has_died() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    ranks = [job.process(0, rank=number, world=2) for number in range(2)]
    for rank in ranks:
        rank.span("train_module_creation", 0, 5)
        rank.train(1, 13, 5, 1)
    launcher.event("death", 20, pid=ranks[1].lines[0]["pid"], code=-9)
    ranks[0].span("checkpoint_save", 18, 30, th=9, background=True, path="a.pt", step=13)
    launcher.event("death", 31, pid=ranks[0].lines[0]["pid"], code=-15)
    launcher.exit(32, code=137)
    return job


@scenario(
    Truth(
        wall=60,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 15,
            "failure.lost_training": 10,
            "recover.detection": 15,
            "recover.downtime": 5,
            "recover.train_module_creation": 5,
            "stop.shutdown": 5,
        },
        tts=5,
        ttr=(15,),
        steps=15,
        attempts=(AttemptTruth("failed", 1, 10), AttemptTruth("failed", 1, 15, 0)),
        failures=("unknown", "user_code"),
    )
)
def the_next_process_has_the_same_pid() -> FakeRun:
    """And the exit code of the launcher is that of the second one."""
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0, pid=50)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 10, 5, 1)
    launcher.event("death", 20, pid=50, code=-9)
    rank = job.process(25, pid=50, restart=1)
    rank.span("train_module_creation", 25, 30)
    rank.train(1, 15, 30, 1)
    rank.event("error", 46, type="ValueError", message="no")
    rank.exit(46)
    launcher.event("death", 55, pid=50, code=1)
    launcher.exit(60, code=1)
    return job


@scenario(
    Truth(
        wall=45,
        buckets={"start.train_module_creation": 5, "train.effective": 40},
        hidden={"waste.blocked": 3},
        tts=5,
        steps=40,
        attempts=(AttemptTruth("completed", 1, 40),),
    )
)
def another_thread_evaluates_a_save_while_the_loop_goes_on() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 20)
    save(rank, 25, 20, "a.pt")
    rank.train(21, 8, 25, 1)
    rank.span("checkpoint_load", 29.5, 32.5, th=9, path="a.pt")
    rank.train(29, 12, 33, 1)
    done(job, rank, 45)
    return job


@scenario(
    Truth(
        wall=25,
        buckets={"start.train_module_creation": 5, "train.effective": 20},
        tts=5,
        steps=20,
        attempts=(AttemptTruth("completed", 1, 20),),
        ranks={1: {"start.device_init": 2, "unknown": 23}},
    )
)
def a_parameter_server_is_no_trainer() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    trainer, server = (job.process(0, rank=number, world=2) for number in range(2))
    trainer.span("train_module_creation", 0, 5)
    trainer.train(1, 20, 5, 1)
    server.span("device_init", 0, 2)
    for rank in (trainer, server):
        rank.exit(25)
    launcher.exit(25, code=0)
    return job


@scenario(
    Truth(
        wall=75,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 10,
            "recover.detection": 1,
            "stop.shutdown": 59,
        },
        tts=5,
        steps=10,
        attempts=(AttemptTruth("failed", 1, 10),),
        failures=("unknown",),
        note="launcher-died",
    )
)
def a_helper_lives_longer_than_the_ranks_and_their_launcher() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0, pids=1)
    launcher.cells[pulse.ALIVE] = launcher.at(16)
    rank = job.process(0, pids=1)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 10, 5, 1)
    helper = job.process(0, rank=None, world=None, helper=True, pids=1)
    helper.event("note", 75, hook="writer", text="written")
    return job
