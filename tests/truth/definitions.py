"""Truth about the finer definitions of docs/metric.md: whose second it is, and what counts."""

from __future__ import annotations

from headway.journal import pulse
from headway.testing import FakeRun, Host
from tests.truth.interruptions import done, killed, life, save
from tests.truth.loops import window
from tests.truth.scenarios import AttemptTruth, Truth, scenario


@scenario(
    Truth(
        wall=210,
        buckets={
            "start.train_module_creation": 10,
            "train.effective": 150,  # 100 of the first attempt, 50 of the third
            "failure.lost_training": 10,
            "recover.downtime": 20,
            "recover.train_module_creation": 20,
        },
        tts=10,
        ttr=(20, 20),
        steps=150,
        attempts=(
            AttemptTruth("failed", 1, 100),
            AttemptTruth("failed", 1, 10, 0),
            AttemptTruth("completed", 101, 150, 100),
        ),
        failures=("unknown", "unknown"),
    )
)
def a_detour_from_scratch_loses_only_itself() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 10, 100)
    save(rank, 110, 100, "step-100")
    killed(job, rank, 110)
    rank = life(job, 1, 120, 10, 10)
    killed(job, rank, 140)
    rank = life(job, 2, 150, 10, 50, "step-100")
    done(job, rank, 210)
    return job


@scenario(
    Truth(
        wall=41,
        buckets={
            "start.train_module_creation": 10,
            "train.effective": 30,
            "stop.shutdown": 1,
        },
        tts=5,
        steps=30,
        attempts=(AttemptTruth("completed", 1, 20), AttemptTruth("completed", 1, 10, 0)),
        paused=74,
    )
)
def started_again_from_scratch_after_it_was_completed() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 20)
    rank.exit(25)
    job.journals[0].exit(26, code=0)
    rank = life(job, 1, 100, 5, 10)
    done(job, rank, 115)
    return job


@scenario(
    Truth(
        wall=55,
        buckets={
            "start.train_module_creation": 10,
            "train.effective": 35,
            "failure.lost_training": 10,
        },
        tts=5,
        steps=35,
        attempts=(AttemptTruth("completed", 1, 30), AttemptTruth("completed", 21, 35, 20)),
        paused=65,
    )
)
def continued_from_an_earlier_save_after_it_was_completed() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 30)
    save(rank, 25, 20, "step-20")
    done(job, rank, 35)
    rank = life(job, 1, 100, 5, 15, "step-20")
    done(job, rank, 120)
    return job


@scenario(
    Truth(
        wall=37,
        buckets={
            "start.train_module_creation": 10,
            "train.effective": 20,
            "stop.shutdown": 7,  # 2 until it was dead, 5 until the launcher was gone
        },
        tts=5,
        steps=20,
        attempts=(AttemptTruth("stopped", 1, 10), AttemptTruth("completed", 11, 20, 10)),
        paused=78,
    )
)
def stopped_by_its_user_and_started_again() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 10)
    save(rank, 15, 10, "a.pt")
    job.journals[0].event("signal", 15, signal=2)
    job.journals[0].event("death", 17, pid=rank.lines[0]["pid"], code=-2)
    job.journals[0].exit(22, code=130)
    rank = life(job, 1, 100, 5, 10, "a.pt")
    done(job, rank, 115)
    return job


@scenario(
    Truth(
        wall=16.5,
        buckets={
            "start.train_module_creation": 1,
            "train.effective": 10,
            "stop.shutdown": 5.5,
        },
        tts=1,
        steps=10,
        attempts=(AttemptTruth("stopped", 1, 10),),
    )
)
def ctrl_c_is_no_failure() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 1, 10)
    job.journals[0].event("signal", 11, signal=2)
    job.journals[0].event("death", 11.5, pid=rank.lines[0]["pid"], code=-2)
    job.journals[0].exit(16.5, code=130)
    return job


@scenario(
    Truth(
        wall=56,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 30,
            "failure.hang": 20.5,
            "stop.shutdown": 0.5,
        },
        tts=5,
        steps=30,
        attempts=(AttemptTruth("failed", 1, 30),),
        failures=("hang",),
        ranks={
            0: {
                "start.train_module_creation": 5,
                "train.effective": 30,
                "recover.detection": 20.5,
                "stop.shutdown": 0.5,
            },
        },
    )
)
def a_rank_hangs_and_the_other_one_raises_because_of_it() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    ranks = [job.process(0, rank=number, world=2) for number in range(2)]
    for rank in ranks:
        rank.span("train_module_creation", 0, 5)
        rank.train(1, 30, 5, 1)
    ranks[0].event("error", 55, type="RuntimeError", message="Timed out waiting 20000ms")
    ranks[0].exit(55)
    launcher.event("death", 55.5, pid=ranks[0].lines[0]["pid"], code=1)
    launcher.event("death", 55.8, pid=ranks[1].lines[0]["pid"], code=-15)
    launcher.exit(56, code=1)
    return job


