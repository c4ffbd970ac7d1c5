"""Sample ledgers, built without a journal: what each report is tested on."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from headway.ledger.model import Attempt, Checkpoint, Compile, Failure, Gap, Ledger, RankLedger
from headway.ledger.segments import Segment
from headway.taxonomy import START_STAGES
from headway.units import NS

STARTED_AT = 1_767_225_600 * NS  # 2026-01-01 00:00:00 UTC


class Line:
    """A timeline that is written from left to right, in seconds."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.now = 0

    def add(self, leaf: str, seconds: float) -> Line:
        end = self.now + round(seconds * NS)
        self.segments.append(Segment(self.now, end, leaf))
        self.now = end
        return self

    def start(self, group: str, **seconds: float) -> Line:
        for stage in START_STAGES:
            if stage in seconds:
                self.add(f"{group}.{stage}", seconds[stage])
        return self


def buckets_of(segments: Iterable[Segment]) -> dict[str, int]:
    found: dict[str, int] = {}
    for s in segments:
        found[s.bucket] = found.get(s.bucket, 0) + s.end - s.start
    return found


def rank_of(rank: int, line: Line, steps: int, host: str = "node-0") -> RankLedger:
    return RankLedger(rank, tuple(line.segments), buckets_of(line.segments), steps, (host,))


def ledger_of(line: Line, **others: Any) -> Ledger:
    """A ledger of one rank that ran through, unless `others` says otherwise."""
    steps = others.pop("steps", 0)
    fields: dict[str, Any] = {
        "run": "train-0815",
        "wall": line.now,
        "segments": tuple(line.segments),
        "buckets": buckets_of(line.segments),
        "ranks": (rank_of(0, line, steps),),
        "steps": steps,
        "attempts": (
            Attempt(index=0, start=0, end=line.now, outcome="completed", ranks=(0,), world=1),
        ),
        "failures": (),
        "time_to_start": None,
        "time_to_recover": (),
        "hidden": {},
        "queue_capacity": None,
        "checkpoints": (),
        "saves": 0,
        "save_interval": None,
        "recommended_interval": None,
        "compiles": (),
        "gaps": (),
        "notes": (),
        "started_at": STARTED_AT,
        "running": False,
        "command": ("torchrun", "train.py"),
        "exit_code": 0,
    }
    return Ledger(**{**fields, **others})


def _killed_line(slow: float) -> tuple[Line, list[int], int]:
    """Two attempts; `slow` seconds of each cycle are this rank's own wait for data."""
    line = Line().start(
        "start",
        launcher_init=31,
        device_init=1.5,
        process_group_init=4,
        train_module_creation=8,
        get_first_batch_data=40,
        pt2_compile=167,
    )
    line.add("unknown", 3.5)
    saves = []
    for cycle in range(7):
        line.add("train.effective", 154 - slow).add("waste.data_stall", slow)
        saves.append(line.now)
        line.add("waste.checkpoint_block", 5.7)
        if cycle == 2:
            line.add("waste.recompile", 9)
    line.add("failure.lost_training", 96)
    died = line.now
    line.add("recover.detection", 12).add("recover.downtime", 20)
    line.start(
        "recover",
        launcher_init=29,
        process_group_init=4,
        train_module_creation=8,
        get_first_batch_data=38,
        checkpoint_load=11,
        pt2_compile=166,
    )
    for _ in range(4):
        line.add("train.effective", 154 - slow).add("waste.data_stall", slow)
        saves.append(line.now)
        line.add("waste.checkpoint_block", 5.7)
    line.add("waste.evaluation", 22).add("stop.publish", 12).add("stop.shutdown", 3)
    return line, saves, died


def killed() -> Ledger:
    """Two ranks, two attempts, one SIGKILL; rank 1 waits for data, rank 0 for rank 1."""
    line, saved, died = _killed_line(1.0)
    wait, _, _ = _killed_line(1.0)
    wait.segments = [
        Segment(s.start, s.end, "waste.blocked" if s.bucket == "waste.data_stall" else s.bucket)
        for s in wait.segments
    ]
    again = died + 32 * NS
    trained = 7 * 160
    attempts = (
        Attempt(
            index=0, start=0, end=died + 12 * NS, outcome="failed", ranks=(0, 1), world=2,
            first_step=1, last_step=trained + 96,
        ),
        Attempt(
            index=1, start=again, end=line.now, outcome="completed", ranks=(0, 1), world=2,
            first_step=trained + 1, last_step=trained + 640, resumed_from=trained,
        ),
    )  # fmt: skip
    checkpoints = tuple(
        Checkpoint(
            attempt=int(at > died), rank=rank, start=at, end=at + 5_700_000_000 - rank * NS,
            step=160 * (place + 1), path=f"ckpt/step-{160 * (place + 1)}/rank{rank}.pt",
            durable=at + 9 * NS,
        )
        for place, at in enumerate(saved)
        for rank in (0, 1)
    )  # fmt: skip
    return ledger_of(
        line,
        ranks=(rank_of(0, wait, trained + 640), rank_of(1, line, trained + 640, "node-1")),
        steps=trained + 640,
        attempts=attempts,
        failures=(
            Failure(
                attempt=0, at=died, category="killed", owner="ambiguous", retry="bounded",
                root_rank=1, evidence="rank 1 (pid 4711) ended by SIGKILL; no traceback",
            ),
        ),
        time_to_start=255 * NS,
        time_to_recover=(288 * NS,),
        recovered=((0, 1),),
        hidden={"start.preproc_creation": 6 * NS},
        checkpoints=checkpoints,
        saves=len(saved),
        save_interval=160 * NS,
        recommended_interval=235 * NS,
        compiles=_compiles(died),
        gaps=(
            Gap(0, 1, 251_500_000_000, 255 * NS, "start.pt2_compile", "train.effective"),
        ),
        notes=("rank 0: no CUDA events; times are host times",),
    )  # fmt: skip


