"""Which image a save takes, and what a Checkpointer refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load

from headway.checkpoint.checkpointer import Checkpointer, _choice
from headway.checkpoint.pacing import Level
from headway.checkpoint.preempt import Preemption
from headway.checkpoint.staging import Staging
from headway.checkpoint.store import dcp
from headway.checkpoint.store.read import Store
from headway.checkpoint.writer import wire
from headway.checkpoint.writer.client import look
from headway.errors import UsageError

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("level", "busy", "images"),
    [
        ("memory", [(False, False), (False, False)], [0]),  # the older one
        ("memory", [(False, True), (False, False)], [0]),
        ("memory", [(True, False), (False, False)], [1]),  # it is written by one rank: not by any
        ("disk", [(True, False), (False, False)], [1]),
        ("memory", [(True, False), (False, True)], []),  # none is free on all ranks: left out
        ("disk", [(True, False), (False, True)], [0]),  # waits for the older one
    ],
)
def test_all_ranks_take_the_same_image(
    level: Level, busy: list[tuple[bool, bool]], images: list[int]
) -> None:
    everyone: list[dict[str, Any]] = [{"busy": one, "wanted": n} for n, one in enumerate(busy)]
    assert _choice(level, everyone) == {"images": images, "wanted": 0}


def test_a_store_of_the_ranks_that_is_gone_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> bool:
        raise RuntimeError("connection reset")

    monkeypatch.setattr(Preemption, "look", gone)
    checkpointer = Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, grace_s=5.0, linger_s=0.1)
    with pytest.warns(UserWarning, match="no notice .* any more: connection reset"):
        assert checkpointer.due(1) is None
    assert checkpointer.due(2) is None and not checkpointer.preempted
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    checkpointer.close()


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, linger_s=0.1)
    with pytest.raises(UsageError, match="to memory or to disk, not to tape"):
        checkpointer.save(1, level="tape")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="an anchor is saved to disk"):
        checkpointer.save(1, level="memory", anchor=True)
    with pytest.raises(UsageError, match="without an interval"):
        checkpointer.due(1)
    checkpointer.close()


@pytest.mark.parametrize("images", [0, 3, -1, 2.0, "2", None])
def test_there_are_one_or_two_images(images: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"has one image or two, not {images}$"):
        Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, images=images)


def test_one_image_is_not_enough_for_snapshots(tmp_path: Path) -> None:
    parts = {"model": nn.Linear(2, 2)}
    with pytest.raises(UsageError, match="memory_interval needs images=2: a kill while"):
        Checkpointer(tmp_path, parts, images=1, memory_interval=3)
    checkpointer = Checkpointer(tmp_path, parts, images=1, linger_s=0.1)
    with pytest.raises(UsageError, match="a snapshot in memory needs images=2: a kill while"):
        checkpointer.save(1, level="memory")
    checkpointer.close()


def test_a_snapshot_does_not_wait_for_the_one_before(tmp_path: Path) -> None:
    one = Checkpointer(tmp_path, {"w": torch.zeros(4)}, memory_interval=3, linger_s=0.1)
    assert not one.save(1, level="memory").skipped
    one._taker.wait()
    one._taker._idle.clear()  # as while it is on its way from a GPU
    left_out = one.save(2, level="memory")
    assert left_out.skipped and left_out.waited_s < 60
    one._taker._idle.set()
    assert not one.save(3, level="memory").skipped
    one.close()


@pytest.mark.parametrize("images", [1, 2])
def test_no_image_is_filled_before_it_is_written(images: int, tmp_path: Path) -> None:
    """Both saves are of the moment of their call, however slow the disk is."""
    state = {"w": torch.zeros(1 << 18)}
    one = Checkpointer(tmp_path, state, images=images, rate=4e6, linger_s=0.1)
    for step in (1, 2, 3):
        state["w"].fill_(float(step))
        one.save(step)
    there = look(one._staging.name)
    assert there is not None
    status, handles = there
    assert len(status["images"]) == len(handles) == images
    wire.close(handles)
    one.close()
    for checkpoint in Store(tmp_path).checkpoints():
        found = {"w": torch.empty(1 << 18)}
        load(found, storage_reader=dcp.Reader(checkpoint.path, check=True), no_dist=True)
        assert bool((found["w"] == checkpoint.step).all())


class Live:
    """A table and what its optimizer keeps of it, by names of their own; read in place."""

    def __init__(self) -> None:
        self.table = nn.EmbeddingBag(100, 4, sparse=True)
        self.optimizer = torch.optim.Adagrad(self.table.parameters())

    def state_dict(self) -> dict[str, Any]:
        weight = self.table.weight
        return {"weight": weight.detach(), "sum": self.optimizer.state[weight]["sum"]}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        """Nothing is left to do."""

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.table(torch.randint(100, (1, 5))).sum().backward()
        self.optimizer.step()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("told", [True, False])
def test_an_optimizer_that_is_no_part_can_be_told_of(told: bool, tmp_path: Path) -> None:
    live = Live()
    optimizers = [live.optimizer] if told else []
    one = Checkpointer(tmp_path, {"live": live}, optimizers=optimizers, linger_s=0.1)
    for step in (1, 2, 3):
        live.step()
        one.save(step)
        one.wait()
    one.close()
    kinds = [checkpoint.manifest.kind for checkpoint in Store(tmp_path).checkpoints()]
    assert kinds == (["delta", "delta", "full"] if told else ["full", "full"])
    other = Live()
    again = Checkpointer(tmp_path, {"live": other}, linger_s=0.1)
    restored = again.restore()
    again.close()
    assert restored is not None and restored.step == 3
    for name, tensor in live.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


KILLED = """
import os, sys, torch
from headway.checkpoint import Checkpointer

