"""Turns a forked process into the command: everything that Python and its libraries keep."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from headway.launch.warm import kernel, threads
from headway.launch.warm.request import SpawnRequest

STREAMS = (("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))
UNBUFFERED = 2  # _IONBF


class InterpreterBaseline:
    """How the zygote's interpreter was when it had just started, before it imported anything."""

    def __init__(self, modules: set[str]) -> None:
        self.unbuffered = bool(getattr(sys.__stdout__, "write_through", False))
        self.streams = {
            name: (stream.encoding, stream.errors)
            for name, _ in STREAMS
            if (stream := getattr(sys, f"__{name}__")) is not None
        }
        self.handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self.modules = {name.partition(".")[0] for name in modules}


def become_command(
    request: SpawnRequest, beginnings: InterpreterBaseline, job_env: Mapping[str, str]
) -> None:
    """All but the program itself, which the interpreter runs when it has finished its start."""
    words = request.invocation
    kernel.set_process_name(words.comm)
    kernel.set_command_line(words.argv, request.env)
    _take_environment(request.env)
    sys.executable = words.executable
    sys.orig_argv = list(words.argv)
    lead = {"script": words.program, "module": "-m", "command": "-c"}[words.kind]
    sys.argv = [lead, *words.args]
    unbuffered = words.unbuffered or beginnings.unbuffered
    _open_streams(beginnings, unbuffered)
    _reset_libraries()
    threads.set_thread_counts(request.env, job_env)
    _take_signals(request, beginnings)


def _take_environment(wanted: Mapping[str, str]) -> None:
    zone = os.environ.get("TZ")
    for key in os.environ.keys() - wanted.keys():
        del os.environ[key]
    for key, value in wanted.items():
        if os.environ.get(key) != value:
            os.environ[key] = value
    # In the order of the request, as `os.environ` of a fresh interpreter has it.
    data: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
    ordered = {os.fsencode(key): data[os.fsencode(key)] for key in wanted}
    data.clear()
    data.update(ordered)
    if os.environ.get("TZ") != zone:
        time.tzset()


def _open_streams(beginnings: InterpreterBaseline, unbuffered: bool) -> None:
    """As the interpreter does it at its start.

    The stream objects stay the same ones: libraries have kept them at their import (handlers of
    `logging` do), as they would have kept those of a cold process.
    """
    for fd, (name, mode) in enumerate(STREAMS):
        stream = getattr(sys, f"__{name}__")
        try:
            os.fstat(fd)
        except OSError:  # closed
            setattr(sys, name, None)
            setattr(sys, f"__{name}__", None)
            continue
        if stream is None:
            continue
        writes = mode == "wb"
        buffer: Any = io.open(  # noqa: SIM115, UP020
            fd, mode, buffering=0 if unbuffered and writes else -1, closefd=False
        )
        raw = getattr(buffer, "raw", buffer)
        raw.name = f"<{name}>"
        encoding, errors = beginnings.streams[name]
        with contextlib.suppress(ValueError):
            stream.flush()
        stream.__init__(
            buffer,
            encoding,
            errors,
            "\n",
            not unbuffered and (raw.isatty() or name == "stderr"),
            unbuffered,
        )
        stream.mode = mode[0]
        setattr(sys, name, stream)
    if unbuffered and not beginnings.unbuffered:
        libc = ctypes.CDLL(None)
        for name, _ in STREAMS:
            file = ctypes.c_void_p.in_dll(libc, name)
            libc.setvbuf(file, None, UNBUFFERED, ctypes.c_size_t(8192))


def _reset_libraries() -> None:
    """What must not be the same in two processes, or is counted from their start."""
    loaded = sys.modules
    if "numpy.random" in loaded:  # `random` itself has a handler for a fork
        loaded["numpy.random"].seed()
    if "threading" in loaded:
        main = loaded["threading"].main_thread()
        if hasattr(main, "_set_native_id"):  # a fork leaves the parent's
            main._set_native_id()
    if "multiprocessing.process" in loaded:
        process = loaded["multiprocessing.process"]
        secret = process.AuthenticationString(os.urandom(32))
        process.current_process()._config["authkey"] = secret
    if "logging" in loaded:
        stamp: Any = loaded["logging"]
        stamp._startTime = time.time_ns() if isinstance(stamp._startTime, int) else time.time()
    gc.enable()


def _take_signals(request: SpawnRequest, beginnings: InterpreterBaseline) -> None:
    """Ignored ones are inherited, all others are as a start of the interpreter leaves them.

    A handler that a library has set at its import stays.
    """
    for number, first in beginnings.handlers.items():
        kept = signal.getsignal(number) is not first  # a library's own
        if kept or number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGKILL, signal.SIGSTOP):
            continue
        wanted: Any = signal.SIG_IGN if number in request.ignored else signal.SIG_DFL
        if number == signal.SIGINT and wanted is signal.SIG_DFL:
            wanted = signal.default_int_handler
        if wanted is not first:
            signal.signal(number, wanted)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.mask)
