"""Disks that fail, files that change, clocks that jump: training goes on, and what is whole stays.

Each life of a training is a set of real processes; see checkpointed/tiny.py.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.store.layout import MANIFEST, delta_tables
from headway.checkpoint.store.store import Checkpoint, Store
from headway.errors import CheckpointDamaged
from tests.integration.checkpointed.server import ask
from tests.support import code_of

pytestmark = pytest.mark.timeout(100)
OTHERS = {".lock", "latest"}


def slow(*values: Any) -> Any:
    """Of a parameter: only in `make test-all`."""
    return pytest.param(*values, marks=pytest.mark.slow)


class Lives:
    """Of one training, one after the other."""

    def __init__(self, folder: Path, right: Any) -> None:
        self.folder, self.right = folder, right
        self.store = folder / "store"
        (folder / "logs").mkdir()

    def _ask(self, what: str, **more: Any) -> Any:
        return ask(f"lives:{what}", folder=str(self.folder / "logs"), **more)

    def life(self, until: int, **more: Any) -> dict[str, Any]:
        return {"store": str(self.store), "until": until, **more}

    def live(self, until: int, *, more: dict[str, Any] | None = None, **life: Any) -> Told:
        """One life."""
        return Told(self._ask("live", life=self.life(until, **life), **(more or {})))

    def together(self, *lives: dict[str, Any]) -> list[Told]:
        """Several at once."""
        return [Told(one) for one in self._ask("together", lives=list(lives))]

    def restored(self, step: int, world: int = 1) -> Told:
        """A life of no step is restored to that one, as it was."""
        told = self.live(0, world=world)
        assert told.codes == [0] * world, told.ranks
        for rank, events in enumerate(told.ranks):
            (found,) = [event for event in events if event["what"] == "restored"]
            assert (found["step"], found["digest"]) == (step, self.right[step]["digest"]), found
            assert found["shard"] == self.right[step]["shards"][str(world)][rank]
        return told

    def left(self) -> set[str]:
        """What is in the store and is no checkpoint."""
        good = {one.name for one in Store(self.store).checkpoints()}
        return set(os.listdir(self.store)) - good - OTHERS


class Told:
    """What a life has told."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.codes: list[int] = found["codes"]
        self.ranks: list[list[dict[str, Any]]] = found["told"]

    def texts(self, *kinds: str, rank: int = 0) -> list[str]:
        return [event["text"] for event in self.ranks[rank] if event["what"] in kinds]


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of the undisturbed training, by step."""
    return ask("lives:reference", folder=str(tmp_path_factory.mktemp("right")), steps=14)


@pytest.fixture
def lives(tmp_path: Path, right: Any) -> Lives:
    return Lives(tmp_path, right)


@pytest.fixture
def small_disk(lives: Lives) -> Iterator[Path]:
    """A small file system of its own: the state takes a fifth of it."""
    lives.store.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(lives.store)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield lives.store
    subprocess.run(["umount", str(lives.store)], check=True)


def test_a_full_disk(lives: Lives, small_disk: Path) -> None:
    assert lives.live(2, waits=1).codes == [0]
    used = shutil.disk_usage(small_disk)
    (small_disk / "ballast").write_bytes(bytes(used.free - 40_000))
    told = lives.live(7)
    assert told.codes == [1], "the last save failed, and close says so"
    texts = told.texts("warned", "failed")
    assert all(os.strerror(errno.ENOSPC) in text for text in texts)
    assert {code_of(text) for text in texts} == {"store-failed"}
    assert len(texts) >= 3, "close tells the first of those it finds"
    assert told.ranks[0][-1]["what"] == "failed"
    (small_disk / "ballast").unlink()
    lives.restored(2)
    assert lives.live(4, waits=1).codes == [0]
    assert not lives.left()
    lives.restored(4)


@pytest.mark.slow
def test_a_store_that_cannot_be_written(lives: Lives, small_disk: Path) -> None:
    assert lives.live(2, waits=1).codes == [0]
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    lives.restored(2)
    told = lives.live(4)
    assert told.codes == [1]
    assert all(os.strerror(errno.EROFS) in text for text in told.texts("warned", "failed"))
    assert {code_of(text) for text in told.texts("warned", "failed")} == {"store-failed"}
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert lives.live(4, waits=1).codes == [0]
    assert not lives.left()
    lives.restored(4)


@pytest.mark.parametrize("call", ["sync", slow("write_at"), slow("rename"), slow("create")])
def test_a_disk_that_fails_for_a_while(call: str, lives: Lives) -> None:
    """Some of these calls of a real writer fail, in the midst of its first saves."""
    told = lives.live(12, more={"failing": ([call], errno.EIO, 3, 6)})
    texts = told.texts("warned", "failed")
    assert texts and os.strerror(errno.EIO) in texts[0], told.ranks
    assert code_of(texts[0]) == "store-failed"
    newest = Store(lives.store).latest_valid("full")
    assert newest.checkpoint is not None and newest.notes == ()
    assert newest.checkpoint.step == 12, "later ones are good, whatever they were to build on"
    assert lives.live(14, waits=1).codes == [0]
    assert not lives.left()
    lives.restored(14)


@pytest.mark.parametrize(("world", "full_every"), [(1, 2), slow(2, 1)])
def test_a_byte_that_has_changed_in_any_file(world: int, full_every: int, lives: Lives) -> None:
    told = lives.live(4, waits=1, world=world, full_every=full_every, keep=4)
    assert told.codes == [0] * world
    by_step = {one.step: one for one in Store(lives.store).checkpoints()}
    damaged = {by_step[4].name: 3}  # and what is restored instead
    rows = {name for file in by_step[4].manifest.files for name in delta_tables(file)}
    if full_every > 1:  # without step 3 the delta of step 4 is nothing
        damaged[by_step[3].name] = 2
        assert rows and by_step[3].manifest.kind == "full"
    chance = random.Random(5)
    for name, instead in damaged.items():
        one = next(one for one in by_step.values() if one.name == name)
        for file in (MANIFEST, *(file.name for file in one.manifest.files)):
            at = _somewhere(one, file, chance, rows if one.step == 3 else set())
            with _flipped(Path(one.path) / file, at):
                (said,) = lives.restored(instead).texts("warned")
                assert code_of(said) == "checkpoints-passed-over"
                assert name in said and f"step-000000000{instead}" in said
    assert lives.restored(4, world=world).texts("warned") == []


def _somewhere(one: Checkpoint, name: str, chance: random.Random, among: set[str]) -> int:
    """A place in a file; of a rank's, in a tensor that is restored."""
    for file in one.manifest.files:
        if file.name == name and file.items:
            items = [item for item in file.items if item.size]
            item = chance.choice([item for item in items if not among or item.name in among])
            return item.data + chance.randrange(item.size)
    return chance.randrange((Path(one.path) / name).stat().st_size)


