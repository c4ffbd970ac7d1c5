"""Imports what the last attempt imported, and leaves out what a fork would break.

torch and what it brings are known to be safe. Any other package is first imported in a forked
child, the scout, which tells what that has done; only a harmless one is then imported for good.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

from headway.launch.warm import kernel, prime, rehearse, wire
from headway.launch.warm.devices import DeviceCountStub
from headway.launch.warm.recipe import TORCH_FAMILY
from headway.launch.warm.watching import PREFIX_READERS, EnvironmentReads

RANK_VARIABLES = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID",
}  # fmt: skip
TRIAL_IMPORT_S = 120.0
ANSWERS = "(answers)"  # what prime.py works out, among the modules that are left out


class Preloader:
    """What was imported, and what was not, with the reason."""

    def __init__(self, known_bad: dict[str, str], known_good: Iterable[str]) -> None:
        self.left_out = dict(known_bad)
        self.good = set(known_good)
        self.reads = EnvironmentReads()
        self.fault = ""  # why this process cannot be forked any more
        self._before = kernel.open_descriptors()

    def load(self, names: list[str], *, ranked: bool) -> None:
        """Import in the order of the list, which goes into the keys of torch's compile caches."""
        packages: dict[str, list[str]] = {}
        for name in names:
            packages.setdefault(name.partition(".")[0], []).append(name)
        unasked = DeviceCountStub()
        with self.reads:
            for name in names:
                if name not in sys.modules and self._may(name, packages, ranked):
                    self._import(name)
                    if kernel.thread_count() > 1 or kernel.open_descriptors() != self._before:
                        self.left_out[".".join(name.split(".")[:2])] = fork_hazard(self._before)
                        break
                    unasked.begin()
        prime.fill_caches()
        rehearse.compile_once()
        unasked.end()
        self.fault = fork_hazard(self._before)
        if not self.fault and "torch" in sys.modules and _in_a_child(_backward) != 0:
            self.fault = "autograd does not work after a fork"

    def _may(self, name: str, packages: dict[str, list[str]], ranked: bool) -> bool:
        """Whether it is known to be harmless, or a scout finds that it is."""
        top = name.partition(".")[0]
        if self._is_left_out(name):
            return False
        if top in TORCH_FAMILY or top in sys.stdlib_module_names or top in self.good:
            return True
        why = self._scout(packages[top], ranked)
        if why:
            self.left_out[top] = why
            return False
        self.good.add(top)
        return True

    def _is_left_out(self, name: str) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:n]) in self.left_out for n in range(1, len(parts) + 1))

    def _import(self, name: str) -> None:
        try:
            importlib.import_module(name)
        except Exception as error:
            self.left_out[name] = f"{type(error).__name__}: {error}"[:200]

    def _scout(self, names: list[str], ranked: bool) -> str:
        """Why these cannot be imported ahead; empty if they can."""
        ours, theirs = wire.socket_pair()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            why = "its import failed"
            with contextlib.suppress(BaseException):
                why = self._try(names, ranked)
            with contextlib.suppress(BaseException):
                wire.send_message(theirs, json.dumps(why).encode())
            os._exit(0)
        os.close(theirs)
        try:
            answer, _ = wire.receive_message(ours, TRIAL_IMPORT_S)
        except TimeoutError:
            answer = json.dumps("its import takes too long").encode()
        finally:
            os.close(ours)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return str(json.loads(answer)) if answer else "its import ends the process"

    def _try(self, names: list[str], ranked: bool) -> str:
        kernel.die_with_parent(signal.SIGKILL)
        before = kernel.open_descriptors()
        self.reads.names.clear()
        self.reads.all_by.clear()
        for name in names:
            try:
                importlib.import_module(name)
            except Exception as error:
                if name == names[0]:
                    return f"{type(error).__name__}: {error}"[:200]
        return fork_hazard(before) or self._reading(ranked)

    def _reading(self, ranked: bool) -> str:
        wrong = sorted(RANK_VARIABLES & self.reads.names) if ranked else []
        if wrong:
            return f"it reads {wrong[0]} at import"
        everything = sorted(self.reads.all_by - PREFIX_READERS - TORCH_FAMILY)
        return f"{everything[0]} reads the whole environment at import" if everything else ""


def fork_hazard(before: dict[int, str]) -> str:
    """What makes this process unfit to be forked; empty if nothing does.

    `before` are the descriptors that it had before its imports.
    """
    if kernel.thread_count() > 1:
        return "it has started threads"
    for children in _read_task_files("/proc/self/task/{}/children"):
        if children.strip():
            return "it has started a process"
    for fd, opened in kernel.open_descriptors().items():
        if before.get(fd) != opened:
            return f"it keeps {opened} open"
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "it has initialised CUDA"
    if torch is not None and _is_cuda_lost_after_fork(torch):
        return "it has made CUDA unusable after a fork"
    return ""


def _read_task_files(pattern: str) -> list[str]:
    found = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(pattern.format(task)) as file:
            found.append(file.read())
    return found


def _is_cuda_lost_after_fork(torch: Any) -> bool:
    """torch marks a child of a process that has asked the CUDA runtime anything."""
    bad = getattr(torch.cuda, "_is_in_bad_fork", None)
    return bad is not None and _in_a_child(bad) != 0


def _backward() -> bool:
    """A step back in a child: autograd refuses it if it has run before the fork."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch: Any = sys.modules["torch"]
    torch.ones(1, requires_grad=True).sum().backward()
    return False


def _in_a_child(call: Callable[[], bool]) -> int:
    """0 if it returned False there."""
    pid = os.fork()
    if pid == 0:
        answer = 1
        with contextlib.suppress(BaseException):
            answer = int(bool(call()))
        os._exit(answer)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
