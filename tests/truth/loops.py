"""Truth about the training loop and its end: waits, saves, compiles, evaluation, publishing."""

from __future__ import annotations

from pathlib import Path

from headway.journal import pulse
from headway.testing import FakeJournal, FakeRun
from headway.units import NS
from tests.truth.scenarios import AttemptTruth, Truth, scenario


def window(
    rank: FakeJournal, last: int, start: float, end: float, *, wait: float = 0, batches: int = 0
) -> None:
    """One summary line; `start` 0 means that it is not known, as for the first step."""
    rank.lines.append(
        {
            "ev": "steps",
            "t": rank.at(start) if start else 0,
            "end": rank.at(end),
            "first": rank.steps + 1,
            "last": last,
            "wait": round(wait * NS),
            "batches": batches,
        }
    )
    rank.steps = last


@scenario(
    Truth(
        wall=46,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 20,
            "waste.evaluation": 20,
            "stop.shutdown": 1,
        },
        tts=5,
        steps=20,
        attempts=(AttemptTruth("completed", 1, 20),),
    )
)
def evaluation_between_the_steps_and_after_them() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 10, 5, 1)
    rank.span("evaluation", 15, 25)
    rank.train(11, 10, 25, 1)
    rank.span("evaluation", 35, 45)
    rank.exit(46)
    launcher.exit(46, code=0)
    return job


@scenario(
    Truth(
        wall=51,
        buckets={
            "start.train_module_creation": 5,
            "start.get_first_batch_data": 1,
            "train.effective": 44,
            "waste.data_stall": 1,  # the second batch of the first step
        },
        tts=6,
        steps=11,
        attempts=(AttemptTruth("completed", 1, 11),),
        batches=4.0,
    )
)
def gradients_are_accumulated_over_four_batches() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.span("data_wait", 5, 6)
    rank.span("data_wait", 7, 8)
    window(rank, 1, 0, 11, batches=4)
    for step in range(2, 12):
        window(rank, step, 11 + 4 * (step - 2), 11 + 4 * (step - 1), batches=4)
    rank.exit(51)
    launcher.exit(51, code=0)
    return job


@scenario(
    Truth(
        wall=60,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 46,  # 40 of steps, 4 behind the save, 2 behind the wait
            "waste.checkpoint_block": 6,
            "waste.data_stall": 3,
        },
        tts=5,
        steps=40,
        attempts=(AttemptTruth("completed", 1, 40),),
    )
)
def the_device_works_while_the_host_saves_and_waits() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 20, 5, 1)
    rank.span("checkpoint_save", 25, 35, step=20, path="a.pt")
    rank.event("drain", 25, ns=4 * NS)
    rank.train(21, 10, 35, 1)
    rank.span("data_wait", 45, 50)
    rank.event("drain", 45, ns=2 * NS)
    rank.train(31, 10, 50, 1)
    rank.exit(60)
    launcher.exit(60, code=0)
    return job


@scenario(
    Truth(
        wall=29,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 20,
            "stop.shutdown": 4,
        },
        tts=5,
        steps=20,
        attempts=(AttemptTruth("completed", 1, 20),),
    )
)
def the_loader_ends_after_the_last_step() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 20, 5, 1)
    rank.span("data_wait", 25, 28, last=True)
    rank.exit(29)
    launcher.exit(29, code=0)
    return job


@scenario(
    Truth(
        wall=56,
        buckets={
            "start.train_module_creation": 5,
            "start.get_first_batch_data": 1,
            "start.pt2_compile": 20,  # inside the first step
            "train.effective": 20,
            "waste.recompile": 10,  # inside the eleventh
        },
        tts=26,
        steps=20,
        attempts=(AttemptTruth("completed", 1, 20),),
    )
)
def compiled_in_the_first_step_and_again_in_the_loop() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.span("data_wait", 5, 6)
    rank.span("compile", 6, 26, where="train.py:7")
    rank.train(1, 1, 6, 21)
    rank.train(2, 9, 27, 1)
    rank.span("compile", 36, 46, where="train.py:7", reason="size mismatch at index 0")
    rank.train(11, 1, 36, 11)
    rank.train(12, 9, 47, 1)
    rank.exit(56)
    launcher.exit(56, code=0)
    return job


@scenario(
    Truth(
        wall=33,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 10,
            "waste.checkpoint_block": 3,
            "stop.publish": 12,
            "stop.shutdown": 3,
        },
        tts=5,
        steps=10,
        attempts=(AttemptTruth("completed", 1, 10),),
    )
)
def a_last_save_then_published_then_shut_down() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 10, 5, 1)
    rank.span("checkpoint_save", 15, 18, step=10, path="last.pt")
    rank.span("publish", 18, 30)
    rank.exit(32)
    launcher.exit(33, code=0)
    return job


@scenario(
    Truth(
        wall=37,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 30,
            "waste.checkpoint_block": 2,
        },
        hidden={"waste.checkpoint_block": 10},
        tts=5,
        steps=30,
        attempts=(AttemptTruth("completed", 1, 30),),
    )
)
def a_save_is_written_in_the_background() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 10, 5, 1)
    rank.span("checkpoint_save", 15, 17, step=10, path="a", save=1)
    rank.span("checkpoint_save", 17, 27, th=9, background=True, step=10, path="a", save=1)
    rank.train(11, 20, 17, 1)
    rank.exit(37)
    launcher.exit(37, code=0)
    return job


