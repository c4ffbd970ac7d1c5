"""Trainings that are killed again and again: each time the newest state comes back, bit for bit."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.checkpoint.engine.buffers import READY
from headway.checkpoint.store.store import Store
from headway.checkpoint.writer import protocol
from headway.checkpoint.writer.client import peek
from headway.storage import disk
from tests.integration.checkpointed.forks import (
    Hurt,
    Nursery,
    dies,
    name,
    nursery,
    told,
)
from tests.integration.checkpointed.tiny import Life, Log, reference

KILLS = 10  # of one store, before a life that nobody disturbs
STEPS = 100  # more than the lives of one store can make
STUCK_S = 40.0
LATEST_S = 0.15  # from the restore on: if a call does not come, the kill comes by the clock
CALM = 2  # steps of the undisturbed life
DISK = (
    *("create", "write_at", "sync", "make_folder", "sync_folder", "rename", "unlink"),
    *("remove_folder", "names", "size", "read", "lock"),
)
WIRE = ("send", "receive", "_receive_some")
OTHERS = {".lock", "latest"}  # of a store, beside its checkpoints


@dataclass(frozen=True)
class Kill:
    """Who is killed, and when: after some time, or when one process makes its n-th call."""

    who: str  # trainers, one (and the others see it), writers, writer, all
    rank: int  # of the one
    after_s: float  # from the start, or once all ranks are restored
    up: bool
    trainer_call: Hurt | None = None
    writer_call: Hurt | None = None


@dataclass
class Story:
    """One store, and what must be true of it by now."""

    store: str
    world: int
    job: str
    right: Sequence[dict[str, Any]] = field(repr=False)  # by step
    lives: int = 0
    least: int = 0  # the step that must come back
    most: int = 0
    counts: Counter[str] = field(default_factory=Counter, repr=False)


def trials(folder: str, seed: int, kills: int, worlds: list[int]) -> dict[str, Any]:
    """So many kills; how often each thing happened."""
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    begun = time.monotonic()
    before = set(os.listdir("/dev/shm"))
    with nursery(Path(folder)) as all_of_them:
        right = referred(all_of_them, STEPS)
        while counts["kills"] < kills:
            number = counts["stores"]
            counts["stores"] += 1
            story = Story(
                store=f"{folder}/store-{number}",
                world=worlds[number % len(worlds)],
                job=f"{os.getpid()}-{number}" if chance.random() < 0.7 else "",
                right=right,
                counts=counts,
            )
            try:
                for _ in range(min(KILLS, kills - counts["kills"])):
                    _killed(all_of_them, story, chance)
                _calm(all_of_them, story)
            except AssertionError as error:
                raise AssertionError(f"{story}, seed {seed}: {error}") from error
        ours = set(map(str, all_of_them.forks))
    left = set(os.listdir("/dev/shm")) - before
    assert not [one for one in left if ours & set(re.findall(r"\d+", one))], left
    return {**counts, "seconds": round(time.monotonic() - begun, 1)}


def referred(processes: Nursery, steps: int) -> list[dict[str, Any]]:
    """The same training on one rank, undisturbed."""
    log = processes.folder / "reference.0"
    pid = processes._fork(lambda: reference(Log(str(log)), steps) or 0)
    processes.trainers[pid] = 0
    assert processes.run(lambda: not processes.trainers, STUCK_S)
    (found,) = told(str(processes.folder / "reference"), 1)
    assert len(found) == steps + 1
    return found


def _planned(chance: random.Random, world: int) -> Kill:
    rank = chance.randrange(world)
    how = chance.choice(["start", "up", "up", "disk", "disk", "wire", "restore"])
    who = chance.choice(["trainers", "one", "writers", "writer", "all", "all"])
    if how in ("start", "up"):
        return Kill(who, rank, chance.uniform(0, 0.12), up=how == "up")
    if how == "disk":
        return Kill(who, rank, LATEST_S, True, writer_call=dies(disk, DISK, chance.randint(1, 100)))
    if how == "wire":
        call = dies(protocol, WIRE, chance.randint(1, 40))
        if chance.random() < 0.5:
            return Kill(who, rank, LATEST_S, True, writer_call=call)
        return Kill(who, rank, LATEST_S, True, trainer_call=call)
    # It is rank 0 that looks for the newest checkpoint.
    return Kill(who, 0, LATEST_S, True, trainer_call=dies(disk, DISK, chance.randint(1, 8)))


def _life(story: Story, processes: Nursery, **more: Any) -> Life:
    story.lives += 1
    log = processes.folder / f"{Path(story.store).name}-life-{story.lives}"
    life = Life(store=story.store, log=str(log), world=story.world, job=story.job)
    return replace(life, **more)


def _killed(processes: Nursery, story: Story, chance: random.Random) -> None:
    kill = _planned(chance, story.world)
    until = story.most + chance.randint(3, 8)
    waits = chance.choice([0, 0, 2, 3])
    life = _life(story, processes, until=until, waits=waits, every=chance.choice([1, 1, 2]))
    processes.hurt_writers = {kill.rank: kill.writer_call} if kill.writer_call else {}
    before = processes.killed
    processes.start(life, {kill.rank: kill.trainer_call} if kill.trainer_call else {})
    trainers = set(processes.trainers)

    def died() -> bool:
        return processes.killed > before or bool(trainers - processes.trainers.keys())

    def ready() -> bool:
        return died() or not kill.up or len(processes.up) == story.world

    assert processes.run(ready, STUCK_S), "nothing goes on"
    processes.run(died, kill.after_s)
    _finish(processes, kill, alone=not died())
    if processes.killed > before:
        story.counts["kills"] += 1
        story.counts[f"killed: {kill.who}"] += 1
    else:
        story.counts["lives that ended too early"] += 1
    last = _judge(story, life, processes)
    story.counts[f"killed when {last}"] += 1
    for left in os.listdir(story.store) if os.path.exists(story.store) else ():
        if left not in OTHERS and left.startswith("."):
            story.counts[f"left behind: {left.split('-')[0]}"] += 1


def _finish(processes: Nursery, kill: Kill, *, alone: bool) -> None:
    """Kill whom the plan says; the ranks that are left end as below torchrun, or go on.

    `alone`: nobody has died at a call, so that a single one is still to be killed.
    """
    ranks = {rank: pid for pid, rank in processes.trainers.items()}
    if kill.who == "all":
        processes.kill(*processes.trainers, *processes.writers)
    elif kill.who == "trainers":
        processes.kill(*processes.trainers)
    elif kill.who == "one" and alone and kill.rank in ranks:
        processes.kill(ranks[kill.rank])
    elif kill.who == "writers":
        processes.kill(*processes.writers)
    elif kill.who == "writer" and alone:
        processes.kill(*(pid for pid, rank in processes.writers.items() if rank == kill.rank))

    def over() -> bool:
        return not processes.trainers or any(processes.codes.values())

    assert processes.run(over, STUCK_S), "the ranks that were left hang"
    processes.kill(*processes.trainers)
    # What a rank does not expect comes only of another one that was killed, or has given up.
    codes = set(processes.codes.values())
    assert codes <= {0} or codes & {1, -signal.SIGKILL}, processes.codes


def _judge(story: Story, life: Life, processes: Nursery) -> str:
    """What the life was restored to is right; what the next one must be; what rank 0 did last."""
    logs = told(life.log, life.world)
    for rank, events in enumerate(logs):
        for event in events:
            if event["what"] == "restored":
                _restored(story, rank, event)
        done = [event["what"] for event in events if event["what"] != "warned"]
        assert done[-2:] != ["saving", "failed"], "a save has ended the training"
    seen = [event["step"] for events in logs for event in events if event["what"] == "saving"]
    story.most = max([story.most, *seen])
    durable = [event["step"] for event in logs[0] if event["what"] == "durable"]
    there = _expect(story, processes)
    assert there >= max(durable, default=0), f"step {durable} was on disk, and {there} is"
    return logs[0][-1]["what"] if logs[0] else "starting"


def _expect(story: Story, processes: Nursery) -> int:
    """Which steps may come back now, by what is in memory and on disk; the one on disk."""
    on_disk = Store(story.store).latest_valid("full")
    assert not on_disk.notes, on_disk.notes
    there = on_disk.checkpoint.step if on_disk.checkpoint else 0
    story.least = max(there, _in_memory(story) if story.job else 0)
    if not processes.writers:
        story.most = story.least
    return there


def _restored(story: Story, rank: int, event: dict[str, Any]) -> None:
    step = event["step"]
    assert story.least <= step <= story.most, f"restored to {step}: {event}"
    right = story.right[step]
    assert event["digest"] == right["digest"], f"step {step} is another one: {event}"
    assert event["shard"] == right["shards"][str(story.world)][rank], event
    assert event["own"] == {"rank": rank, "steps": step}, event
    source = event.get("source", "nothing")
    if rank == 0:
        story.counts[f"restored from {'disk' if source.startswith('step') else source}"] += 1


def _in_memory(story: Story) -> int:
    """The newest step that the writers of all ranks hold."""
    common: set[tuple[str, int]] | None = None
    for rank in range(story.world):
        seen = peek(name(story.store, rank, story.job))
        images, handles = (seen[0]["images"], seen[1]) if seen else ([], [])
        protocol.close(handles)
        mine = {(one["save"], one["step"]) for one in images if one["state"] == READY}
        common = mine if common is None else common & mine
    return max((step for _, step in common or ()), default=0)


def _calm(processes: Nursery, story: Story) -> None:
    """A life that nobody disturbs comes to its end, and leaves nothing behind but checkpoints."""
    processes.hurt_writers = {}
    processes.kill(*processes.hurt)  # they would die sooner or later
    _expect(story, processes)
    for attempt in (1, 2):
        life = _life(story, processes, until=story.most + CALM, waits=1)
        processes.start(life)
        assert processes.run(lambda: not processes.trainers, STUCK_S), "the ranks hang"
        logs = told(life.log, life.world)
        assert set(processes.codes.values()) == {0}, (processes.codes, logs)
        _judge(story, life, processes)
        for events in logs:
            assert events[-1]["digest"] == story.right[life.until]["digest"]
        if not _left(story):
            break
        # A writer of another rank has held a draft of the dead until the next checkpoint came.
        assert attempt == 1, (_left(story), processes.writers)
        story.counts["swept by the second save"] += 1
    assert processes.run(lambda: not processes.writers, 15), "a writer has stayed"
    assert not _memories(), _memories()


def _left(story: Story) -> list[str]:
    """What is in the store and belongs to no checkpoint."""
    found = []
    store = Store(story.store)
    good = {one.name: one for one in store.checkpoints()}
    for entry in os.listdir(story.store):
        if entry in good:
            known = {"manifest.json", *(file.name for file in good[entry].manifest.files)}
            found += [f"{entry}/{left}" for left in {*os.listdir(good[entry].path)} - known]
            assert store.verify(good[entry], "full") == ""
        elif entry not in OTHERS:
            found.append(entry)
    return found


def _memories() -> list[str]:
    """Images that this process still holds."""
    found = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1]]
    return [one for one in found if "memfd:headway" in one]
