"""Client of the compile cache that the launcher fills, requested before the first compile.

The processes of a node and their launcher exchange files in a folder. The first process that has
imported torch describes its machine (`want-KEY`); the launcher fills the cache folder and answers
(`ready-KEY`); a process that compiles waits for that answer, and reports its compile time
(`made-PID`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from headway.probe import ENV_COMPILE, host_facts
from headway.probe.hooks.compile_turns import compile_queue
from headway.probe.patching import wrap
from headway.probe.recorder import guard, recorder
from headway.storage.atomic_write import write_atomically

SPAN = "compile_cache"
TIMEOUT_S = 120.0  # of the wait for the cache
POLL_S = 0.005
LIVENESS_POLLS = 100  # polls between two checks that the launcher lives


class CacheClient:
    """Exchanges messages with the launcher, in files."""

    def __init__(self) -> None:
        self.folder = ""
        self.key = ""
        self.answered = False
        self.pid = os.getpid()
        self.compile_started = 0
        self.compile_seconds = 0.0

    def request(self, torch: ModuleType) -> None:
        """Describe this machine, unless another process of the node has done so."""
        folder = os.environ.get(ENV_COMPILE, "")
        if not os.path.isdir(folder):  # the launcher runs on another machine, or has ended
            _use_own_folders(folder)
            return
        facts = host_facts.compile_facts(torch)
        self.folder, self.key = folder, host_facts.compile_key(facts)
        path = self._path("want", self.key)
        if not os.path.exists(path):
            _put(path, facts)

    def wait(self) -> None:
        """Wait until the cache folder is filled, or there is nothing to wait for."""
        if self.answered or not self.folder:
            return
        self.answered = True
        path = self._path("ready", self.key)
        if not os.path.exists(path):
            recorder.start()
            span = recorder.begin(SPAN, what="load")
            try:
                self._wait_for(path)
            finally:
                recorder.end(span)
        self._share_profile()

    def has_exact_archive(self) -> bool:
        """Whether the archive is of the same job, so that nothing should need a compile."""
        try:
            with open(self._path("ready", self.key), "rb") as file:
                return bool(json.load(file)["level"] == "exact")
        except (OSError, ValueError):
            return False

    def _wait_for(self, path: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        polls = 0
        while not os.path.exists(path) and time.monotonic() < deadline:
            polls += 1
            if polls % LIVENESS_POLLS == 0 and not self._launcher_is_alive():
                return
            time.sleep(POLL_S)

    def _launcher_is_alive(self) -> bool:
        """Whether the launcher holds its lock."""
        try:
            with open(os.path.join(self.folder, "lock"), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def _share_profile(self) -> None:
        """Use the PGO profile of rank 0 (dynamic sizes) for this rank too: same program."""
        rank = os.environ.get("RANK", "0")
        folder = os.path.join(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""), "dynamo")
        if rank == "0" or not os.path.isdir(folder):
            return
        prefix = f"code_state_{os.environ.get('TORCH_COMPILE_JOB_ID', '')}_"
        for name in os.listdir(folder):
            path = os.path.join(folder, f"{prefix}{rank}_{name.removeprefix(f'{prefix}0_')}")
            if name.startswith(f"{prefix}0_") and not os.path.exists(path):
                temporary = f"{path}.{os.getpid()}.tmp"
                shutil.copyfile(os.path.join(folder, name), temporary)
                os.replace(temporary, path)

    def begin_compile(self) -> None:
        """Start an outermost compile, after the cache has been filled."""
        self.wait()
        self.compile_started = time.monotonic_ns()

    def end_compile(self) -> None:
        """End it, and report the compile time: there may be something to archive."""
        if not self.folder or not self.compile_started:
            return
        pid = os.getpid()
        if pid != self.pid:  # forked: earlier compiles belong to the parent
            self.pid, self.compile_seconds = pid, 0.0
        self.compile_seconds += (time.monotonic_ns() - self.compile_started) / 1e9
        self.compile_started = 0
        message = {"rank": recorder.rank, "seconds": self.compile_seconds, "key": self.key}
        _put(self._path("made", str(pid)), message)

    def _path(self, kind: str, key: str) -> str:
        return os.path.join(self.folder, "talk", f"{kind}-{key}.json")


cache_client = CacheClient()


def torch_loaded(torch: ModuleType) -> None:
    """torch"""
    cache_client.request(torch)


def install_callback(callback: ModuleType) -> None:
    """torch._dynamo.callback"""
    handler = callback.callback_handler

    def start(original: Callable[..., Any], args: Any) -> Any:
        guard("cached", cache_client.begin_compile)
        trigger = getattr(getattr(args, "callback_trigger", None), "name", "")
        guard("turns", compile_queue.begin, trigger, str(getattr(args, "compile_id", "")))
        return original(args)

    def end(original: Callable[..., Any], args: Any) -> Any:
        guard("cached", cache_client.end_compile)
        guard("turns", compile_queue.end)
        return original(args)

    wrap(handler, "run_start_callbacks", start)
    wrap(handler, "run_end_callbacks", end)


def install_triton(compiler: ModuleType) -> None:
    """triton.compiler.compiler: kernels compiled without torch.compile."""

    def compile_(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if cache_client.compile_started:  # a part of a compile of torch
            return original(*args, **kwargs)
        guard("cached", cache_client.begin_compile)
        try:
            return original(*args, **kwargs)
        finally:
            guard("cached", cache_client.end_compile)

    wrap(compiler, "compile", compile_)
    if getattr(getattr(compiler, "triton_key", None), "__module__", "") == compiler.__name__:
        _cache_key_function(compiler, "triton_key")  # its place before Triton 3.5


def install_isa(isa: ModuleType) -> None:
    """torch._inductor.cpu_vec_isa: each process builds six test libraries in child processes.

    The results are stored in the cache folder, for the same compiler, processor and torch.
    """

    def check(original: Callable[..., Any], self: Any, code: str) -> Any:
        path = guard("cached", _build_result_path, isa, self, code)
        cached = guard("cached", _read_build, path) if path else None
        if cached is not None:
            return cached
        result = original(self, code)
        if path:
            guard("cached", _put_text, path, "1" if result else "0")
        return result

    wrap(isa.VecISA, "check_build", check)


def _build_result_path(isa: ModuleType, vec_isa: Any, code: str) -> str:
    """The file with the result: whether this code builds and loads."""
    built = isa._get_isa_dry_compile_fingerprint(vec_isa.build_arch_flags())
    text = "\0".join((code, built, host_facts.cpu_features()))
    name = hashlib.sha256(text.encode()).hexdigest()[:40]
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return os.path.join(folder, "isa", name) if folder else ""


def _read_build(path: str) -> bool | None:
    """The stored result; None if there is none."""
    try:
        with open(path, "rb") as file:
            return {b"1": True, b"0": False}.get(file.read())
    except OSError:
        return None


def install_codecache(codecache: ModuleType) -> None:
    """torch._inductor.codecache: it builds a header of 150 MB even for code that is cached."""
    _cache_key_function(codecache, "torch_key")
    if not hasattr(codecache, "_precompile_header"):
        return

    def precompile(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if guard("cached", _is_built, codecache.__dict__):
            return ""  # nothing has to be built
        return original(*args, **kwargs)

    wrap(codecache, "_precompile_header", precompile)


def _is_built(names: dict[str, Any]) -> bool:
    """Whether the library that the caller of the wrapped function is about to build exists.

    The caller is the innermost frame of the module with these globals.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals is not names:
        frame = frame.f_back
    source = None if frame is None else frame.f_locals.get("main_path")
    return isinstance(source, str) and os.path.exists(source.removesuffix("cpp") + "so")


