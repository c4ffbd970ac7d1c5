"""Queue the compiles of a node: one rank compiles first, the others find the result in the cache.

Waiting pays off where the ranks would otherwise share too few cores, and only if the compiled code
is the same for all; a rank for which it did not help stops waiting. The NCCL watchdog gets more
time, so that a rank that finishes early is not aborted while another one still compiles.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

from headway.probe import ENV_COMPILE, ENV_LAUNCH, step_clock
from headway.probe.recorder import recorder

SPAN = "compile_turn"
# Other triggers run kernels, and may communicate with other ranks.
SHARED_TRIGGERS = ("DYNAMO", "LAZY_BACKWARD")
CORES_PER_RANK = 2  # cores that a compile keeps busy
TIMEOUT_S = 600.0
POLL_S = 0.01
HELPED_SHARE = 0.5  # of the wait; a rank that takes longer has compiled all of it itself
MAX_GRANT_S = 1800.0  # limit per step
MIN_GRANT_S = 1.0  # less does not matter to a timeout of minutes


class CompileQueue:
    """The position of this rank in the queue."""

    def __init__(self) -> None:
        self.path = ""  # the file of the turn that this rank has
        self.waited_s = 0.0  # for the first rank
        self.compile_started = 0.0
        self.waiting_helps = True
        self.queued_at = 0.0  # start of the compile in progress, or of the wait before it
        self.step = 0  # step of `granted_s`
        self.granted_s = 0.0  # extra time granted to collectives

    def begin(self, trigger: str, compile_id: str) -> None:
        """Start an outermost compile: take the turn, or wait for the rank that has it."""
        self.compile_started, self.waited_s = time.monotonic(), 0.0
        self.queued_at = self.compile_started
        if trigger not in SHARED_TRIGGERS or not self.waiting_helps or not worth_waiting():
            return
        path = _turn_path(trigger, compile_id)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "x", encoding="ascii") as file:
                file.write(str(os.getpid()))
            self.path = path
        except FileExistsError:
            self._wait_for_first(path)
            self.compile_started = time.monotonic()

    def end(self) -> None:
        """End the compile, and let the other ranks continue."""
        if self.path:
            os.replace(self.path, f"{self.path}.done")
            self.path = ""
        elif self.waited_s:
            seconds = time.monotonic() - self.compile_started
            self.waiting_helps = seconds < HELPED_SHARE * self.waited_s or seconds < 1.0
        self._extend_collective_timeout(time.monotonic() - self.queued_at)

    def _extend_collective_timeout(self, compile_s: float) -> None:
        """Extend the timeout of the next collectives: the other ranks may compile as long in turn.

        NCCL sums up extensions per group until a collective with an extension has finished, so an
        unused group keeps all of them. Therefore no more than the measured time is granted.
        """
        if self.step != step_clock.steps:
            self.step, self.granted_s = step_clock.steps, 0.0
        seconds = min(compile_s * _local_ranks(), MAX_GRANT_S - self.granted_s)
        if seconds >= MIN_GRANT_S:
            self.granted_s += seconds
            extend_collective_timeouts(seconds)

    def _wait_for_first(self, path: str) -> None:
        if os.path.exists(f"{path}.done"):
            return
        span = recorder.begin(SPAN, what="wait")
        since = time.monotonic()
        while not os.path.exists(f"{path}.done") and time.monotonic() - since < TIMEOUT_S:
            if not _is_alive(path):
                break
            time.sleep(POLL_S)
        self.waited_s = time.monotonic() - since
        recorder.end(span)


compile_queue = CompileQueue()


def worth_waiting() -> bool:
    """Whether the ranks of this node share too few cores and compile the same code."""
    ranks = _local_ranks()
    cores = len(os.sched_getaffinity(0))
    if (
        ranks < 2
        or cores >= ranks * CORES_PER_RANK
        or not os.path.isdir(os.environ.get(ENV_COMPILE, ""))
    ):
        return False
    torch: Any = sys.modules["torch"]
    if torch._dynamo.config.enable_compiler_collectives:  # compiles are synchronized already
        return False
    # The index of the GPU is part of the code, so ranks with different indexes cannot share it.
    return not torch.cuda.is_available() or torch.cuda.device_count() == 1


def _local_ranks() -> int:
    """Number of ranks on this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def extend_collective_timeouts(seconds: float) -> None:
    """Extend the timeout of the next collective of each NCCL group."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    add = getattr(distributed.distributed_c10d, "_add_ephemeral_timeout_for_all_pgs", None)
    if add is not None:
        add(timedelta(seconds=seconds))


def _turn_path(trigger: str, compile_id: str) -> str:
    name = f"{os.environ.get(ENV_LAUNCH, '')}-{trigger}-{compile_id}".replace("/", ".")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return os.path.join(os.environ[ENV_COMPILE], "turns", f"{name}-{restart}")


def _is_alive(path: str) -> bool:
    try:
        with open(path, encoding="ascii") as file:
            os.kill(int(file.read() or 0) or os.getpid(), 0)
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has finished, or is dead
    except PermissionError:
        pass
    return True
