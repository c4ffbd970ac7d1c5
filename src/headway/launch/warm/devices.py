"""Answers "are there GPUs?" without asking a GPU.

Libraries ask torch that at their import. The CUDA runtime, asked once, is lost for every forked
child; NVML, asked instead, starts a thread and opens the devices. The files in /dev know as well.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

DEVICE_COUNT_FUNCTIONS = ("_device_count_nvml", "_device_count_amdsmi")  # of torch.cuda
DEVICE_FILE = re.compile(r"nvidia\d+|renderD\d+")


class DeviceCountStub:
    """While it lasts, torch counts device files instead of asking a library."""

    def __init__(self, folders: tuple[str, ...] = ("/dev", "/dev/dri")) -> None:
        self._folders = folders
        self._originals: dict[str, Callable[[], int]] = {}

    def begin(self) -> None:
        """Once torch is loaded; before that, and twice, nothing."""
        cuda: Any = sys.modules.get("torch.cuda")
        if self._originals or getattr(sys.modules.get("torch"), "cuda", None) is None:
            return
        for name in DEVICE_COUNT_FUNCTIONS:
            if hasattr(cuda, name):
                self._originals[name] = getattr(cuda, name)
                setattr(cuda, name, self.count)

    def end(self) -> None:
        """torch asks again."""
        for name, original in self._originals.items():
            setattr(sys.modules["torch.cuda"], name, original)
        self._originals.clear()

    def count(self) -> int:
        """The devices that are there, as far as CUDA_VISIBLE_DEVICES shows them."""
        prefix = "renderD" if sys.modules["torch"].version.hip else "nvidia"
        nodes = [name for name in self._nodes() if name.startswith(prefix)]
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        if shown is None:
            return len(nodes)
        wanted = [word for word in shown.split(",") if word.strip() not in ("", "-1")]
        return min(len(wanted), len(nodes))

    def _nodes(self) -> list[str]:
        found = []
        for folder in self._folders:
            if os.path.isdir(folder):
                found += [name for name in os.listdir(folder) if DEVICE_FILE.fullmatch(name)]
        return found
