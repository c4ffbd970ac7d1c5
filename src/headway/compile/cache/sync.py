"""Fetch a job's compile cache before it compiles and save what it compiled: a launcher thread.

The cache folder belongs to the launcher and is on this node; all ranks of the node share it. An
error here never fails the job: without an archive it compiles. The side of the training process is
headway/probe/hooks/compile_cache.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.compile.cache.archive import ArchiveStore, CacheLookup
from headway.compile.cache.folder import CacheFolder
from headway.compile.cache.keys import CacheKey
from headway.compile.cache.manifest import Manifest
from headway.errors import Reason, with_code
from headway.journal.writer import now
from headway.probe import ENV_COMPILE
from headway.storage.atomic_write import write_atomically

PREFIX = "headway-compile-"
POLL_S = 0.02
IDLE_POLL_S = 0.25  # poll interval once an attempt has run for STARTING_S
STARTING_S = 60.0
QUIET_S = 3.0  # seconds without a new compile before the cache is saved
CLOSING_S = 120.0  # time limit for the last save
HURRY_S = 5.0  # the same after the job or the launcher received a signal to stop
MIN_LEFTOVER_AGE_S = 60.0  # a newer folder without a lock may be of a launcher that is starting
DISABLING_SETTINGS = {
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    "TORCH_COMPILE_FORCE_DISABLE_CACHES": "1",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
}

PRECOMPILE = "TORCH_CACHING_PRECOMPILE"
FOLDER, TRITON, JOB = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_COMPILE_JOB_ID"
JOB_ALIAS = "TORCH_COMPILE_STICKY_PGO_KEY"  # alias of JOB with lower precedence

Event = dict[str, Any]


def disabling_setting(env: Mapping[str, str] = os.environ) -> str:
    """The environment variable that disables torch's compile caches; empty if none is set."""
    return next(
        (f"{name}={value}" for name, value in DISABLING_SETTINGS.items() if env.get(name) == value),
        "",
    )


