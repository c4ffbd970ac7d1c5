"""Jobs with known truth. Every number is worked out by hand from the rules of the ledger.

A scenario is a function that writes journals on a fake clock; `@scenario` takes its truth in
seconds. The thirteen of timelines.py stand here, the others in one file per kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headway.testing import FakeRun
from tests.truth.timelines import TIMELINES, journals


@dataclass(frozen=True)
class AttemptTruth:
    """The truth about one attempt."""

    outcome: str
    first: int | None = None
    last: int | None = None
    resumed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What the ledger must say, in seconds. None among the failures: any category."""

    wall: float
    buckets: Mapping[str, float]
    tts: float | None
    steps: int
    attempts: tuple[AttemptTruth, ...]
    ttr: tuple[float, ...] = ()
    failures: tuple[str | None, ...] = ()
    hidden: Mapping[str, float] = field(default_factory=dict)
    queue: float | None = None
    paused: float = 0
    batches: float | None = None
    running: bool = False
    note: str = ""  # words that one of the notes must hold
    ranks: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """One job: its journals, what happened to the files afterwards, and its truth."""

    name: str
    build: Callable[[], FakeRun]
    truth: Truth
    damage: Callable[[Path], None] | None = None


SCENARIOS: list[Scenario] = []


def scenario(
    truth: Truth, damage: Callable[[Path], None] | None = None
) -> Callable[[Callable[[], FakeRun]], Callable[[], FakeRun]]:
    """Register a builder with its truth."""

    def register(build: Callable[[], FakeRun]) -> Callable[[], FakeRun]:
        SCENARIOS.append(Scenario(build.__name__, build, truth, damage))
        return build

    return register


_START = {"start.device_init": 20, "start.train_module_creation": 40}
_AGAIN = {"recover.device_init": 20, "recover.train_module_creation": 40}
_TO_40 = (AttemptTruth("failed", 1, 51), AttemptTruth("completed", 41, 100, 40))
_CLEAN = Truth(
    wall=1060,
    buckets={**_START, "train.effective": 1000},
    tts=60,
    steps=100,
    attempts=(AttemptTruth("completed", 1, 100),),
)
_ROLLBACK = Truth(
    wall=1530,
    buckets={
        **_START,
        **_AGAIN,
        "train.effective": 1000,
        "failure.lost_training": 110,
        "recover.downtime": 300,
    },
    tts=60,
    ttr=(360,),
    steps=100,
    attempts=_TO_40,
    failures=("unknown",),
)
_TRUTHS = {
    "clean run": _CLEAN,
    "crash, rollback 51 to 40, 300 s down": _ROLLBACK,
    "crash right after a checkpoint, 300 s down": Truth(
        wall=1420,
        buckets={**_START, **_AGAIN, "train.effective": 1000, "recover.downtime": 300},
        tts=60,
        ttr=(360,),
        steps=100,
        attempts=(AttemptTruth("failed", 1, 50), AttemptTruth("completed", 51, 100, 50)),
        failures=("unknown",),
    ),
    # Of the first life 30 steps are kept and 21 lost; of the second all 20 are lost.
    "second rollback deeper than the first": Truth(
        wall=1650,
        buckets={
            **_START,
            "train.effective": 1000,
            "failure.lost_training": 410,
            "recover.downtime": 60,
            "recover.device_init": 40,
            "recover.train_module_creation": 80,
        },
        tts=60,
        ttr=(90, 90),
        steps=100,
        attempts=(
            AttemptTruth("failed", 1, 51),
            AttemptTruth("failed", 41, 60, 40),
            AttemptTruth("completed", 31, 100, 30),
        ),
        failures=("unknown", "unknown"),
    ),
    "200 s input stall in the middle": Truth(
        wall=1270,
        buckets={
            **_START,
            "start.get_first_batch_data": 10,
            "train.effective": 1000,
            "waste.data_stall": 200,
        },
        tts=70,
        steps=100,
        attempts=(AttemptTruth("completed", 1, 100),),
    ),
    "100 s recompile inside a step": Truth(
        wall=1160,
        buckets={**_START, "train.effective": 1000, "waste.recompile": 100},
        tts=60,
        steps=100,
        attempts=(AttemptTruth("completed", 1, 100),),
    ),
    "600 s of publishing after the last step": Truth(
        wall=1660,
        buckets={**_START, "train.effective": 1000, "stop.publish": 600},
        tts=60,
        steps=100,
        attempts=(AttemptTruth("completed", 1, 100),),
    ),
    "hang of 1000 s, then killed": Truth(
        wall=1560,
        buckets={**_START, "train.effective": 500, "failure.hang": 1000},
        tts=60,
        steps=50,
        attempts=(AttemptTruth("failed", 1, 50),),
        failures=("hang",),
    ),
    # The first step waits longest for the data: it owns all 600 s, the others stay hidden.
    "overlapped init, three phases in 600 s": Truth(
        wall=1600,
        buckets={"start.get_first_batch_data": 600, "train.effective": 1000},
        hidden={"start.device_init": 580, "start.train_module_creation": 590},
        tts=600,
        steps=100,
        attempts=(AttemptTruth("completed", 1, 100),),
    ),
    # Two lives end in their init; they roll nothing back, and lie in the one recovery: 570 -> 1250.
    "init crash loop, two failed attempts": Truth(
        wall=1850,
        buckets={
            **_START,
            "train.effective": 1000,
            "failure.lost_training": 110,
            "recover.downtime": 500,
            "recover.device_init": 60,
            "recover.train_module_creation": 120,
        },
        tts=60,
        ttr=(680,),
        steps=100,
        attempts=(
            AttemptTruth("failed", 1, 51),
            AttemptTruth("failed"),
            AttemptTruth("failed"),
            AttemptTruth("completed", 41, 100, 40),
        ),
        failures=(None, None, None),
    ),
    "restart on a host 400 s behind": _ROLLBACK,
    "a line every 10 steps": _CLEAN,
    "asked before, and asked again": _ROLLBACK,
}
SCENARIOS += [Scenario(t.name, partial(journals, t), _TRUTHS[t.name]) for t in TIMELINES]
