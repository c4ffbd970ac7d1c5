"""Import what the last attempt imported, and leave out what a fork would break.

torch and its dependencies are known to be safe. Any other package is first imported in a forked
child, a trial import that reports its side effects; only a package without any is then imported
here. Meanwhile, reads of environment variables are recorded, and devices are counted without a GPU
library: the CUDA runtime, once asked, is unusable in every forked child, and NVML starts a thread
and opens the devices.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headway.launch import linux
from headway.launch.warm import cache_priming, spawn_request
from headway.launch.warm.preload_plan import TORCH_FAMILY

# They iterate over the environment for names with a prefix (compatibility.READ_AT_START) and use no
# others.
PREFIX_READERS = {"tqdm", "networkx", "fsspec"}
ENVIRONMENT_MODULES = (
    "os",
    "_collections_abc",
    "collections.abc",
    "posixpath",
    "shutil",
    "tempfile",
)


class EnvironmentReads:
    """Records reads of `os.environ` by patching its class within this context."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.all_by: set[str] = set()  # packages that iterated over the whole environment
        self._expected: deque[str] = deque()  # the next reads of an iteration

    def __enter__(self) -> EnvironmentReads:
        kind: Any = type(os.environ)
        self._originals = getitem, iterate = kind.__getitem__, kind.__iter__
        reads = self

        def __getitem__(environ: Any, key: Any) -> Any:
            reads._record(key)
            return getitem(environ, key)

        def __iter__(environ: Any) -> Iterator[Any]:
            keys = list(iterate(environ))
            if (package := _reading_package()) != "headway":
                reads.all_by.add(package)
            reads._expected = deque(keys)
            return iter(keys)

        kind.__getitem__, kind.__iter__ = __getitem__, __iter__
        return self

    def __exit__(self, *_: object) -> None:
        kind: Any = type(os.environ)
        kind.__getitem__, kind.__iter__ = self._originals

    def _record(self, key: Any) -> None:
        if self._expected and self._expected[0] == key:
            self._expected.popleft()
            return
        self._expected.clear()
        if isinstance(key, str) and _reading_package() != "headway":
            self.names.add(key)


def _reading_package() -> str:
    """The package that reads: the innermost frame outside of ENVIRONMENT_MODULES."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in ENVIRONMENT_MODULES and name != __name__:
            return name.partition(".")[0]
        frame = frame.f_back
    return ""


DEVICE_COUNT_FUNCTIONS = ("_device_count_nvml", "_device_count_amdsmi")  # of torch.cuda
DEVICE_FILE = re.compile(r"nvidia\d+|renderD\d+")


class DeviceCountStub:
    """Makes torch count device files instead of asking a library."""

    def __init__(self, folders: tuple[str, ...] = ("/dev", "/dev/dri")) -> None:
        self._folders = folders
        self._originals: dict[str, Callable[[], int]] = {}

    def begin(self) -> None:
        """Install the stub, if torch is loaded; does nothing before that or the second time."""
        cuda: Any = sys.modules.get("torch.cuda")
        if self._originals or getattr(sys.modules.get("torch"), "cuda", None) is None:
            return
        for name in DEVICE_COUNT_FUNCTIONS:
            if hasattr(cuda, name):
                self._originals[name] = getattr(cuda, name)
                setattr(cuda, name, self.count)

    def end(self) -> None:
        """Restore torch's functions."""
        for name, original in self._originals.items():
            setattr(sys.modules["torch.cuda"], name, original)
        self._originals.clear()

    def count(self) -> int:
        """The number of devices that CUDA_VISIBLE_DEVICES shows."""
        prefix = "renderD" if sys.modules["torch"].version.hip else "nvidia"
        nodes = [name for name in self._nodes() if name.startswith(prefix)]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return len(nodes)
        requested = [word for word in visible.split(",") if word.strip() not in ("", "-1")]
        return min(len(requested), len(nodes))

    def _nodes(self) -> list[str]:
        names = []
        for folder in self._folders:
            if os.path.isdir(folder):
                names += [name for name in os.listdir(folder) if DEVICE_FILE.fullmatch(name)]
        return names


RANK_VARIABLES = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID",
}  # fmt: skip
TRIAL_IMPORT_S = 120.0


