"""The ways of other packages, in their own environment (benchmarks/peers.py)."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from saving import Way, finished
from trained import Training


class TorchCheckpointing(Way):
    """Meta's; an update of the state waits for its lock."""

    fsyncs = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        # Its O_DIRECT, the default, fails with EINVAL on ext4.
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
        self.manager = CheckpointManager(CheckpointManager.Config(storage_config=storage))

    def attach(self, training: Training) -> None:
        super().attach(training)
        training.guard = self.manager.lock

    def save(self, step: int) -> None:
        self.written: Any = self.manager.save(str(self.place(step)), self.training.state())

    def done(self, step: int) -> bool:
        return finished(self.written)

    def load(self, step: int) -> str:
        self.manager.load(str(self.place(step)), into=self.training.state())
        return "disk"

    def close(self) -> None:
        self.manager.close()


class DlRover(Way):
    """Its flash checkpoint, with the saver process that it starts where no agent of it runs."""

    fsyncs = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        name = f"bench-{os.getpid()}"
        os.environ["TORCHELASTIC_RUN_ID"] = name  # so are its shared memory and sockets called
        os.environ["DLROVER_LOG_LEVEL"] = "ERROR"
        from dlrover.python.common.multi_process import SOCKET_TMP_DIR
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        self.sockets = Path(SOCKET_TMP_DIR) / name
        self.checkpointer = DdpCheckpointer(str(folder))

    def place(self, step: int) -> Path:
        return self.folder / str(step)

    def save(self, step: int) -> None:
        while self.checkpointer._engine.latest_step != step:  # it leaves out what comes too soon
            self.checkpointer.save_checkpoint(step, self.training.state())

    def done(self, step: int) -> bool:
        tracker = self.folder / "dlrover_latest.txt"
        return tracker.exists() and tracker.read_text() == str(step)

    def load(self, step: int) -> str:
        self.training.load(self.checkpointer.load_checkpoint())
        return "disk"

    def close(self) -> None:
        self.checkpointer._engine._shm_handler.unlink()
        shutil.rmtree(self.sockets, ignore_errors=True)


class TorchSnapshot(Way):
    fsyncs = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from torchsnapshot import Snapshot

        self.snapshot = Snapshot

    def save(self, step: int) -> None:
        self.pending = self.snapshot.async_take(str(self.place(step)), self.training.parts())

    def done(self, step: int) -> bool:
        if not self.pending.done():
            return False
        self.pending.wait()
        return True

    def load(self, step: int) -> str:
        self.snapshot(str(self.place(step))).restore(self.training.parts())
        return "disk"


class Lightning(Way):
    """Its AsyncCheckpointIO."""

    fsyncs = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

        self.io = AsyncCheckpointIO(TorchCheckpointIO())

    def save(self, step: int) -> None:
        self.io.save_checkpoint(self.training.state(), self.place(step))

    def done(self, step: int) -> bool:
        if self.io._error is not None:
            raise self.io._error
        return self.place(step).exists()

    def load(self, step: int) -> str:
        device = torch.device(self.training.device)
        self.training.load(self.io.load_checkpoint(self.place(step), map_location=device))
        return "disk"

    def close(self) -> None:
        self.io.teardown()


WAYS: dict[str, type[Way]] = {
    "torch_checkpointing": TorchCheckpointing,
    "dlrover": DlRover,
    "torchsnapshot": TorchSnapshot,
    "lightning async": Lightning,
}
