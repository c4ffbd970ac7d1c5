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
IDLE_POLL_S = 0.25  # the same, once an attempt has had time to start
STARTING_S = 60.0
QUIET_S = 3.0  # without a new compile; then what is there is saved
CLOSING_S = 120.0
HURRY_S = 5.0  # the same, once the job or the launcher was told to stop
MIN_LEFTOVER_AGE_S = 60.0  # a folder without a lock is that of a launcher which is just starting
DISABLING_SETTINGS = {
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    "TORCH_COMPILE_FORCE_DISABLE_CACHES": "1",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
}

PRECOMPILE = "TORCH_CACHING_PRECOMPILE"
FOLDER, TRITON, JOB = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_COMPILE_JOB_ID"
JOB_ALIAS = "TORCH_COMPILE_STICKY_PGO_KEY"  # another name for it, which counts for less

Event = dict[str, Any]


def disabling_setting(env: Mapping[str, str] = os.environ) -> str:
    """The setting by which the user wants no compile cache; empty if there is none."""
    return next(
        (f"{name}={no}" for name, no in DISABLING_SETTINGS.items() if env.get(name) == no), ""
    )


class CompileCacheSync:
    """One for all attempts of a command on this node."""

    def __init__(
        self,
        store: ArchiveStore,
        job: str,
        code: str,
        say: Callable[[str], object],
        *,
        config: str = "",
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self.store = store
        # Packages are for one configuration only; what other archives have is of use to all.
        self.job = f"{job}.{config}" if config else job
        self.code = code
        self.say = say
        given = env.get(FOLDER)
        users = CacheFolder(Path(given), own=False) if given else None
        _clear_leftovers()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        (self.folder / "talk").mkdir()
        self._lock = (self.folder / "lock").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.tree = users or CacheFolder(self.folder / "cache")
        self.env = {
            ENV_COMPILE: str(self.folder),
            FOLDER: str(self.tree.root.absolute()),
            TRITON: env.get(TRITON, str(self.tree.root.absolute() / "triton")),
            JOB: env.get(JOB) or env.get(JOB_ALIAS) or job,
        }
        if config:
            self.env[PRECOMPILE] = "1"
        self._write: Callable[[Event], object] | None = None
        self._unwritten: list[Event] = []
        self._writing = threading.Lock()
        self._wants: dict[str, CacheKey] = {}
        self._found: dict[str, CacheLookup] = {}
        self._made: dict[str, float] = {}  # file -> when it was written
        self._changed_at = 0.0
        self._began = time.monotonic()
        self._cold: set[str] = set()  # keys for which there was nothing when the job began
        self._told: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="headway-courier", daemon=True)
        self._thread.start()

    @property
    def acted(self) -> bool:
        """Whether the job was given code that others have compiled."""
        return any(found.level != "miss" for found in list(self._found.values()))

    def begin(self, write: Callable[[Event], object]) -> None:
        """An attempt begins, with this journal."""
        self._began = time.monotonic()
        with self._writing:
            self._write = write
            waiting, self._unwritten = self._unwritten, []
            for event in waiting:
                write(event)

    def end(self) -> None:
        """It has ended, and its journal will be closed; what comes is for the next one's."""
        with self._writing:
            self._write = None
        if self.tree.own:
            self.tree.mend()

    def close(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """No more is to come: save, and leave nothing behind. `hurry`: it was told to stop."""
        if self._closing.is_set():
            return
        self._closing.set()
        until, hurried = time.monotonic() + CLOSING_S, False
        while self._thread.is_alive() and time.monotonic() < until:
            if not hurried and hurry():
                until, hurried = min(until, time.monotonic() + HURRY_S), True
            self._thread.join(POLL_S)
        if self._thread.is_alive():  # its folder is in use; the next launcher clears it away
            self._tell(
                "the compile cache could not be saved in time", code="compile-cache-save-late"
            )
            return
        shutil.rmtree(self.folder, ignore_errors=True)

    def _loop(self) -> None:
        try:
            while not self._closing.wait(self._pause()):
                self._look()
            self._look()
            self._save_all()
        except Exception as error:  # a full disk, a folder that somebody has taken away
            self._tell(
                f"the compile cache is not used any more: {describe_error(error)}",
                code="compile-cache-stopped",
            )
        finally:
            self._lock.close()  # nobody is to wait for an answer

    def _pause(self) -> float:
        return POLL_S if time.monotonic() - self._began < STARTING_S else IDLE_POLL_S

    def _look(self) -> None:
        """One look at what the processes say."""
        for name in sorted(os.listdir(self.folder / "talk")):
            path = self.folder / "talk" / name
            if name.startswith("want-") and name.endswith(".json"):
                key = name[len("want-") : -len(".json")]
                if key not in self._wants:
                    self._answer(key, path)
            elif name.startswith("made-") and name.endswith(".json"):
                changed = path.stat().st_mtime
                if self._made.get(name) != changed:
                    self._made[name] = changed
                    self._changed_at = time.monotonic()
        if self._changed_at and time.monotonic() - self._changed_at >= QUIET_S:
            self._save_all()

    def _answer(self, key: str, path: Path) -> None:
        begun = now()
        facts = json.loads(path.read_text())
        wanted = self._wants[key] = CacheKey(facts=facts, job=self.job, code=self.code)
        files = 0
        try:
            found, files = self.store.restore(self.store.find(wanted), self.tree)
        except Exception as error:  # any store, any network: the job compiles without
            text = f"no archive could be taken from {self.store.place.url}: {describe_error(error)}"
            why = Reason(text, code="archive-not-fetched")
            found = CacheLookup(level="miss", why=why, refused=(why,))
        self._found[key] = found
        if found.level in ("miss", "near"):
            self._cold.add(key)
        code = found.why.code if found.why in found.refused else ""
        told = {
            "level": found.level,
            "why": with_code(found.why, code=code),
            "files": files,
            "bytes": sum(one.size for one in found.manifests),
            "cold_s": found.cold_s,
        }
        write_atomically(self.folder / "talk" / f"ready-{key}.json", json.dumps(told))
        self._note({"ev": "cache", "what": "load", "t": begun, "end": now(), **told})
        for text in found.refused:
            if text != found.why:
                self._tell(text, code=text.code)
        self._tell(_load_message(found, files, (now() - begun) / 1e9), code=code)

    def _save_all(self) -> None:
        """For whoever has compiled; others may have asked and compiled nothing."""
        self._changed_at = 0.0
        if self.store.key is not None and not self.store.key.signs:
            self._tell(
                "compile cache: nothing is saved, as the key can only verify",
                code="compile-cache-key-verify-only",
            )
            return
        for key in self._wants:
            seconds = self._seconds(key)
            if seconds:
                self._save(key, max(seconds) if key in self._cold else 0.0)

    def _save(self, key: str, cold_s: float) -> None:
        begun = now()
        try:
            made = self.store.publish(self.tree, self._wants[key], self._found[key], cold_s)
        except Exception as error:
            self._tell(
                f"the compile cache could not be saved to {self.store.place.url}: "
                f"{describe_error(error)}",
                code="compile-cache-save-failed",
            )
            return
        if made is None:
            return
        told = {"files": len(made.files), "bytes": made.size, "cold_s": made.cold_s}
        self._note({"ev": "cache", "what": "save", "t": begun, "end": now(), **told})
        self._found[key] = CacheLookup(level="exact", manifests=(made,))

    def _seconds(self, key: str) -> list[float]:
        """How long each process compiled."""
        found = []
        for name in self._made:
            with contextlib.suppress(OSError, ValueError, KeyError):
                told = json.loads((self.folder / "talk" / name).read_text())
                if told["key"] == key:
                    found.append(float(told["seconds"]))
        return found

    def _note(self, event: Event) -> None:
        """Into the journal of the attempt that goes on, else of the next one."""
        with self._writing:
            if self._write is None:
                self._unwritten.append(event)
            else:
                self._write(event)

    def _tell(self, text: str, code: str = "") -> None:
        text = "".join(sign if sign.isprintable() else "?" for sign in text)  # some is the store's
        if text not in self._told:
            self._told.add(text)
            self.say(with_code(f"headway: {text}", code=code))


def _load_message(found: CacheLookup, files: int, seconds: float) -> str:
    if found.level == "miss":
        return f"compile cache: nothing for this job yet ({found.why})"
    one: Manifest = found.manifests[0]
    size = sum(manifest.size for manifest in found.manifests) / 1e6
    why = f"; {found.why}" if found.why else ""
    cold = f", compiled in {found.cold_s:.1f} s then" if found.cold_s else ""
    return (
        f"compile cache: {found.level} archive of {one.job}, {files} files, {size:.1f} MB "
        f"in {seconds:.2f} s{cold}{why}"
    )


def describe_error(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"


def _clear_leftovers() -> None:
    """Folders of launchers that were killed: their locks are free."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if ours and time.time() - found.st_mtime > MIN_LEFTOVER_AGE_S and not _is_locked(path):
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
