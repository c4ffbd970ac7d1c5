"""Thirteen jobs as plain data: what really happened, second by second.

From one description come our journals (`journals`) and the log entries of other tools
(benchmarks/truth_against_peers.py), so that all of them are asked about the same job: 100 new
steps of 10 s and 60 s of init, with one thing more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.testing import EPOCH, FakeJournal, FakeRun, Host
from headway.units import NS

INIT = (("device_init", 0.0, 20.0), ("train_module_creation", 20.0, 60.0))
OTHER_HOST = Host("node1", "boot-1", monotonic=77.0, wall=-400.0)


@dataclass(frozen=True)
class Steps:
    """`count` steps of `each` seconds, back to back."""

    start: float
    count: int
    each: float = 10.0


@dataclass(frozen=True)
class Pause:
    """Something other than training: `data_wait`, `compile` or `publish`."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Life:
    """One life of the job, by the true clock."""

    start: float
    end: float
    init: tuple[tuple[str, float, float], ...] = INIT  # stages, from the start of this life
    threads: bool = False  # each stage on a thread of its own
    resumed: int = 0  # the step in the checkpoint it loaded
    steps: tuple[Steps, ...] = ()
    pauses: tuple[Pause, ...] = ()
    saved: tuple[int, ...] = ()  # steps after which a checkpoint was written, in no time
    killed: bool = False
    host: Host = field(default_factory=Host)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A job and how much of its time was training on new data."""

    name: str
    lives: tuple[Life, ...]
    ett: str  # true ETT%, to one decimal
    log_every: int = 1  # steps per line in the record
    stale_cache: bool = False  # somebody asked for the result while the first life trained


_CRASHED = Life(start=0, end=570, steps=(Steps(60, 51),), saved=(20, 30, 40), killed=True)
_RESUMED = Life(start=870, end=1530, resumed=40, steps=(Steps(930, 60),))

TIMELINES = (
    Timeline(
        name="clean run",
        ett="94.3",
        lives=(Life(start=0, end=1060, steps=(Steps(60, 100),)),),
    ),
    Timeline(
        name="crash, rollback 51 to 40, 300 s down",
        ett="65.4",
        lives=(_CRASHED, _RESUMED),
    ),
    Timeline(
        name="crash right after a checkpoint, 300 s down",
        ett="70.4",
        lives=(
            Life(start=0, end=560, steps=(Steps(60, 50),), saved=(50,), killed=True),
            Life(start=860, end=1420, resumed=50, steps=(Steps(920, 50),)),
        ),
    ),
    Timeline(
        name="second rollback deeper than the first",
        ett="60.6",
        lives=(
            _CRASHED,
            Life(start=600, end=860, resumed=40, steps=(Steps(660, 20),), killed=True),
            Life(start=890, end=1650, resumed=30, steps=(Steps(950, 70),)),
        ),
    ),
    Timeline(
        name="200 s input stall in the middle",
        ett="78.7",
        lives=(
            Life(
                start=0,
                end=1270,
                steps=(Steps(70, 50), Steps(770, 50)),
                pauses=(Pause("data_wait", 60, 70), Pause("data_wait", 570, 770)),
            ),
        ),
    ),
    Timeline(
        name="100 s recompile inside a step",
        ett="86.2",
        lives=(
            Life(
                start=0,
                end=1160,
                steps=(Steps(60, 50), Steps(560, 1, each=110), Steps(670, 49)),
                pauses=(Pause("compile", 560, 660),),
            ),
        ),
    ),
    Timeline(
        name="600 s of publishing after the last step",
        ett="60.2",
        lives=(
            Life(
                start=0,
                end=1660,
                steps=(Steps(60, 100),),
                pauses=(Pause("publish", 1060, 1660),),
            ),
        ),
    ),
    Timeline(
        name="hang of 1000 s, then killed",
        ett="32.1",
        lives=(Life(start=0, end=1560, steps=(Steps(60, 50),), killed=True),),
    ),
    Timeline(
        name="overlapped init, three phases in 600 s",
        ett="62.5",
        lives=(
            Life(
                start=0,
                end=1600,
                init=(
                    ("get_first_batch_data", 0, 600),
                    ("device_init", 0, 580),
                    ("train_module_creation", 0, 590),
                ),
                threads=True,
                steps=(Steps(600, 100),),
            ),
        ),
    ),
    Timeline(
        name="init crash loop, two failed attempts",
        ett="54.1",
        lives=(
            _CRASHED,
            Life(start=870, end=930, killed=True),
            Life(start=1030, end=1090, killed=True),
            Life(start=1190, end=1850, resumed=40, steps=(Steps(1250, 60),)),
        ),
    ),
    Timeline(
        name="restart on a host 400 s behind",
        ett="65.4",
        lives=(
            _CRASHED,
            Life(start=870, end=1530, resumed=40, steps=(Steps(930, 60),), host=OTHER_HOST),
        ),
    ),
    Timeline(
        name="a line every 10 steps",
        ett="94.3",
        log_every=10,
        lives=(Life(start=0, end=1060, steps=(Steps(60, 100),)),),
    ),
    Timeline(
        name="asked before, and asked again",
        ett="65.4",
        stale_cache=True,
        lives=(_CRASHED, _RESUMED),
    ),
)


def journals(timeline: Timeline) -> FakeRun:
    """The run as Headway's journals: one rank, one launch per life."""
    job = FakeRun()
    for index, life in enumerate(timeline.lives):
        launch = f"L{index}"
        clock = round(EPOCH + life.start) * NS  # both hosts write to one file system
        launcher = job.launcher(life.start, launch=launch, index=index, host=life.host, fs=clock)
        rank = job.process(life.start, launch=launch, host=life.host)
        _write_start(rank, life)
        _write_steps(rank, life, timeline.log_every)
        if life.killed:
            launcher.event("death", life.end, pid=rank.lines[0]["pid"], code=-9)
        else:
            rank.exit(life.end)
        launcher.exit(life.end, code=137 if life.killed else 0)
    return job


def _write_start(rank: FakeJournal, life: Life) -> None:
    for thread, (name, start, end) in enumerate(life.init):
        rank.span(name, life.start + start, life.start + end, th=thread if life.threads else 0)
    if life.resumed:
        ready = life.start + max(end for _, _, end in life.init)
        rank.span("checkpoint_load", ready, ready, path=_path(life.resumed))


def _write_steps(rank: FakeJournal, life: Life, every: int) -> None:
    for pause in life.pauses:
        rank.span(pause.name, pause.start, pause.end)
    done = life.resumed
    for steps in life.steps:
        if every > 1:
            _write_few_lines(rank, steps, every)
        else:
            rank.train(rank.steps + 1, steps.count, steps.start, steps.each)
        for save in life.saved:
            if done < save <= done + steps.count:
                at = steps.start + (save - done) * steps.each
                rank.span("checkpoint_save", at, at, step=save - life.resumed, path=_path(save))
        done += steps.count


def _write_few_lines(rank: FakeJournal, steps: Steps, every: int) -> None:
    """A line for every `every` steps, the first one too; when it began is not told."""
    for last in range(every, steps.count + 1, every):
        begin = steps.start + (last - every) * steps.each
        rank.lines.append(
            {
                "ev": "steps",
                "t": 0 if last == every else rank.at(begin),
                "end": rank.at(steps.start + last * steps.each),
                "first": last - every + 1,
                "last": last,
                "wait": 0,
                "batches": every,
            }
        )
    rank.steps += steps.count


def _path(step: int) -> str:
    return f"step-{step}.pt"