def install_heuristics(heuristics: ModuleType) -> None:
    """torch._inductor.runtime.triton_heuristics: read results of tuning from this cache folder.

    A kernel would read them from the folder that it was compiled in.
    """

    def recheck(original: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
        guard("cached", _set_own_folder, tuner)
        return original(tuner, *args, **kwargs)

    if hasattr(heuristics.CachingAutotuner, "recheck_autotune_cache"):
        wrap(heuristics.CachingAutotuner, "recheck_autotune_cache", recheck)


def _set_own_folder(tuner: Any) -> None:
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if folder and tuner.filename:
        tuner.filename = os.path.join(folder, *tuner.filename.split(os.sep)[-2:])


def install_pool(async_compile: ModuleType) -> None:
    """torch._inductor.async_compile: it starts compile workers as soon as it is imported.

    If nothing should need a compile, that only delays the start; the first kernel starts them.
    """

    def wakeup(original: Callable[..., Any], kind: type) -> Any:
        return None if guard("cached", cache_client.has_exact_archive) else original(kind)

    if hasattr(async_compile.AsyncCompile, "wakeup"):
        wrap(async_compile.AsyncCompile, "wakeup", wakeup)


def install_key(cache: ModuleType) -> None:
    """triton.runtime.cache"""
    _cache_key_function(cache, "triton_key")


def _cache_key_function(module: ModuleType, name: str) -> None:
    """Cache the hash of a package's files (hundreds of MB), needed before the first lookup."""
    if not hasattr(module, name):
        return
    keys: dict[str, Any] = {}
    package = sys.modules[module.__name__.partition(".")[0]]
    package_key = BackgroundValue(
        partial(host_facts.package_digest, os.path.dirname(str(package.__file__)))
    )

    def key(original: Callable[..., Any]) -> Any:
        if name not in keys:
            path = guard("cached", _key_path, name, package_key)
            cached = guard("cached", _read_key, path) if path else None
            keys[name] = original() if cached is None else cached
            if path and cached is None:
                guard("cached", _write_key, path, keys[name])
        return keys[name]

    wrap(module, name, key)


class BackgroundValue:
    """The result of a call that runs in a background thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._value = call, None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            self._value = self._call()

    def result(self) -> Any:
        """Wait for the result; call again if a fork has lost the thread."""
        self._thread.join()
        return self._call() if self._value is None else self._value


def _key_path(name: str, package_key: BackgroundValue) -> str:
    """The file with the key, for the same sizes and modification times of the package's files.

    Python itself decides by these whether bytecode belongs to a source file.
    """
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not folder or not cache_client.answered:
        return ""
    return os.path.join(folder, "keys", f"{name}-{package_key.result()}")


def _read_key(path: str) -> str | bytes | None:
    try:
        with open(path, "rb") as file:
            kind, _, content = file.read().partition(b"\n")
    except OSError:
        return None
    return content if kind == b"bytes" else content.decode()


def _write_key(path: str, key: str | bytes) -> None:
    kind, content = (b"bytes", key) if isinstance(key, bytes) else (b"str", key.encode())
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_atomically(Path(path), kind + b"\n" + content)


def install_profile(pgo: ModuleType) -> None:
    """torch._dynamo.pgo: identify a closure by its code, not by an id of this process."""
    if not hasattr(pgo, "_get_cell_hash_content"):
        return

    def content(original: Callable[..., Any], cell: Any) -> Any:
        digest = guard("cached", _cell_hash, cell)
        return original(cell) if digest is None else digest

    wrap(pgo, "_get_cell_hash_content", content)


def _cell_hash(cell: Any) -> int:
    """A hash of the code of the function in the cell; 0 if there is none."""
    try:
        code = getattr(cell.cell_contents, "__code__", None)
    except ValueError:  # the cell is empty
        return 0
    if code is None:
        return 0
    name = getattr(code, "co_qualname", code.co_name)
    text = f"{name}{code.co_code!r}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big")


def _use_own_folders(folder: str) -> None:
    """Use the default cache folders of torch and Triton, which outlive the job."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        if folder and os.environ.get(name, "").startswith(f"{folder}/"):
            del os.environ[name]


def _put(path: str, content: dict[str, Any]) -> None:
    _put_text(path, json.dumps(content))


def _put_text(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_atomically(Path(path), text)