def _compiles(died: int) -> tuple[Compile, ...]:
    first = [
        Compile(
            attempt=attempt, rank=rank, start=at + 84 * NS, end=at + 251 * NS, location="0/0",
            reason="", recompile=False, cached=False,
        )
        for attempt, at in ((0, 0), (1, died + 32 * NS))
        for rank in (0, 1)
    ]  # fmt: skip
    again = [
        Compile(
            attempt=0, rank=rank, start=730 * NS, end=739 * NS, location="forward (model.py:88)",
            reason="tensor 'x' size mismatch at index 0: expected 512, got 384",
            recompile=True, cached=False,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    return (*first, *again)


def no_steps() -> Ledger:
    """A job that trained, perhaps, in a loop that no hook can see."""
    line = Line().start("start", launcher_init=3.25, device_init=0.4).add("unknown", 37.75)
    return ledger_of(
        line,
        attempts=(
            Attempt(index=0, start=0, end=line.now, outcome="completed", ranks=(0,), world=1),
        ),
        gaps=(Gap(0, 0, 3_650_000_000, line.now, "start.device_init", "the end"),),
    )


def still_running() -> Ledger:
    """A run that is being trained right now."""
    line = Line().start("start", launcher_init=4, process_group_init=1, pt2_compile=35)
    line.add("train.effective", 120)
    return ledger_of(
        line,
        steps=900,
        running=True,
        exit_code=None,
        time_to_start=40 * NS,
        attempts=(
            Attempt(
                index=0, start=0, end=line.now, outcome="running", ranks=(0,), world=1,
                first_step=1, last_step=900,
            ),
        ),
    )  # fmt: skip


def large(ranks: int = 64, spans: int = 10_000) -> Ledger:
    """Many ranks with `spans` segments each, over three attempts with two failures."""
    dice = random.Random(64)
    plan = _plan(dice, spans)
    lines = [_jittered(random.Random(rank), plan) for rank in range(ranks)]
    base = lines[0]
    wall = base.now
    deaths = [x.start for x in base.segments if x.bucket == "recover.detection"]
    starts = [0, *(x.start for x in base.segments if x.bucket == "recover.launcher_init")]
    ends = [x.end for x in base.segments if x.bucket == "recover.detection"] + [wall]
    attempts = tuple(
        Attempt(
            index=i, start=starts[i], end=ends[i],
            outcome="completed" if i == 2 else "failed", ranks=tuple(range(ranks)), world=ranks,
            first_step=1 + 9_000 * i, last_step=9_200 * (i + 1), resumed_from=9_000 * i or None,
        )
        for i in range(3)
    )  # fmt: skip
    return ledger_of(
        base,
        run="llm-pretrain-64",
        ranks=tuple(
            rank_of(i, line, 27_600, f"node-{i // 8}") for i, line in enumerate(lines)
        ),
        steps=27_600,
        attempts=attempts,
        failures=tuple(
            Failure(
                attempt=i, at=deaths[i], category="nccl_timeout", owner="infra",
                retry="yes", root_rank=17 * (i + 1),
                evidence="Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4711)",
            )
            for i in range(2)
        ),
        time_to_start=90 * NS,
        time_to_recover=(140 * NS, 133 * NS),
    )  # fmt: skip


def _plan(dice: random.Random, spans: int) -> list[tuple[str, float]]:
    """About `spans` pieces: start, then training cut by stalls and saves, three times over."""
    plan: list[tuple[str, float]] = []
    for attempt in range(3):
        group = "recover" if attempt else "start"
        if attempt:
            plan += [("failure.lost_training", 60), ("recover.detection", 30)]
            plan.append(("recover.downtime", 20))
        stages = (("launcher_init", 20), ("process_group_init", 15), ("pt2_compile", 55))
        plan += [(f"{group}.{stage}", seconds) for stage, seconds in stages]
        for place in range(max(1, (spans - 14) // 6)):
            plan.append(("train.effective", dice.uniform(0.5, 2.0)))
            other = "waste.checkpoint_block" if place % 40 == 0 else "waste.data_stall"
            plan.append((other, 4.0 if other == "waste.checkpoint_block" else dice.uniform(0, 0.4)))
    plan.append(("stop.shutdown", 12))
    return plan


def _jittered(dice: random.Random, plan: list[tuple[str, float]]) -> Line:
    """One rank's own view of the plan: each boundary moves a little, the end does not."""
    line = Line()
    target = 0.0
    for place, (leaf, seconds) in enumerate(plan):
        target += seconds
        last = place == len(plan) - 1
        end = target if last else target + dice.uniform(-0.2, 0.2) * min(seconds, 0.4)
        line.add(leaf, max(end - line.now / NS, 0.000_001))
    return line