class Preloader:
    """What was imported, and what was left out with the reason."""

    def __init__(self, known_bad: dict[str, str], known_good: Iterable[str]) -> None:
        self.left_out = dict(known_bad)
        self.good = set(known_good)
        self.reads = EnvironmentReads()
        self.fault = ""  # why this process cannot be forked
        self._initial_descriptors = linux.open_descriptors()

    def load(self, names: list[str], *, ranked: bool) -> None:
        """Import in the order of the list, which is part of the keys of torch's compile caches."""
        packages: dict[str, list[str]] = {}
        for name in names:
            packages.setdefault(name.partition(".")[0], []).append(name)
        device_stub = DeviceCountStub()
        with self.reads:
            for name in names:
                if name not in sys.modules and self._is_allowed(name, packages, ranked):
                    self._import(name)
                    if (
                        linux.thread_count() > 1
                        or linux.open_descriptors() != self._initial_descriptors
                    ):
                        self.left_out[".".join(name.split(".")[:2])] = fork_hazard(
                            self._initial_descriptors
                        )
                        break
                    device_stub.begin()
        cache_priming.fill_caches()
        cache_priming.compile_once()
        device_stub.end()
        self.fault = fork_hazard(self._initial_descriptors)
        if not self.fault and "torch" in sys.modules and _in_a_child(_backward) != 0:
            self.fault = "autograd does not work after a fork"

    def _is_allowed(self, name: str, packages: dict[str, list[str]], ranked: bool) -> bool:
        """Whether it is known to be safe, or a trial import shows that it is."""
        top = name.partition(".")[0]
        if self._is_left_out(name):
            return False
        if top in TORCH_FAMILY or top in sys.stdlib_module_names or top in self.good:
            return True
        reason = self._trial_import(packages[top], ranked)
        if reason:
            self.left_out[top] = reason
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

    def _trial_import(self, names: list[str], ranked: bool) -> str:
        """Why these modules cannot be preloaded; empty if they can."""
        parent_end, child_end = spawn_request.socket_pair()
        pid = os.fork()
        if pid == 0:
            os.close(parent_end)
            reason = "its import failed"
            with contextlib.suppress(BaseException):
                reason = self._try(names, ranked)
            with contextlib.suppress(BaseException):
                spawn_request.send_message(child_end, json.dumps(reason).encode())
            os._exit(0)
        os.close(child_end)
        try:
            answer, _ = spawn_request.receive_message(parent_end, TRIAL_IMPORT_S)
        except TimeoutError:
            answer = json.dumps("its import takes too long").encode()
        finally:
            os.close(parent_end)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return str(json.loads(answer)) if answer else "its import ended the process"

    def _try(self, names: list[str], ranked: bool) -> str:
        linux.die_with_parent(signal.SIGKILL)
        before = linux.open_descriptors()
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


def fork_hazard(initial: dict[int, str]) -> str:
    """What makes this process unsafe to fork; empty if nothing does.

    `before` are the descriptors that it had before its imports.
    """
    if linux.thread_count() > 1:
        return "it has started threads"
    for children in _read_task_files("/proc/self/task/{}/children"):
        if children.strip():
            return "it has started a process"
    for fd, opened in linux.open_descriptors().items():
        if initial.get(fd) != opened:
            return f"it keeps {opened} open"
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "it has initialized CUDA"
    if torch is not None and _is_cuda_lost_after_fork(torch):
        return "it has made CUDA unusable after a fork"
    return ""


def _read_task_files(pattern: str) -> list[str]:
    contents = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(pattern.format(task)) as file:
            contents.append(file.read())
    return contents


def _is_cuda_lost_after_fork(torch: Any) -> bool:
    """torch marks a child of a process that has used the CUDA runtime."""
    bad = getattr(torch.cuda, "_is_in_bad_fork", None)
    return bad is not None and _in_a_child(bad) != 0


def _backward() -> bool:
    """A backward pass in a child: autograd refuses it if it has run before the fork."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch: Any = sys.modules["torch"]
    torch.ones(1, requires_grad=True).sum().backward()
    return False


def _in_a_child(call: Callable[[], bool]) -> int:
    """The result of a call in a child; 0 if it returned False."""
    pid = os.fork()
    if pid == 0:
        answer = 1
        with contextlib.suppress(BaseException):
            answer = int(bool(call()))
        os._exit(answer)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
