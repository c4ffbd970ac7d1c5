"""Whatever could notice that a file is not written yet waits for it.

Python's audit sees every file that Python opens, lists, renames or removes, and every process that
it starts, whoever asks for it. What asks for the state of a file, and the ways out of the process,
are wrapped.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from typing import Any, NoReturn

from headway.checkpoint.behind import folders
from headway.checkpoint.behind.queue import Job, Queue, below, failure, queued
from headway.errors import with_code
from headway.probe.hooks import checkpoint, inside
from headway.probe.recorder import recorder

# Before a name goes or changes, or a process begins, all is written: either may count on it.
EVERYTHING = frozenset(
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
# What it saved before may be removed, or get its final name, only if all that is new is written.
NAMES = frozenset({"os.link", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"})
REMOVES = frozenset({"os.remove", "os.rmdir"})
ITSELF = frozenset({"os.chmod", "os.chown", "os.utime"})
LISTS = frozenset({"os.listdir", "os.scandir"})
STATES = ("stat", "lstat", "access")
CAPABILITIES = (
    os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks,
)  # fmt: skip
WATCHED = EVERYTHING | ITSELF | LISTS | {"open"}
WRITING = os.O_WRONLY | os.O_RDWR

_armed = False
_failed = False  # something could not be written, and the process is about to end well
_exit = os._exit


def arm() -> None:
    """Before the first save that is written behind; once."""
    global _armed
    if _armed:
        return
    _armed = True
    sys.addaudithook(_audit)
    for name in STATES:
        _wrap_state(name)
    os._exit = _leave_at_once
    _wrap_start()
    checkpoint.looking = queued.at_work
    atexit.register(_leave)
    recorder.at_end.append(_leave)  # before the journal ends


def _audit(event: str, args: tuple[Any, ...], queued: Queue = queued) -> None:
    if not queued.pending and not queued.failed and queued.folder is None:
        return
    if queued.busy():  # by its argument: the hook outlives the names of this module
        return
    if event not in WATCHED or _imports():
        return
    if event == "open":
        _opened(args[0], args[2])
    elif event in EVERYTHING:
        queued.wait(event)
        if event in NAMES:
            _changed(event, args)
    elif event in LISTS:
        _listed(event, args[0])
    elif event in ITSELF:
        _looked_at(event, args[0])


def _imports() -> bool:
    """Whether Python asks in order to import: the writer may need a module whose lock it holds."""
    asking = sys._getframe(1).f_back
    return asking is not None and asking.f_code.co_filename.startswith("<frozen importlib")


def _opened(path: Any, flags: Any) -> None:
    real = _real(path)
    if real is None or type(flags) is not int:
        return
    made = bool(flags & WRITING) and not flags & os.O_APPEND
    folder = os.path.dirname(real)
    if made and not inside(checkpoint.SAVE):  # it may tell others which file to read
        queued.wait("a file beside it", lambda job: _is(job, real) or below(job.path, folder))
    else:
        queued.wait("open", lambda job: _is(job, real))
    if not made:
        queued.raise_failed(real)


def _listed(event: str, path: Any) -> None:
    real = _real("." if path is None else path)
    if real is not None:
        queued.wait(event, lambda job: os.path.dirname(job.path) == real or _is(job, real))


def _changed(event: str, args: tuple[Any, ...]) -> None:
    """A name is about to go or to change, and everything that was queued is written or failed."""
    if event in REMOVES:
        paths = [_place(*args[:2])]
    else:
        paths = [_place(path, -1) for path in args[:2] if isinstance(path, (str, bytes))]
    queued.refuse(paths)
    if event in REMOVES:
        folders.before_removal(paths[0])


def _place(path: Any, folder: Any) -> str:
    """Where a name is; what it leads to does not matter."""
    above, name = os.path.split(os.fsdecode(path))
    real = _real(folder if folder != -1 and not os.path.isabs(above) else above or ".")
    return os.path.join(real or above, name)


def _looked_at(event: str, path: Any) -> None:
    real = _real(path)
    if real is not None:
        queued.wait(event, lambda job: _is(job, real))


def _is(job: Job, real: str) -> bool:
    """Whether that is what the job writes, or lies in it."""
    return real == job.path or below(real, job.path)


def _real(path: Any) -> str | None:
    """Without links; of an open folder, where it is."""
    try:
        with queued.at_work():
            if isinstance(path, int):
                return os.readlink(f"/proc/self/fd/{path}")
            return os.path.realpath(os.fsdecode(path))
    except (OSError, TypeError, ValueError):
        return None


class State:
    """A function of `os` that looks at a file; like a builtin it becomes no method of a class."""

    def __init__(self, name: str) -> None:
        self._original, self._name, self._queued = getattr(os, name), name, queued
        functools.update_wrapper(self, self._original)

    def __call__(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        if self._queued.pending and not self._queued.busy():
            _looked_at(self._name, path)
        return self._original(path, *args, **kwargs)


def _wrap_state(name: str) -> None:
    state, original = State(name), getattr(os, name)
    for functions in CAPABILITIES:
        if original in functions:
            functions.add(state)
    setattr(os, name, state)


def _wrap_start() -> None:
    """Children that multiprocessing spawns: the audit is not told of them."""
    from multiprocessing.process import BaseProcess

    original = BaseProcess.start

    @functools.wraps(original)
    def start(self: BaseProcess) -> None:
        queued.wait("a process")
        original(self)

    BaseProcess.start = start  # type: ignore[method-assign]


def _leave() -> None:
    """The process ends by itself."""
    global _failed
    queued.closed = True
    queued.wait("the end")
    _failed = _tell() or _failed


def _leave_at_once(status: int) -> NoReturn:
    queued.wait("the end")
    _exit(1 if _tell() and not status else status)


def _tell() -> bool:
    failed, queued.failed = queued.failed, []
    if failed:
        with contextlib.suppress(Exception):  # nobody may be left to read it
            error = failure(failed)
            line = with_code(f"headway: {error}", code=error.code)
            print(line, file=sys.stderr, flush=True)
    return bool(failed)


def last() -> None:
    """After all that the process does at its end: its exit code tells of a write that failed."""
    if _failed:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        _exit(1)
