"""What Python's `os` does not offer: prctl, a fork hidden from wait(), facts from /proc/self."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Mapping, Sequence

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_MM = 35
PR_SET_MM_MAP = 14
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
MAX_NAME_BYTES = 15  # without the terminating zero
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
INHERITED_FIELDS = ("Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp", "Mems_allowed:")

_libc = ctypes.CDLL(None, use_errno=True)
_libc_with_gil = ctypes.PyDLL(None)  # does not release the GIL
_command_line_memory: list[mmap.mmap] = []  # the kernel reads these while the process lives


def prctl(option: int, *values: int | bytes) -> None:
    """Call prctl; raises OSError if the kernel refuses."""
    padded = [ctypes.c_char_p(v) if isinstance(v, bytes) else ctypes.c_ulong(v) for v in values]
    padded += [ctypes.c_ulong(0)] * (4 - len(padded))
    if _libc.prctl(option, *padded) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def die_with_parent(signal: int) -> None:
    """Have the kernel send this signal when the parent ends in any way; 0 for none."""
    prctl(PR_SET_PDEATHSIG, int(signal))


def set_process_name(text: str) -> None:
    """Set the name that `ps` and `top` show."""
    prctl(PR_SET_NAME, os.fsencode(text)[:MAX_NAME_BYTES])


class SubreaperScope:
    """Within this context, orphans below this process become its children."""

    def __enter__(self) -> None:
        previous = ctypes.c_int()
        prctl(PR_GET_CHILD_SUBREAPER, ctypes.addressof(previous))
        self.previous = previous.value
        prctl(PR_SET_CHILD_SUBREAPER, 1)

    def __exit__(self, *_: object) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, self.previous)


def hidden_fork() -> int:
    """Like `os.fork`, but wait() does not find the child, and its end sends no signal.

    Used for a process that serves its parent: a parent that waits for "any child" must not get this
    one. The fork handlers of C libraries do not run here; they run when the child forks.
    """
    number = SYS_CLONE.get(os.uname().machine)
    if number is None:
        return os.fork()
    _libc_with_gil.PyOS_BeforeFork()
    pid = int(_libc_with_gil.syscall(number, 0, 0, 0, 0, 0))
    if pid == 0:
        _libc_with_gil.PyOS_AfterFork_Child()
    else:
        _libc_with_gil.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError("clone failed")
    return pid


# -- /proc ------------------------------------------------------------------------------------


class _MemoryMap(ctypes.Structure):
    """struct prctl_mm_map"""

    _fields_ = [
        *((field, ctypes.c_uint64) for field in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk",
            "start_stack", "arg_start", "arg_end", "env_start", "env_end", "auxv",
        )),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]  # fmt: skip


def set_command_line(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Set what `/proc/PID/cmdline` and `/proc/PID/environ` show."""
    argv_bytes = b"".join(os.fsencode(word) + b"\0" for word in argv)
    env_bytes = b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, value in env.items())
    memory = mmap.mmap(
        -1, max(len(argv_bytes) + len(env_bytes), 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    memory.write(argv_bytes + env_bytes)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    end = begin + len(argv_bytes)
    _libc.sbrk.restype = ctypes.c_void_p
    stat = _stat_numbers()
    layout = _MemoryMap(
        start_code=stat[23], end_code=stat[24], start_stack=stat[25],
        start_data=stat[42], end_data=stat[43], start_brk=stat[44], brk=_libc.sbrk(0),
        arg_start=begin, arg_end=end, env_start=end, env_end=end + len(env_bytes),
        auxv=0, auxv_size=0, exe_fd=0xFFFFFFFF,
    )  # fmt: skip
    try:
        prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.addressof(layout), ctypes.sizeof(layout))
    except OSError:  # a kernel without CHECKPOINT_RESTORE
        _overwrite_command_line(stat[45], stat[46], argv)
        return
    _command_line_memory.append(memory)


def _overwrite_command_line(begin: int, end: int, argv: Sequence[str]) -> None:
    """Overwrite in place, as setproctitle does: one line, and no zero at the end of the area."""
    size = end - begin
    line = os.fsencode(" ".join(argv))[: size - 2]
    if begin and size > 2:
        ctypes.memmove(begin, line.ljust(size - 1, b"\0") + b" ", size)


def _stat_numbers() -> list[int]:
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return [0, *(int(field) for field in fields[1:])]


def process_status() -> dict[str, str]:
    """The fields of /proc/self/status."""
    with open("/proc/self/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def ignored_signals(facts: Mapping[str, str]) -> list[int]:
    """The ignored signals, including those that C code ignores."""
    mask = int(facts["SigIgn"], 16)
    return [number for number in range(1, 65) if mask >> (number - 1) & 1]


def inherited_limits() -> str:
    """What a child inherits and cannot take over from another process."""
    lines = []
    with open("/proc/self/status") as file:
        lines += [line for line in file if line.startswith(INHERITED_FIELDS)]
    for path in ("/proc/self/cgroup", "/proc/self/oom_score_adj"):
        try:
            with open(path) as file:
                lines.append(file.read())
        except OSError:
            continue
    for kind in NAMESPACES:
        try:
            lines.append(os.readlink(f"/proc/self/ns/{kind}"))
        except OSError:
            continue
    return "".join(lines)


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def open_descriptors() -> dict[int, str]:
    """Open descriptors and what they refer to, without the one that reads the listing."""
    descriptors = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            descriptors[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # the descriptor of the listing itself
            continue
    return descriptors


def resource_limits() -> dict[str, tuple[int, int]]:
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}
