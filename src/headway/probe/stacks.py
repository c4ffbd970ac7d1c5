"""The stacks of this process: the line of the job that makes a call, and a full dump on a signal.

The launcher requests a dump. It is written to memory, which the launcher reads through /proc, so
that no file is left; faulthandler needs neither the GIL nor a running main thread. This module does
not import the recorder, as the launcher and `headway.startup` import it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from headway.journal import file_access

SIGNAL = signal.SIGRTMIN + 11  # not used by glibc, torch, NCCL or Slurm
MEMFD_NAME = "headway-stacks"


def calling_line(excluded: Any = None) -> str:
    """The innermost frame of the job, except code `excluded`, as `file:line name`."""
    own_folder = os.path.dirname(os.path.dirname(__file__))
    torch = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or __file__)
    python = os.path.dirname(os.__file__)
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        foreign = file.startswith((own_folder + os.sep, torch + os.sep, "<")) or (
            file.startswith(python + os.sep) and "-packages" not in file
        )
        if not foreign and frame.f_code is not excluded:
            return f"{file}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def offer_dump(emit: Callable[..., Any]) -> None:
    """Register the dump and tell the launcher; do nothing if the job uses the signal."""
    if not hasattr(os, "memfd_create") or signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return
    with file_access.above_standard_fds():
        fd = os.memfd_create(MEMFD_NAME, os.MFD_CLOEXEC)
    faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)
    emit("stacks", signal=int(SIGNAL), fd=fd)
