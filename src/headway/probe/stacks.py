"""Lets the launcher ask this process where it stands: all its stacks, on a signal of our own.

They go to memory that the launcher reads through /proc, so that nothing is left of it on disk
unless there was a reason to ask. faulthandler needs neither the GIL nor a running main thread.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable
from typing import Any

from headway.journal import files

SIGNAL = signal.SIGRTMIN + 11  # free in glibc, torch, NCCL and Slurm; the user's own comes first
MEMFD_NAME = "headway-stacks"


def offer_dump(emit: Callable[..., Any]) -> None:
    """Register, and tell the launcher how to ask; nothing where the signal is taken."""
    if not hasattr(os, "memfd_create") or signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return
    with files.above_standard_fds():
        fd = os.memfd_create(MEMFD_NAME, os.MFD_CLOEXEC)
    faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)
    emit("stacks", signal=int(SIGNAL), fd=fd)