@scenario(
    Truth(
        wall=30,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 20,
            "waste.checkpoint_block": 5,
        },
        tts=5,
        steps=20,
        attempts=(AttemptTruth("completed", 1, 20),),
        ranks={
            0: {
                "start.train_module_creation": 5,
                "train.effective": 20,
                "waste.checkpoint_block": 5,
            },
            1: {"start.train_module_creation": 5, "train.effective": 25},
        },
    )
)
def rank_0_saves_while_the_others_wait_for_it() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    saver, other = (job.process(0, rank=number, world=2) for number in range(2))
    for rank in (saver, other):
        rank.span("train_module_creation", 0, 5)
        rank.train(1, 10, 5, 1)
    saver.span("checkpoint_save", 15, 20, step=10, path="a.pt")
    saver.train(11, 10, 20, 1)
    other.train(11, 1, 15, 6)
    other.train(12, 9, 21, 1)
    for rank in (saver, other):
        rank.exit(30)
    launcher.exit(30, code=0)
    return job


@scenario(
    Truth(
        wall=45.4,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 40.1177,
            "waste.data_stall": 0.2823,  # in each second the longer of the two
        },
        tts=5,
        steps=401,
        attempts=(AttemptTruth("completed", 1, 401),),
        ranks={
            0: {
                "start.train_module_creation": 5,
                "train.effective": 40.2,
                "waste.data_stall": 0.2,
            },
            1: {
                "start.train_module_creation": 5,
                "train.effective": 40.12,
                "waste.data_stall": 0.28,
            },
        },
    )
)
def short_waits_of_two_ranks_fall_together() -> FakeRun:
    """They wait for the same steps, but their lines end half a second apart.

    Each line's wait is spread over the seconds that it lies in. Of rank 0, 5 ms in each second from
    6 to 44, and in the first and the last one 3 and 2 ms. Of rank 1, 7 ms from 6 to 43, 0.7 in the
    first second, 7.7 in second 44 (6.3 of a line of 1 s, 1.4 of one of 0.5 s) and 5.6 in the last.
    """
    job = FakeRun()
    launcher = job.launcher(0)
    for number, wait, ahead in ((0, 0.005, 0.0), (1, 0.007, 0.5)):
        rank = job.process(0, rank=number, world=2)
        rank.span("train_module_creation", 0, 5)
        window(rank, 1, 0, 5.4, batches=1)
        if ahead:
            window(rank, 6, 5.4, 5.9, batches=5)
        for second in range(39):
            begin = 5.4 + ahead + second
            window(rank, rank.steps + 10, begin, begin + 1, wait=wait, batches=10)
        window(rank, 401, 44.4 + ahead, 45.4, wait=wait, batches=401 - rank.steps)
        rank.exit(45.4)
    launcher.exit(45.4, code=0)
    return job


@scenario(
    Truth(
        wall=40,
        buckets={
            "start.train_module_creation": 10,
            "train.effective": 25,
            "waste.data_stall": 5,  # it waits for a batch right now
        },
        tts=10,
        steps=25,
        attempts=(AttemptTruth("running", 1, 25),),
        running=True,
    )
)
def the_run_is_still_going() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    launcher.cells[pulse.ALIVE] = launcher.at(40)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 10)
    rank.train(1, 25, 10, 1)
    rank.cells[pulse.WAITING] = rank.at(35)
    return job


@scenario(
    Truth(
        wall=50,
        buckets={
            "start.train_module_creation": 5,
            "train.effective": 20,
            "recover.downtime": 5,
            "recover.train_module_creation": 5,
            "recover.get_first_batch_data": 1,
            "recover.pt2_compile": 14,
        },
        tts=5,
        steps=20,
        attempts=(AttemptTruth("failed", 1, 20), AttemptTruth("running", resumed=20)),
        failures=(None,),
        running=True,
    )
)
def it_was_restarted_and_compiles_right_now() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 20, 5, 1)
    rank.span("checkpoint_save", 25, 25, step=20, path="a.pt")
    launcher.exit(25, code=137)
    launcher = job.launcher(30, launch="L1", index=1)
    launcher.cells[pulse.ALIVE] = launcher.at(50)
    rank = job.process(30, launch="L1")
    rank.span("train_module_creation", 30, 35)
    rank.span("checkpoint_load", 35, 35, path="a.pt")
    rank.span("data_wait", 35, 36)
    rank.open("compile", 36)
    return job


def _tear(folder: Path) -> None:
    """The kill cut the last line of the rank in half, and a bad sector took another line."""
    (path,) = folder.glob("journal/node0-*.jsonl")
    lines = path.read_bytes()[:-20].split(b"\n")
    lines[12] = b"\0" * len(lines[12])
    path.write_bytes(b"\n".join(lines))


@scenario(
    Truth(
        wall=40,
        buckets={"start.train_module_creation": 10, "train.effective": 30},
        tts=10,
        steps=30,
        attempts=(AttemptTruth("failed", 1, 30),),
        failures=(None,),
        note="damaged line",
    ),
    damage=_tear,
)
def a_torn_last_line_stands_in_the_pulse_page() -> FakeRun:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 10)
    rank.train(1, 30, 10, 1)
    launcher.exit(40, code=137)
    return job