@scenario(
    Truth(
        wall=8.5,
        buckets={
            "unknown": 1,
            "start.checkpoint_load": 5,
            "train.effective": 2.5,
        },
        hidden={"start.get_first_batch_data": 0.5},
        tts=6,
        steps=50,
        attempts=(AttemptTruth("completed", 1, 50),),
    )
)
def the_loop_waits_for_a_load_in_another_thread() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("checkpoint_load", 1, 6, th=9, path="a.pt")
    rank.span("data_wait", 1, 1.5)
    rank.train(1, 50, 6, 0.05)
    rank.exit(8.5)
    launcher.exit(8.5, code=0)
    return job


@scenario(
    Truth(
        wall=26,
        buckets={
            "start.train_module_creation": 5,
            "start.pt2_compile": 10,  # of rank 0, while nobody knows what rank 1 does from 7 to 15
            "train.effective": 11,
        },
        tts=15,
        steps=11,
        attempts=(AttemptTruth("completed", 1, 11),),
        ranks={
            1: {
                "start.train_module_creation": 5,
                "start.pt2_compile": 2,
                "unknown": 8,
                "train.effective": 11,
            },
        },
    )
)
def one_rank_compiles_longer_than_the_other() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    for number, compiled in ((0, 15), (1, 7)):
        rank = job.process(0, rank=number, world=2)
        rank.span("train_module_creation", 0, 5)
        rank.span("compile", 5, compiled)
        rank.train(1, 1, 5, 11)
        rank.train(2, 10, 16, 1)
        rank.exit(26)
    launcher.exit(26, code=0)
    return job


@scenario(
    Truth(
        wall=72,
        buckets={
            "start.train_module_creation": 10,
            "train.effective": 60,
            "stop.shutdown": 2,
        },
        tts=5,
        steps=60,
        attempts=(AttemptTruth("completed", 1, 30), AttemptTruth("completed", 1, 30, 0)),
    )
)
def two_programs_follow_each_other_in_one_launch() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    for start in (0, 36):
        rank = job.process(start, rank=None, world=None)
        rank.span("train_module_creation", start, start + 5)
        rank.train(1, 30, start + 5, 1)
        rank.exit(start + 35)
        launcher.event("death", start + 35, pid=rank.lines[0]["pid"], code=0)
    launcher.exit(72, code=0)
    return job


@scenario(
    Truth(
        wall=42,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 35,
            "recover.detection": 1,
            "stop.shutdown": 1,
        },
        tts=5,
        steps=35,
        attempts=(AttemptTruth("failed", 1, 35),),
        failures=(None,),
    )
)
def two_pods_of_a_node_count_their_processes_alike() -> FakeRun:
    """Process 8 of the first pod has died long before process 8 of the second one, rank 1."""
    job = FakeRun()
    launchers = [job.launcher(0, pids=1), job.launcher(0, pids=2)]
    for number, pod in ((0, 1), (1, 2)):
        rank = job.process(0, rank=number, world=2, pid=7 + number, pids=pod)
        rank.span("train_module_creation", 0, 5)
        rank.train(1, 35, 5, 1)
    launchers[0].event("death", 20, pid=8, code=0)
    launchers[1].event("death", 41, pid=8, code=-9)
    launchers[0].event("death", 41.5, pid=7, code=-15)
    for launcher in launchers:
        launcher.exit(42, code=1)
    return job


@scenario(
    Truth(
        wall=26,
        buckets={
            "start.train_module_creation": 5,
            "recover.detection": 1,
            "recover.downtime": 4,
            "recover.launcher_init": 1,
            "recover.process_group_init": 2,
            "recover.train_module_creation": 2,
            "train.effective": 10,
            "stop.shutdown": 1,
        },
        tts=15,
        steps=10,
        attempts=(AttemptTruth("failed"), AttemptTruth("completed", 1, 10, 0)),
        failures=(None,),
        note="[clock-differs]",
    )
)
def a_process_group_corrects_a_clock_that_was_guessed_before() -> FakeRun:
    """Node 1 is 47 minutes ahead, and the first attempt does not come to a process group."""
    job = FakeRun()
    nodes = (Host(), Host("node1", "boot-1", monotonic=9.0, wall=2820.0))
    for node in nodes:
        launcher = job.launcher(0, host=node)
        rank = job.process(0, rank=nodes.index(node), world=2, host=node)
        rank.span("train_module_creation", 0, 5)
        launcher.event("death", 6, pid=rank.lines[0]["pid"], code=-9)
        launcher.exit(6.5, code=1)
    for node in nodes:
        launcher = job.launcher(10, launch="L1", index=1, host=node)
        rank = job.process(10, rank=nodes.index(node), world=2, launch="L1", host=node)
        rank.span("import", 10, 11, module="torch")
        rank.span("process_group_init", 11, 13)
        rank.span("train_module_creation", 13, 15)
        rank.train(1, 10, 15, 1)
        rank.exit(25)
        launcher.exit(26, code=0)
    return job


