"""torch.save to a path: an image now, the file behind the training."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from headway.checkpoint.behind import aside
from headway.checkpoint.behind.image import Image, Unsafe, pickled
from headway.checkpoint.behind.queue import BEHIND, Job, queued
from headway.probe import pace
from headway.probe.recorder import from_the_user, guard, recorder

Original = Callable[..., Any]

OPEN_FILE = Unsafe("an open file", code="open-file")
URL = Unsafe("a URL", code="url")
NESTED = Unsafe("a save within a save", code="nested-save")
ENDING = Unsafe("the process ends", code="process-ends")


def no_memory(size: int) -> Unsafe:
    """Nor will there be."""
    return Unsafe(f"there is no memory for a copy of {size:,} bytes", code="no-memory", size=size)


def copy_failed(error: Exception) -> Unsafe:
    """The plain call raises it too, if it is not ours."""
    return Unsafe(f"{type(error).__name__}: {error}", code="copy-failed")


def save(serialization: Any, original: Original, *args: Any, **kwargs: Any) -> Any:
    """In place of torch.save."""
    if queued.writes():
        return original(*args, **kwargs)
    told = _arguments(args, kwargs)
    if told is None or isinstance(told["f"], (bytes, int)) or _in_memory(told["f"]):
        return original(*args, **kwargs)
    if not isinstance(told["f"], (str, os.PathLike)):
        return plain(OPEN_FILE, told["f"], original, *args, **kwargs)
    if queued.busy():  # a signal came while we were at work
        return plain(NESTED, told["f"], original, *args, **kwargs)
    with queued.at_work():
        why = _why_not(told) or _behind(serialization, **told)
    if why is not None:
        return plain(why, told["f"], original, *args, **kwargs)
    queued.raise_failed()  # of an earlier one; this one is on its way
    return None


def plain(why: Unsafe, target: Any, original: Original, *args: Any, **kwargs: Any) -> Any:
    """The call as it is without us, after all that came before it; counted."""
    guard(BEHIND, _note_plain, why, target)
    queued.wait("a plain save")
    result = original(*args, **kwargs)
    queued.raise_failed()
    return result


def _note_plain(why: Unsafe, target: Any) -> None:
    from headway.probe.hooks.checkpoint import path_of

    recorder.start()
    recorder.emit("behind", path=path_of(target), why=str(why)[:200], code=why.code)


def _arguments(args: Any, kwargs: Any) -> dict[str, Any] | None:
    """Those of torch.save; None where torch is to say what is wrong with them."""
    try:
        return _named(*args, **kwargs)
    except TypeError:
        return None


def _named(
    obj: object,
    f: Any,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> dict[str, Any]:
    return {
        "obj": obj,
        "f": f,
        "module": pickle_module,
        "protocol": pickle_protocol,
        "zipped": _use_new_zipfile_serialization,
        "no_byteorder": _disable_byteorder_record,
    }


def _in_memory(target: Any) -> bool:
    """A buffer is no file: nothing is won, and nothing is to be counted."""
    return not isinstance(target, os.PathLike) and not isinstance(
        getattr(target, "name", target), str
    )


def _why_not(told: dict[str, Any]) -> Unsafe | None:
    if queued.closed:
        return ENDING
    if not isinstance(os.fspath(told["f"]), str):
        return Unsafe("the path is not text", code="path-not-text")
    if told["module"] is not pickle:
        name = getattr(told["module"], "__name__", told["module"])
        return Unsafe(f"pickle_module is {name}", code="pickle-module-not-supported")
    if not told["zipped"]:
        return Unsafe("the old format is asked for", code="format-not-supported")
    if _modes():
        return Unsafe("a torch dispatch mode is on", code="dispatch-mode-on")
    return aside.why_not(_real(told["f"]))


def _modes() -> bool:
    import torch

    return bool(torch._C._len_torch_dispatch_stack())


def _real(target: Any) -> str:
    return str(os.path.realpath(os.fspath(target)))


def _behind(
    serialization: Any, obj: object, f: Any, protocol: int, no_byteorder: bool, **_: Any
) -> Unsafe | None:
    """Take the image and queue it; else why not, and nothing has happened."""
    start = monotonic_ns()
    path = _real(f)
    beside, image, job = None, None, None
    try:
        beside = aside.Aside(path)
        image = _image(pickled(serialization, obj, protocol, no_byteorder))
        opened = serialization._open_zipfile_writer(beside.path)
        write = _writing(beside, image, opened)
        size = sum(size for _, _, size in image.kept)
        job = Job(path, "torch.save", size, write, pace.steps, monotonic_ns() - start)
        queued.submit(job)
    except BaseException as error:
        if job not in queued.pending:
            _give_up(beside, image)
        if isinstance(error, Unsafe):
            return error.with_traceback(None)  # whose frames hold the state
        if not isinstance(error, Exception) or from_the_user(error):
            raise
        return copy_failed(error)
    if queued.pending[:1] != [job]:
        guard(BEHIND, image.drain_ahead)
    return None


def _writing(beside: aside.Aside, image: Image, opened: Any) -> Callable[[], None]:
    def write() -> None:
        try:
            image.drain()
            with opened as zipped:
                for name, data, size in image.kept:
                    zipped.write_record(name, data, size)
            beside.commit()
        finally:
            _give_up(beside, image)
        aside.sweep(beside.parent)

    return write


def _give_up(beside: aside.Aside | None, image: Image | None) -> None:
    if beside is not None:
        beside.drop()
    if image is not None:
        image.free(queued.pool)


def _image(records: Any) -> Image:
    """In memory that is free, or becomes free when what is queued is written."""
    while True:
        waiting = list(queued.pending)
        piece = queued.pool.take(records.nbytes)
        if piece is not None:
            return Image(records, piece)
        if not waiting:
            raise no_memory(records.nbytes)
        queued.wait_for(waiting[0], "memory")
