"""Turn a forked process into the requested command: the state that Python and its libraries keep.

Math libraries read their thread counts from the environment at import, so these are set again.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headway.launch import linux
from headway.launch.warm.spawn_request import SpawnRequest

STREAMS = (("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))
UNBUFFERED = 2  # _IONBF


class InterpreterBaseline:
    """The state of the forkserver's interpreter before it imported anything."""

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
    request: SpawnRequest, baseline: InterpreterBaseline, job_env: Mapping[str, str]
) -> None:
    """Set up everything except the program, which the interpreter runs at the end of its start."""
    invocation = request.invocation
    linux.set_process_name(invocation.comm)
    linux.set_command_line(invocation.argv, request.env)
    _take_environment(request.env)
    sys.executable = invocation.executable
    sys.orig_argv = list(invocation.argv)
    lead = {"script": invocation.program, "module": "-m", "command": "-c"}[invocation.kind]
    sys.argv = [lead, *invocation.args]
    unbuffered = invocation.unbuffered or baseline.unbuffered
    _open_streams(baseline, unbuffered)
    _reset_libraries()
    set_thread_counts(request.env, job_env)
    _take_signals(request, baseline)


def _take_environment(env: Mapping[str, str]) -> None:
    time_zone = os.environ.get("TZ")
    for key in os.environ.keys() - env.keys():
        del os.environ[key]
    for key, value in env.items():
        if os.environ.get(key) != value:
            os.environ[key] = value
    # In the order of the request, as in `os.environ` of a new interpreter.
    data: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
    ordered = {os.fsencode(key): data[os.fsencode(key)] for key in env}
    data.clear()
    data.update(ordered)
    if os.environ.get("TZ") != time_zone:
        time.tzset()


def _open_streams(baseline: InterpreterBaseline, unbuffered: bool) -> None:
    """Open the standard streams as the interpreter does at its start.

    The stream objects stay the same: libraries have stored them at import (handlers of `logging`
    do), as they would have stored those of a cold process.
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
        encoding, errors = baseline.streams[name]
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
    if unbuffered and not baseline.unbuffered:
        libc = ctypes.CDLL(None)
        for name, _ in STREAMS:
            file = ctypes.c_void_p.in_dll(libc, name)
            libc.setvbuf(file, None, UNBUFFERED, ctypes.c_size_t(8192))


def _reset_libraries() -> None:
    """Reset what must differ between processes or is counted from their start."""
    modules = sys.modules
    if "numpy.random" in modules:  # `random` itself has a fork handler
        modules["numpy.random"].seed()
    if "threading" in modules:
        main = modules["threading"].main_thread()
        if hasattr(main, "_set_native_id"):  # a fork leaves the id of the parent
            main._set_native_id()
    if "multiprocessing.process" in modules:
        process = modules["multiprocessing.process"]
        secret = process.AuthenticationString(os.urandom(32))
        process.current_process()._config["authkey"] = secret
    if "logging" in modules:
        stamp: Any = modules["logging"]
        stamp._startTime = time.time_ns() if isinstance(stamp._startTime, int) else time.time()
    gc.enable()


def _take_signals(request: SpawnRequest, baseline: InterpreterBaseline) -> None:
    """Ignored signals are inherited; all others are as after a start of the interpreter.

    A handler that a library has set at import stays.
    """
    for number, first in baseline.handlers.items():
        is_library_handler = signal.getsignal(number) is not first  # set by a library
        if is_library_handler or number in (
            signal.SIGPIPE,
            signal.SIGXFSZ,
            signal.SIGKILL,
            signal.SIGSTOP,
        ):
            continue
        handler: Any = signal.SIG_IGN if number in request.ignored else signal.SIG_DFL
        if number == signal.SIGINT and handler is signal.SIG_DFL:
            handler = signal.default_int_handler
        if handler is not first:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.mask)


# The variables that OpenBLAS reads, in its order.
OPENBLAS_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_DEFAULT_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "OMP_NUM_THREADS",
)
OPENBLAS_SYMBOLS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}"
    for prefix in ("scipy_", "")
    for suffix in ("64_", "", "_64_")
)


def set_thread_counts(env: Mapping[str, str], job_env: Mapping[str, str]) -> None:
    """Set the thread counts that the libraries would have read from `env`."""
    omp_threads = parse_thread_count(env.get("OMP_NUM_THREADS"))
    if omp_threads and env.get("OMP_NUM_THREADS") != job_env.get("OMP_NUM_THREADS"):
        _set_openmp(omp_threads, "OMP_NUM_THREADS" in job_env)
    count = openblas_count(env, len(os.sched_getaffinity(0)))
    if count > 1:
        for path in _loaded_libraries("openblas"):
            _call_library(path, OPENBLAS_SYMBOLS, count)


def _set_openmp(count: int, was_limited: bool) -> None:
    """OpenMP has read its environment when it was loaded."""
    for name in ("libgomp", "libiomp", "libomp"):
        for path in _loaded_libraries(name):
            if "/torch/" not in path:
                _call_library(path, ("omp_set_num_threads",), count)
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.backends.mkl.is_available():  # it uses at most as many threads as there are cores
        cores = len(os.sched_getaffinity(0)) if was_limited else torch.get_num_threads()
        count = min(count, cores)
    torch.set_num_threads(count)


def openblas_count(env: Mapping[str, str], cpus: int) -> int:
    """The thread count that OpenBLAS derives from the environment."""
    for name in OPENBLAS_VARIABLES:
        count = parse_thread_count(env.get(name))
        if count:
            return min(count, cpus)
    return cpus


def parse_thread_count(text: str | None) -> int:
    """A plain count of threads; 0 for anything else."""
    return int(text) if text and text.strip().isdecimal() else 0


def _loaded_libraries(name: str) -> set[str]:
    """Loaded shared libraries with that in their file name."""
    paths = set()
    with open("/proc/self/maps") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if name in os.path.basename(path) and ".so" in path:
                paths.add(f"/{path}")
    return paths


def _call_library(path: str, symbols: Sequence[str], count: int) -> None:
    """Call the first of these functions that the loaded library has."""
    with contextlib.suppress(OSError):
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        for symbol in symbols:
            if hasattr(library, symbol):
                getattr(library, symbol)(count)
                return