@scenario(
    Truth(
        wall=13,
        buckets={
            "start.train_module_creation": 4,
            "train.effective": 6.25,
            "waste.checkpoint_block": 1.25,
            # Both wait for 0.05 s in each quarter of a second that they train. Second 4: 0.15;
            # 5 to 7: 0.2 each; 8: 0.15 of rank 0 before it saves; 10 to 12: 0.2 each.
            "waste.data_stall": 1.5,
        },
        tts=4,
        steps=31,
        attempts=(AttemptTruth("completed", 1, 31),),
        ranks={
            0: {
                "start.train_module_creation": 4,
                "train.effective": 6.25,
                "waste.checkpoint_block": 1.25,
                "waste.data_stall": 1.5,
            },
            1: {
                "start.train_module_creation": 4,
                "train.effective": 7.5,
                "waste.data_stall": 1.5,
            },
        },
    )
)
def short_waits_side_by_side_while_one_rank_saves() -> FakeRun:
    """Rank 0 begins a new line before and after its save, rank 1 does not."""
    job = FakeRun()
    launcher = job.launcher(0)
    ranks = [job.process(0, rank=number, world=2) for number in range(2)]
    for rank in ranks:
        rank.span("train_module_creation", 0, 4)
        window(rank, 1, 0, 4.25)
        for second in range(4):
            begin = 4.25 + second
            window(rank, rank.steps + 4, begin, begin + 1, wait=0.2)
    window(ranks[0], 19, 8.25, 8.75, wait=0.1)
    ranks[0].span("checkpoint_save", 8.75, 10, step=19, path="a.pt")
    window(ranks[1], 20, 8.25, 10.25, wait=0.15)
    for begin, end, last in ((10, 11, 23), (11, 12, 27), (12, 13, 31)):
        window(ranks[0], last, begin, end, wait=0.2)
    for begin, end, last in ((10.25, 11.25, 24), (11.25, 12.25, 28), (12.25, 13, 31)):
        window(ranks[1], last, begin, end, wait=0.05 * (last - ranks[1].steps))
    for rank in ranks:
        rank.exit(13)
    launcher.exit(13, code=0)
    return job


@scenario(
    Truth(
        wall=25,
        buckets={"start.train_module_creation": 5, "train.effective": 20},
        hidden={"waste.checkpoint_block": 4},
        tts=5,
        steps=20,
        attempts=(AttemptTruth("completed", 1, 20),),
    )
)
def another_thread_saves_while_the_loop_trains() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 20, 5, 1)
    rank.span("checkpoint_save", 10, 14, th=9, step=5, path="a.pt")
    rank.exit(25)
    launcher.exit(25, code=0)
    return job


@scenario(
    Truth(
        wall=81,
        buckets={
            "start.train_module_creation": 5,
            "unknown": 9,  # the first step took 10 s, the others 1 s
            "train.effective": 7,
            "waste.evaluation": 60,
        },
        tts=14,
        steps=7,
        attempts=(AttemptTruth("completed", 1, 7),),
    )
)
def an_evaluation_is_no_part_of_the_time_of_a_step() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 1, 5, 10)
    rank.train(2, 3, 15, 1)
    rank.span("evaluation", 18, 78)
    rank.train(5, 1, 18, 61)
    rank.train(6, 2, 79, 1)
    rank.exit(81)
    launcher.exit(81, code=0)
    return job


@scenario(
    Truth(
        wall=70,
        buckets={"unknown": 20, "start.pt2_compile": 30, "train.effective": 20},
        tts=50,
        steps=20,
        attempts=(AttemptTruth("completed", 1, 20),),
    )
)
def a_compile_that_imports_is_one_compile() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    compile = rank.open("compile", 20)
    rank.span("compile_import", 22, 42)
    rank.close(compile, 50)
    rank.train(1, 1, 50, 1)
    rank.train(2, 19, 51, 1)
    rank.exit(70)
    launcher.exit(70, code=0)
    return job


