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
from headway.probe.recorder import guard, recorder

Original = Callable[..., Any]


def save(serialization: Any, original: Original, *args: Any, **kwargs: Any) -> Any:
    """In place of torch.save."""
    if queued.writes():
        return original(*args, **kwargs)
    told = _arguments(args, kwargs)
    if told is None or isinstance(told["f"], (bytes, int)) or _in_memory(told["f"]):
        return original(*args, **kwargs)
    if not isinstance(told["f"], (str, os.PathLike)):
        return plain("an open file", told["f"], original, *args, **kwargs)
    if queued.busy():  # a signal came while we were at work
        return plain("a save within a save", told["f"], original, *args, **kwargs)
    with queued.at_work():
        why = _why_not(told) or _behind(serialization, **told)
    if why:
        return plain(why, told["f"], original, *args, **kwargs)
    queued.raise_failed()  # of an earlier one; this one is on its way
    return None


def plain(why: str, target: Any, original: Original, *args: Any, **kwargs: Any) -> Any:
    """The call as it is without us, after all that came before it; counted."""
    guard(BEHIND, _note_plain, why, target)
    queued.wait("a plain save")
    result = original(*args, **kwargs)
    queued.raise_failed()
    return result


def _note_plain(why: str, target: Any) -> None:
    from headway.probe.hooks.checkpoint import path_of

    recorder.start()
    recorder.emit("behind", path=path_of(target), why=why[:200])


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


def _why_not(told: dict[str, Any]) -> str:
    if queued.closed:
        return "the process ends"
    if not isinstance(os.fspath(told["f"]), str):
        return "the path is not text"
    if told["module"] is not pickle:
        return f"pickle_module is {getattr(told['module'], '__name__', told['module'])}"
    if not told["zipped"]:
        return "the old format is asked for"
    if _modes():
        return "a torch dispatch mode is on"
    return aside.why_not(_real(told["f"]))


def _modes() -> bool:
    import torch

    return bool(torch._C._len_torch_dispatch_stack())


def _real(target: Any) -> str:
    return str(os.path.realpath(os.fspath(target)))


def _behind(
    serialization: Any, obj: object, f: Any, protocol: int, no_byteorder: bool, **_: Any
) -> str:
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
            return str(error)
        if not isinstance(error, Exception):
            raise
        return f"{type(error).__name__}: {error}"  # the plain call raises what is the job's own
    return ""


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
            raise Unsafe(f"there is no memory for a copy of {records.nbytes:,} bytes")
        queued.wait_for(waiting[0], "memory")
