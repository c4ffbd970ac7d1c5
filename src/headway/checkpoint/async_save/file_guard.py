"""Make everything that could notice an unwritten file wait for it.

An audit hook sees every file that Python opens, lists, renames or removes, and every process that
it starts. Functions that query the state of a file, and the ways to end the process, are wrapped.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from typing import Any, NoReturn

from headway.checkpoint.async_save import checkpoint_folders
from headway.checkpoint.async_save.background import (
    BackgroundSave,
    WriteQueue,
    describe_failures,
    is_below,
    write_queue,
)
from headway.errors import with_code
from headway.probe.hooks import checkpoint
from headway.probe.patching import inside
from headway.probe.recorder import recorder

# Before a name is removed or changed, or a process starts, everything is written: either may rely
# on it.
WAIT_FOR_ALL = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.link",
        "os.posix_spawn",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.spawn",
        "os.symlink",
        "os.system",
        "os.truncate",
        "subprocess.Popen",
    }
)
# Earlier saves may be removed or renamed only once all newer ones are written.
NAME_CHANGES = frozenset(
    {"os.link", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"}
)
REMOVALS = frozenset({"os.remove", "os.rmdir"})
FILE_CHANGES = frozenset({"os.chmod", "os.chown", "os.utime"})
LISTINGS = frozenset({"os.listdir", "os.scandir"})
STAT_FUNCTIONS = ("stat", "lstat", "access")
CAPABILITIES = (
    os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks,
)  # fmt: skip
AUDITED_EVENTS = WAIT_FOR_ALL | FILE_CHANGES | LISTINGS | {"open"}
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR

_installed = False
_failed = False  # a write failed, and the process is about to exit with 0
_exit = os._exit


def install_guard() -> None:
    """Install the hooks once, before the first background save."""
    global _installed
    if _installed:
        return
    _installed = True
    sys.addaudithook(_audit)
    for name in STAT_FUNCTIONS:
        _wrap_stat(name)
    os._exit = _flush_before_exit
    _wrap_start()
    checkpoint.path_lookup = write_queue.internal
    atexit.register(_flush_at_exit)
    recorder.at_end.append(_flush_at_exit)  # before the journal is closed


def _audit(event: str, args: tuple[Any, ...], queue: WriteQueue = write_queue) -> None:
    if not queue.pending and not queue.failed and queue.folder is None:
        return
    if queue.in_save():  # passed as an argument: the hook outlives module globals
        return
    if event not in AUDITED_EVENTS or _is_importing():
        return
    if event == "open":
        _before_open(args[0], args[2])
    elif event in WAIT_FOR_ALL:
        queue.wait(event)
        if event in NAME_CHANGES:
            _before_change(event, args)
    elif event in LISTINGS:
        _before_listing(event, args[0])
    elif event in FILE_CHANGES:
        _wait_for_path(event, args[0])


def _is_importing() -> bool:
    """Whether an import opens the file: the writer may need the import lock it holds."""
    caller = sys._getframe(1).f_back
    return caller is not None and caller.f_code.co_filename.startswith("<frozen importlib")


def _before_open(path: Any, flags: Any) -> None:
    real = _real_path(path)
    if real is None or type(flags) is not int:
        return
    replaced = bool(flags & WRITE_FLAGS) and not flags & os.O_APPEND
    folder = os.path.dirname(real)
    if replaced and not inside(checkpoint.SAVE):  # it may name a file for others to read
        write_queue.wait(
            "a file in the same folder",
            lambda job: _concerns(job, real) or is_below(job.path, folder),
        )
    else:
        write_queue.wait("open", lambda job: _concerns(job, real))
    if not replaced:
        write_queue.raise_failed(real)


def _before_listing(event: str, path: Any) -> None:
    real = _real_path("." if path is None else path)
    if real is not None:
        write_queue.wait(
            event, lambda job: os.path.dirname(job.path) == real or _concerns(job, real)
        )


def _before_change(event: str, args: tuple[Any, ...]) -> None:
    """Before a name is removed or changed; everything queued is written or has failed."""
    if event in REMOVALS:
        paths = [_path_of(*args[:2])]
    else:
        paths = [_path_of(path, -1) for path in args[:2] if isinstance(path, (str, bytes))]
    write_queue.refuse(paths)
    if event in REMOVALS:
        checkpoint_folders.before_removal(paths[0])


def _path_of(path: Any, folder: Any) -> str:
    """The path of a name itself, without following a link."""
    above, name = os.path.split(os.fsdecode(path))
    real = _real_path(folder if folder != -1 and not os.path.isabs(above) else above or ".")
    return os.path.join(real or above, name)


def _wait_for_path(event: str, path: Any) -> None:
    real = _real_path(path)
    if real is not None:
        write_queue.wait(event, lambda job: _concerns(job, real))


def _concerns(job: BackgroundSave, real: str) -> bool:
    """Whether the path is the target of the save or inside it."""
    return real == job.path or is_below(real, job.path)


def _real_path(path: Any) -> str | None:
    """The path without links; for the descriptor of a folder, its path."""
    try:
        with write_queue.internal():
            if isinstance(path, int):
                return os.readlink(f"/proc/self/fd/{path}")
            return os.path.realpath(os.fsdecode(path))
    except (OSError, TypeError, ValueError):
        return None


class StatWrapper:
    """A function of `os` that queries a file; like a builtin, it does not bind as a method."""

    def __init__(self, name: str) -> None:
        self._original, self._name, self._queue = getattr(os, name), name, write_queue
        functools.update_wrapper(self, self._original)

    def __call__(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        if self._queue.pending and not self._queue.in_save():
            _wait_for_path(self._name, path)
        return self._original(path, *args, **kwargs)


def _wrap_stat(name: str) -> None:
    wrapper, original = StatWrapper(name), getattr(os, name)
    for functions in CAPABILITIES:
        if original in functions:
            functions.add(wrapper)
    setattr(os, name, wrapper)


def _wrap_start() -> None:
    """Processes spawned by multiprocessing are not audited."""
    from multiprocessing.process import BaseProcess

    original = BaseProcess.start

    @functools.wraps(original)
    def start(self: BaseProcess) -> None:
        write_queue.wait("a process")
        original(self)

    BaseProcess.start = start  # type: ignore[method-assign]


def _flush_at_exit() -> None:
    """Normal end of the process."""
    global _failed
    write_queue.closed = True
    write_queue.wait("the end")
    _failed = _report_failures() or _failed


def _flush_before_exit(status: int) -> NoReturn:
    write_queue.wait("the end")
    _exit(1 if _report_failures() and not status else status)


def _report_failures() -> bool:
    failed, write_queue.failed = write_queue.failed, []
    if failed:
        with contextlib.suppress(Exception):  # stderr may be closed
            error = describe_failures(failed)
            line = with_code(f"headway: {error}", code=error.code)
            print(line, file=sys.stderr, flush=True)
    return bool(failed)


def exit_if_failed() -> None:
    """Last exit handler: exit with 1 if a write has failed."""
    if _failed:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        _exit(1)