class _flipped:
    def __init__(self, path: Path, at: int) -> None:
        self.path, self.at = path, at

    def __enter__(self) -> None:
        content = bytearray(self.path.read_bytes())
        content[self.at] ^= 4
        self.path.write_bytes(content)

    def __exit__(self, *_: object) -> None:
        self.__enter__()


def test_nothing_good_is_left(lives: Lives) -> None:
    """Then it does not begin anew with half of what was damaged."""
    assert lives.live(1, waits=1).codes == [0]
    (one,) = Store(lives.store).checkpoints()
    data = Path(one.path) / "__0_0.distcp"
    with _flipped(data, _somewhere(one, data.name, random.Random(1), set())):
        told = lives.live(0)
    assert told.codes == [70]
    assert not any(event["what"] == "restored" for event in told.ranks[0])
    words = (lives.folder / "logs" / "words").read_text()
    assert CheckpointDamaged.__name__ in words and one.name in words
    assert "[checksum-mismatch]" in words


@pytest.mark.slow
def test_two_jobs_on_one_store(lives: Lives) -> None:
    first, second = lives.together(
        lives.life(8, full_every=1, job="a"), lives.life(8, full_every=1, job="b", every=2)
    )
    assert first.codes == second.codes == [0]
    store = Store(lives.store)
    for one in store.scan()[0]:
        assert store.verify(one, "full") == ""
    assert lives.live(10, waits=1).codes == [0]
    assert not lives.left()
    lives.restored(10)


def test_two_jobs_that_save_deltas_to_one_store(lives: Lives) -> None:
    """One may take away what the other builds on: then that save is none, and the next is full."""
    both = lives.together(lives.life(8, job="a"), lives.life(8, job="b"))
    for told in both:
        assert told.codes in ([0], [1])
        for text in told.texts("warned", "failed"):
            assert code_of(text) == "parent-missing"
    newest = Store(lives.store).latest_valid("full")
    assert newest.checkpoint is not None and newest.notes == ()
    assert lives.live(10, waits=1).codes == [0]
    assert not lives.left()
    lives.restored(10)


@pytest.mark.slow
def test_a_clock_that_jumps(lives: Lives) -> None:
    day = 86400.0
    for step, skew in ((2, 0.0), (4, -400 * day), (6, 900 * day), (8, -1.0)):
        told = lives.live(step, waits=1, skew_s=skew, keep=9)
        assert told.codes == [0]
        assert told.ranks[0][-1]["digest"] == lives.right[step]["digest"]
        for path in lives.store.rglob("*"):
            os.utime(path, (9e8 + 1e8 * step * (-1) ** step, 9e8 - 1e8 * step * (-1) ** step))
    made = [one.manifest.made for one in Store(lives.store).checkpoints()]
    assert made != sorted(made, reverse=True), "by the clock they are not in order"
    assert not lives.left()
    lives.restored(8)


@pytest.mark.parametrize("world", [1, slow(2)])
def test_the_store_is_taken_away(world: int, lives: Lives) -> None:
    told = lives.live(9, more={"removing": 4}, world=world)
    assert told.codes in ([0] * world, [1] + [-9] * (world - 1)), told.ranks
    newest = Store(lives.store).latest_valid("full")
    assert newest.checkpoint is not None and newest.checkpoint.step > 4 and not newest.notes
    assert lives.live(11, waits=1, world=world).codes == [0] * world
    assert not lives.left()
    lives.restored(11)