class CompileCacheSync:
    """Synchronize the cache folder with the store, for all attempts of a command on this node."""

    def __init__(
        self,
        store: ArchiveStore,
        job: str,
        code: str,
        log: Callable[[str], object],
        *,
        config: str = "",
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self.store = store
        # Packages are valid for one configuration only; other cached files for all of them.
        self.job = f"{job}.{config}" if config else job
        self.code = code
        self.log = log
        user_path = env.get(FOLDER)
        user_folder = CacheFolder(Path(user_path), owned=False) if user_path else None
        _clear_leftovers()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        (self.folder / "talk").mkdir()
        self._lock = (self.folder / "lock").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.cache_folder = user_folder or CacheFolder(self.folder / "cache")
        self.env = {
            ENV_COMPILE: str(self.folder),
            FOLDER: str(self.cache_folder.root.absolute()),
            TRITON: env.get(TRITON, str(self.cache_folder.root.absolute() / "triton")),
            JOB: env.get(JOB) or env.get(JOB_ALIAS) or job,
        }
        if config:
            self.env[PRECOMPILE] = "1"
        self._write: Callable[[Event], object] | None = None
        self._pending_events: list[Event] = []
        self._writing = threading.Lock()
        self._requests: dict[str, CacheKey] = {}
        self._lookups: dict[str, CacheLookup] = {}
        self._compiled: dict[str, float] = {}  # message file -> its modification time
        self._changed_at = 0.0
        self._began = time.monotonic()
        self._cold: set[str] = set()  # keys without an archive of this job at the start
        self._messages: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="headway-cache-sync", daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether the job received compiled code from an archive."""
        return any(lookup.level != "miss" for lookup in list(self._lookups.values()))

    def begin(self, write: Callable[[Event], object]) -> None:
        """Start an attempt; `write` appends to its journal."""
        self._began = time.monotonic()
        with self._writing:
            self._write = write
            pending, self._pending_events = self._pending_events, []
            for event in pending:
                write(event)

    def end(self) -> None:
        """End an attempt; later events go to the journal of the next one."""
        with self._writing:
            self._write = None
        if self.cache_folder.owned:
            self.cache_folder.remove_truncated()

    def close(self, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Save and delete the folder; `is_hurried` tells whether a signal to stop arrived."""
        if self._closing.is_set():
            return
        self._closing.set()
        deadline, hurried = time.monotonic() + CLOSING_S, False
        while self._thread.is_alive() and time.monotonic() < deadline:
            if not hurried and is_hurried():
                deadline, hurried = min(deadline, time.monotonic() + HURRY_S), True
            self._thread.join(POLL_S)
        if self._thread.is_alive():  # its folder is in use; the next launcher deletes it
            self._report_once(
                "the compile cache was not saved in time", code="compile-cache-save-late"
            )
            return
        shutil.rmtree(self.folder, ignore_errors=True)

    def _loop(self) -> None:
        try:
            while not self._closing.wait(self._pause()):
                self._poll()
            self._poll()
            self._save_all()
        except Exception as error:  # a full disk, a deleted folder
            self._report_once(
                f"the compile cache stopped: {describe_error(error)}",
                code="compile-cache-stopped",
            )
        finally:
            self._lock.close()  # processes stop waiting for answers

    def _pause(self) -> float:
        return POLL_S if time.monotonic() - self._began < STARTING_S else IDLE_POLL_S

    def _poll(self) -> None:
        """Handle new messages of the training processes."""
        for name in sorted(os.listdir(self.folder / "talk")):
            path = self.folder / "talk" / name
            if name.startswith("want-") and name.endswith(".json"):
                key = name[len("want-") : -len(".json")]
                if key not in self._requests:
                    self._answer(key, path)
            elif name.startswith("made-") and name.endswith(".json"):
                changed = path.stat().st_mtime
                if self._compiled.get(name) != changed:
                    self._compiled[name] = changed
                    self._changed_at = time.monotonic()
        if self._changed_at and time.monotonic() - self._changed_at >= QUIET_S:
            self._save_all()

    def _answer(self, key: str, path: Path) -> None:
        start = now()
        facts = json.loads(path.read_text())
        request = self._requests[key] = CacheKey(facts=facts, job=self.job, code=self.code)
        files = 0
        try:
            lookup, files = self.store.restore(self.store.find(request), self.cache_folder)
        except (
            Exception
        ) as error:  # whatever the store or network raises, the job compiles without it
            text = f"cannot fetch archives from {self.store.place.url}: {describe_error(error)}"
            reason = Reason(text, code="archive-not-fetched")
            lookup = CacheLookup(level="miss", reason=reason, refusals=(reason,))
        self._lookups[key] = lookup
        if lookup.level in ("miss", "near"):
            self._cold.add(key)
        code = lookup.reason.code if lookup.reason in lookup.refusals else ""
        fields = {
            "level": lookup.level,
            "why": with_code(lookup.reason, code=code),
            "files": files,
            "bytes": sum(archive.size for archive in lookup.manifests),
            "cold_s": lookup.cold_s,
        }
        write_atomically(self.folder / "talk" / f"ready-{key}.json", json.dumps(fields))
        self._emit({"ev": "cache", "what": "load", "t": start, "end": now(), **fields})
        for text in lookup.refusals:
            if text != lookup.reason:
                self._report_once(text, code=text.code)
        self._report_once(_load_message(lookup, files, (now() - start) / 1e9), code=code)

    def _save_all(self) -> None:
        """Save for every key with compiles; some processes ask and compile nothing."""
        self._changed_at = 0.0
        if self.store.key is not None and not self.store.key.signs:
            self._report_once(
                "compile cache not saved: the key can only verify",
                code="compile-cache-key-verify-only",
            )
            return
        for key in self._requests:
            seconds = self._compile_seconds(key)
            if seconds:
                self._save(key, max(seconds) if key in self._cold else 0.0)

    def _save(self, key: str, cold_s: float) -> None:
        start = now()
        try:
            archive = self.store.publish(
                self.cache_folder, self._requests[key], self._lookups[key], cold_s
            )
        except Exception as error:
            self._report_once(
                f"cannot save the compile cache to {self.store.place.url}: {describe_error(error)}",
                code="compile-cache-save-failed",
            )
            return
        if archive is None:
            return
        fields = {"files": len(archive.files), "bytes": archive.size, "cold_s": archive.cold_s}
        self._emit({"ev": "cache", "what": "save", "t": start, "end": now(), **fields})
        self._lookups[key] = CacheLookup(level="exact", manifests=(archive,))

    def _compile_seconds(self, key: str) -> list[float]:
        """Compile time of each process."""
        durations = []
        for name in self._compiled:
            with contextlib.suppress(OSError, ValueError, KeyError):
                message = json.loads((self.folder / "talk" / name).read_text())
                if message["key"] == key:
                    durations.append(float(message["seconds"]))
        return durations

    def _emit(self, event: Event) -> None:
        """Write to the journal of the current attempt, else to that of the next one."""
        with self._writing:
            if self._write is None:
                self._pending_events.append(event)
            else:
                self._write(event)

    def _report_once(self, text: str, code: str = "") -> None:
        text = "".join(
            sign if sign.isprintable() else "?" for sign in text
        )  # may contain text from the store
        if text not in self._messages:
            self._messages.add(text)
            self.log(with_code(f"headway: {text}", code=code))


def _load_message(lookup: CacheLookup, files: int, seconds: float) -> str:
    if lookup.level == "miss":
        return f"compile cache: no archive for this job ({lookup.reason})"
    newest: Manifest = lookup.manifests[0]
    size = sum(manifest.size for manifest in lookup.manifests) / 1e6
    reason = f"; {lookup.reason}" if lookup.reason else ""
    cold_text = f", {lookup.cold_s:.1f} s of compiling without it" if lookup.cold_s else ""
    return (
        f"compile cache: {lookup.level} archive of {newest.job}, {files} files, {size:.1f} MB "
        f"in {seconds:.2f} s{cold_text}{reason}"
    )


def describe_error(error: Exception) -> str:
    """The error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"


def _clear_leftovers() -> None:
    """Delete the folders of killed launchers: those whose locks are free."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if (
                is_ours
                and time.time() - status.st_mtime > MIN_LEFTOVER_AGE_S
                and not _is_locked(path)
            ):
                shutil.rmtree(path, ignore_errors=True)


def _is_locked(folder: Path) -> bool:
    try:
        with (folder / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