@scenario(
    Truth(
        wall=620,
        buckets={
            "unknown": 600,
            "start.launcher_init": 3,
            "start.train_module_creation": 7,
            "train.effective": 10,
        },
        tts=610,
        steps=10,
        attempts=(AttemptTruth("completed", 1, 10),),
    )
)
def own_work_before_torch_is_imported_is_unknown() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("import", 600, 603, module="torch")
    rank.span("train_module_creation", 603, 610)
    rank.train(1, 10, 610, 1)
    rank.exit(620)
    launcher.exit(620, code=0)
    return job


@scenario(
    Truth(
        wall=30,
        buckets={"start.launcher_init": 7, "unknown": 23},
        tts=None,
        steps=0,
        attempts=(AttemptTruth("completed"),),
    )
)
def a_command_is_started_when_its_own_launcher_says_so() -> FakeRun:
    job = FakeRun()
    for begin, spawn, node in ((5, 7, Host()), (0, 8, Host("node1", "boot-1", monotonic=9.0))):
        job.launcher(begin, spawn=spawn, host=node).exit(30, code=0)
    return job


@scenario(
    Truth(
        wall=48,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 30,
            "waste.data_stall": 10,  # 35 to 45, when it was told to stop
            "recover.detection": 2,
            "stop.shutdown": 1,
        },
        tts=5,
        steps=30,
        attempts=(AttemptTruth("preempted", 1, 30),),
        failures=("preemption",),
    )
)
def told_to_stop_while_it_waits_for_a_batch() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 30)
    rank.cells[pulse.WAITING] = rank.at(35)
    job.journals[0].event("signal", 45, signal=15)
    job.journals[0].event("death", 47, pid=rank.lines[0]["pid"], code=-15)
    job.journals[0].exit(48, code=143)
    return job


@scenario(
    Truth(
        wall=57,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 40,
            "failure.lost_training": 10,
            "waste.blocked": 2,
        },
        tts=5,
        steps=40,
        attempts=(AttemptTruth("completed", 1, 40),),
    )
)
def the_loop_goes_back_to_its_own_save() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 20, 5, 1)
    save(rank, 25, 20, "a.pt")
    rank.train(21, 10, 25, 1)
    rank.span("checkpoint_load", 35, 37, path="a.pt")
    rank.train(31, 20, 37, 1)
    rank.exit(57)
    launcher.exit(57, code=0)
    return job


@scenario(
    Truth(
        wall=57,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 40,
            "failure.lost_training": 10,
            "waste.blocked": 2,
        },
        tts=5,
        steps=40,
        attempts=(AttemptTruth("completed", 1, 40),),
    )
)
def a_checkpointer_goes_back_to_its_own_save() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 30, 5, 1)
    rank.event("progress", 34, step=29)  # says nothing new
    rank.span("checkpoint_load", 35, 37)
    rank.event("restored", 37, step=20, level="disk", source="step-20", seconds=2.0)
    rank.train(31, 20, 37, 1)
    rank.exit(57)
    launcher.exit(57, code=0)
    return job


@scenario(
    Truth(
        wall=72,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 30,  # 20 before it went back, 5 after, 5 of the second attempt
            "failure.lost_training": 15,  # 10 that it went back on, 5 after its last save
            "waste.blocked": 2,
            "recover.downtime": 15,
            "recover.train_module_creation": 5,
        },
        tts=5,
        ttr=(20,),
        steps=30,
        attempts=(AttemptTruth("failed", 1, 30), AttemptTruth("completed", 26, 30, 25)),
        failures=("unknown",),
    )
)
def saves_after_the_loop_went_back_are_numbered_from_there() -> FakeRun:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 20)
    save(rank, 25, 20, "a.pt")
    rank.train(21, 10, 25, 1)
    rank.span("checkpoint_load", 35, 37, path="a.pt")
    rank.train(31, 10, 37, 1)
    save(rank, 42, 35, "b.pt")  # the process has made 35 steps, the run is at 25
    killed(job, rank, 47)
    rank = life(job, 1, 62, 5, 5, "b.pt")
    done(job, rank, 72)
    return job


@scenario(
    Truth(
        wall=20,
        buckets={
            "start.train_module_creation": 4,
            "unknown": 1,
            "recover.downtime": 1,
            "recover.train_module_creation": 4,
            "train.effective": 10,
        },
        tts=10,
        steps=10,
        attempts=(AttemptTruth("failed"), AttemptTruth("completed", 1, 10, 0)),
        failures=("user_code",),
    )
)
def a_program_dies_before_its_first_step_and_is_tried_again() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0, rank=None, world=None)
    rank.span("train_module_creation", 0, 4)
    rank.event("error", 5, type="ValueError", message="no")
    rank.exit(5)
    rank = job.process(6, rank=None, world=None)
    rank.span("train_module_creation", 6, 10)
    rank.train(1, 10, 10, 1)
    rank.exit(20)
    launcher.exit(20, code=0)
    return job
