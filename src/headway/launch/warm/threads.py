"""Thread counts of math libraries: read from the environment at import, so set again in a child."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping, Sequence

# What OpenBLAS looks at, in its order.
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
    """As many threads as the libraries would have taken from `env`."""
    wanted = parse_thread_count(env.get("OMP_NUM_THREADS"))
    if wanted and env.get("OMP_NUM_THREADS") != job_env.get("OMP_NUM_THREADS"):
        _set_openmp(wanted, "OMP_NUM_THREADS" in job_env)
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
    if torch.backends.mkl.is_available():  # it takes no more threads than there are cores
        cores = len(os.sched_getaffinity(0)) if was_limited else torch.get_num_threads()
        count = min(count, cores)
    torch.set_num_threads(count)


def openblas_count(env: Mapping[str, str], cpus: int) -> int:
    """What OpenBLAS makes of the environment."""
    for name in OPENBLAS_VARIABLES:
        told = parse_thread_count(env.get(name))
        if told:
            return min(told, cpus)
    return cpus


def parse_thread_count(text: str | None) -> int:
    """A plain count of threads; 0 for anything else."""
    return int(text) if text and text.strip().isdecimal() else 0


def _loaded_libraries(name: str) -> set[str]:
    """Shared libraries of this process with that in their name."""
    found = set()
    with open("/proc/self/maps") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if name in os.path.basename(path) and ".so" in path:
                found.add(f"/{path}")
    return found


def _call_library(path: str, symbols: Sequence[str], count: int) -> None:
    """The first of these functions that the loaded library has."""
    with contextlib.suppress(OSError):
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        for symbol in symbols:
            if hasattr(library, symbol):
                getattr(library, symbol)(count)
                return