table = torch.nn.Embedding(1000, 8, sparse=True)
optimizer = torch.optim.Adagrad(table.parameters())
one = Checkpointer(sys.argv[1], {"table": table, "optimizer": optimizer}, images=1)
restored = one.restore()
if restored:
    print(restored.step, restored.source, round(float(table.weight.detach().sum()), 3))
    one.close()
else:
    for step in (1, 2, 3):
        table(torch.tensor([step, 7])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        one.save(step)
    one._taker.wait()
    one._staging.status()  # the writer has heard that the image is whole
    print(3, "memory", round(float(table.weight.detach().sum()), 3), flush=True)
    os.kill(os.getpid(), 9)
"""


def test_one_image_is_enough_to_come_back_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", f"test-{tmp_path.name}-{os.getpid()}")
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed, back = (
        subprocess.run(command, timeout=50, capture_output=True, text=True) for _ in range(2)
    )
    assert (killed.returncode, back.returncode) == (-9, 0), (killed.stderr, back.stderr)
    assert back.stdout == killed.stdout and back.stdout.startswith("3 memory ")


@pytest.mark.parametrize("kills", [2, 3])
@pytest.mark.filterwarnings("ignore:the checkpoint writer")
def test_writers_that_are_killed_during_one_save_end_no_training(
    kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, linger_s=0.1)
    tell, left = Staging.tell, [kills]

    def told(staging: Staging, op: str, *descriptors: int, **message: Any) -> None:
        if op == "filling" and left[0]:
            left[0] -= 1
            os.kill(staging._client.found["pid"], signal.SIGKILL)
            while look(staging.name) is not None:
                time.sleep(0.01)
        tell(staging, op, *descriptors, **message)

    monkeypatch.setattr(Staging, "tell", told)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        first = checkpointer.save(1)
    said = [str(one.message) for one in seen if "is not saved" in str(one.message)]
    assert first.skipped == bool(said) == (kills == 3)
    assert not checkpointer.save(2).skipped
    checkpointer.close()
    steps = [one.step for one in Store(tmp_path).checkpoints()]
    assert steps == ([2] if kills == 3 else [2, 1])
