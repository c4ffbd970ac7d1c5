"""Simulate a disk that is slow, failing or full below a folder named in a plan.

Python's audit hook sees every file that Python opens, also in libraries, and can make that fail.
Writers in C++ and Rust are wrapped, and raise the errors that they raise on such a disk.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headway.chaos import probe_hooks
from headway.probe import ENV_FOLDER
from headway.probe.recorder import recorder

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit events that change a disk, and the index of the path in their arguments.
CHANGES = {"os.mkdir": 0, "os.truncate": 0, "os.rename": 1, "os.link": 1}
NEEDS_NO_SPACE = ("os.rename", "os.truncate")  # these work on a full disk

Fail = Callable[[int, Any], Exception]


def watch() -> None:
    """Install the hooks; an audit hook cannot be removed."""
    sys.addaudithook(_audit)
    for name in ("fsync", "fdatasync"):
        setattr(os, name, _wrap_sync(getattr(os, name)))


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        if type(args[2]) is int and args[2] & WRITING:
            touch(args[0], event)
    elif event in CHANGES:
        touch(args[CHANGES[event]], event)


def _wrap_sync(sync: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap fsync or fdatasync, which report failed writes."""

    @functools.wraps(sync)
    def synced(fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            path = ""
        touch(path, "fsync", lambda number, path: OSError(number, os.strerror(number)))
        sync(fd)

    return synced


def touch(path: Any, event: str, fail: Fail | None = None) -> None:
    """Delay or fail a write to `path`, if an order applies."""
    try:
        order = _matching_order(path, event)
    except Exception as error:
        recorder.note("chaos", error, code="fault-not-done")
        return
    if order is None:
        return
    if order["mode"] == "slow":
        time.sleep(order["delay_s"])
    else:
        number = order["errno"]
        raise fail(number, path) if fail else OSError(number, os.strerror(number), path)


def _matching_order(path: Any, event: str) -> probe_hooks.Order | None:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None  # a descriptor: checked when it was opened
    folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
    folder = os.path.realpath(folder)
    if folder == os.environ[ENV_FOLDER]:
        return None  # the journal of Headway
    where = os.path.join(folder, name)
    for order in probe_hooks.lasting_orders("disk"):
        if order["mode"] == "full" and event in NEEDS_NO_SPACE:
            continue
        below = where == order["path"] or where.startswith(order["path"] + os.sep)
        if below and probe_hooks.is_active(order):
            return order
    return None


# Writers in other languages.


def _torch_save(serialization: ModuleType) -> None:
    """torch.save writes in C++, to a path or with the `write` of an open file."""
    _guard_init(serialization._open_zipfile_writer_file, _cannot_open)
    _guard_init(serialization._open_zipfile_writer_buffer, _cannot_write)


def _guard_init(writer: Any, fail: Fail) -> None:
    original = writer.__init__

    @functools.wraps(original)
    def __init__(self: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        touch(getattr(target, "name", target), "open", fail)
        original(self, target, *args, **kwargs)

    writer.__init__ = __init__


def _cannot_open(number: int, path: Any) -> Exception:
    text = f"open file failed with strerror: {os.strerror(number)}"
    return RuntimeError(f"[enforce fail at inline_container.cc:747] . {text}")


def _cannot_write(number: int, path: Any) -> Exception:
    return RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")


def _safetensors(safetensors: ModuleType) -> None:
    original = safetensors.save_file
    kind = getattr(sys.modules.get("safetensors"), "SafetensorError", OSError)

    def fail(number: int, path: Any) -> Exception:
        text = f"I/O error: {os.strerror(number)} (os error {number})"
        return kind(f"Error while serializing: {text}")

    @functools.wraps(original)
    def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        touch(filename, "open", fail)
        return original(tensors, filename, *args, **kwargs)

    safetensors.save_file = save_file  # type: ignore[attr-defined]


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "torch.serialization": _torch_save,
    "safetensors.torch": _safetensors,
}
