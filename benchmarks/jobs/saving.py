"""The ways of saving that need no other package: torch's own, and Headway's."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from trained import Training

POLL_S = 0.01


class Way:
    """Made before the training is, so that a helper process can be forked without its memory."""

    fsyncs = True  # whether what is done is on disk; else the benchmark calls fsync
    first = 1  # saves that do not count: they make buffers that later ones use again

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def attach(self, training: Training) -> None:
        """All that this way needs before its first save."""
        self.training = training

    def place(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def save(self, step: int) -> None:
        """Begin, and return when the training may go on."""
        raise NotImplementedError

    def done(self, step: int) -> bool:
        """Whether it says that the save is written."""
        return True

    def load(self, step: int) -> str:
        """Into the training; where it came from."""
        raise NotImplementedError

    def forget(self, step: int) -> None:
        """Delete a save that a later one has followed."""
        place = self.place(step)
        if place.is_file():
            place.unlink()
        shutil.rmtree(place, ignore_errors=True)

    def told(self) -> dict[str, Any]:
        """What else it knows of its saves."""
        return {}

    def close(self) -> None:
        """Nothing is left of it in the training."""


class TorchSave(Way):
    def save(self, step: int) -> None:
        with open(self.place(step), "wb") as file:
            torch.save(self.training.state(), file)
            file.flush()
            os.fsync(file.fileno())

    def load(self, step: int) -> str:
        device = self.training.device
        self.training.load(torch.load(self.place(step), map_location=device))
        return "disk"


class Dcp(Way):
    def save(self, step: int) -> None:
        dcp.save(self.training.state(), checkpoint_id=self.place(step), no_dist=True)

    def load(self, step: int) -> str:
        dcp.load(self.training.state(), checkpoint_id=self.place(step), no_dist=True)
        return "disk"


class DcpAsync(Dcp):
    options: tuple[bool, bool, bool, bool] | None = None  # pinned, shared, async, non-blocking
    process = False

    def attach(self, training: Training) -> None:
        super().attach(training)
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        if not dist.is_initialized():
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        kinds = AsyncCheckpointerType
        self.told_torch: dict[str, Any] = {
            "async_checkpointer_type": kinds.PROCESS if self.process else kinds.THREAD
        }
        if self.options is not None:
            self.new_stager = lambda: DefaultStager(StagingOptions(*self.options))
            self.told_torch["async_stager"] = self.new_stager()

    def save(self, step: int) -> None:
        where = self.place(step)
        stager = self.told_torch.get("async_stager")
        if stager and not stager._state_dict_stager._deepcopy_dispatch:
            self.told_torch["async_stager"] = self.new_stager()  # torch 2.11 closes it after a save
        given = dcp.async_save(self.training.state(), checkpoint_id=where, **self.told_torch)
        self.written = getattr(given, "upload_completion", given)
        staged = getattr(given, "staging_completion", None)
        if staged is not None:
            self.training.guard = lambda: _after(staged)

    def done(self, step: int) -> bool:
        return finished(self.written)

    def close(self) -> None:
        stager = self.told_torch.get("async_stager")
        if stager is not None:
            stager.close()
        if self.process:
            from torch.distributed.checkpoint import _async_process_executor as executor

            executor._CHECKPOINT_PROCESS = None  # which ends it


class DcpReused(DcpAsync):
    options = (False, False, False, False)


class DcpProcess(DcpAsync):
    options = (False, True, False, False)
    process = True


class DcpPinned(DcpAsync):
    options = (True, True, True, True)
    process = True

    def attach(self, training: Training) -> None:
        if training.device != "cuda":
            raise RuntimeError("pinned memory is for a GPU")
        super().attach(training)


class Headway(Way):
    first = 2  # it has two images
    full_every = 8

    def attach(self, training: Training) -> None:
        super().attach(training)
        from headway.checkpoint import Checkpointer

        store, parts = self.folder / "store", training.parts()
        self.checkpointer = Checkpointer(store, parts, full_every=self.full_every)

    def save(self, step: int) -> None:
        self.checkpointer.save(step)

    def done(self, step: int) -> bool:
        outcomes = [one for one in self.checkpointer.outcomes() if one["step"] == step]
        if outcomes and "error" in outcomes[0]:
            raise RuntimeError(outcomes[0]["error"])
        return bool(outcomes)

    def load(self, step: int) -> str:
        restored = self.checkpointer.restore()
        if restored is None or restored.step != step:
            raise RuntimeError(f"step {step} was saved, but it restored {restored}")
        return "memory" if restored.source == "memory" else "disk"

    def forget(self, step: int) -> None:
        """It deletes by its own rules."""

    def told(self) -> dict[str, Any]:
        kept = ("step", "bytes", "written_s")
        written = [{key: one[key] for key in kept} for one in self.checkpointer.outcomes()]
        return {"written": written, "writer": self.checkpointer._staging.initial_status["pid"]}

    def close(self) -> None:
        self.checkpointer.close()


class HeadwayFull(Headway):
    full_every = 1

    def forget(self, step: int) -> None:
        """At once, as a disk may have no room for three of the largest."""
        shutil.rmtree(self.folder / "store")


WAYS: dict[str, type[Way]] = {
    "torch.save": TorchSave,
    "dcp save": Dcp,
    "dcp async": DcpAsync,
    "dcp async reused": DcpReused,
    "dcp async process": DcpProcess,
    "dcp async pinned": DcpPinned,
    "headway full": HeadwayFull,
    "headway": Headway,
}


def finished(future: Any) -> bool:
    """Whether it is done; raises what went wrong."""
    if not future.done():
        return False
    future.result()
    return True


class Watch(threading.Thread):
    """Notes when a save is done, and when it is on disk."""

    def __init__(self, way: Way, step: int) -> None:
        super().__init__(daemon=True)
        self.way, self.step = way, step
        self.done_at = self.durable_at = 0.0
        self.failed: Exception | None = None
        if way.fsyncs and way.done(step):  # it was when the call came back
            self.done_at = self.durable_at = time.monotonic()
        else:
            self.start()

    def run(self) -> None:
        try:
            while not self.way.done(self.step):
                time.sleep(POLL_S)
            self.done_at = time.monotonic()
            if not self.way.fsyncs:
                fsync(self.way.place(self.step))
        except Exception as error:
            self.failed = error
        self.durable_at = time.monotonic()


def files(folder: Path) -> Iterator[Path]:
    """All below a folder, or the file."""
    yield from (path for path in (folder, *folder.rglob("*")) if path.is_file())


def fsync(folder: Path) -> None:
    for path in files(folder):
        with open(path, "rb") as file:
            os.fsync(file.fileno())


@contextmanager
def _after(staged: Any) -> Iterator[None]:
    staged.result()
    yield
