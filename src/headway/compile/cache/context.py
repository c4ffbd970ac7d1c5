"""Use the compile cache from code, for jobs not started by `headway run --compile-cache`."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType

from headway.compile.cache.archive import ArchiveStore, CacheLookup
from headway.compile.cache.folder import CacheFolder
from headway.compile.cache.keys import CacheKey, code_digest
from headway.compile.cache.sync import describe_error
from headway.errors import Reason, UsageError, with_code
from headway.probe import ENV_COMPILE, host_facts
from headway.probe.hooks import compile_cache as hooks
from headway.storage.signing import read_key

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
# Hooks that use cached results of the archive: see headway/probe/hooks/compile_cache.py.
PATCHES = {
    "torch._dynamo.pgo": hooks.install_profile,
    "torch._inductor.codecache": hooks.install_codecache,
    "torch._inductor.cpu_vec_isa": hooks.install_isa,
}
_patched_modules: set[str] = set()


class SharedCache:
    """A compile cache that is shared with other jobs.

    Call `load()` before the first compile and `save()` after the first steps, or use it as a
    context manager, which calls both.
    """

    def __init__(self, url: str, *, job: str | None = None, key: str | None = None) -> None:
        self.store = ArchiveStore(url, read_key(key) if key else None)
        reason = self.store.untrusted_reason()
        if reason:
            raise UsageError(
                f"archives contain executable code, and {reason}; pass the team's key",
                code="archive-key-missing",
            )
        self.job = job or Path(sys.argv[0] or "python").stem
        self._launcher_handles_it = bool(
            os.environ.get(ENV_COMPILE)
        )  # the launcher does it already
        self._lookup: CacheLookup | None = None
        self._folder: CacheFolder | None = None

    def load(self) -> str:
        """Fill the cache folder; returns how closely the archive matches: exact, job, near or miss.

        The ranks of a node share the folder: the first one fetches what is missing, the others
        wait for it.
        """
        if self._launcher_handles_it:
            return "launcher"
        user_folder = os.environ.get(FOLDER)
        name = hashlib.sha256(f"{self.store.place.url}\0{self.job}".encode()).hexdigest()[:16]
        default_folder = Path(tempfile.gettempdir()) / f"headway-cache-{os.geteuid()}-{name}"
        self._folder = CacheFolder(
            Path(user_folder) if user_folder else default_folder, owned=not user_folder
        )
        os.environ[FOLDER] = str(self._folder.root.absolute())
        _patch()
        try:
            lookup = self.store.find(self._request())
            with _exclusive_lock(self._folder.root):
                self._lookup, _ = self.store.restore(lookup, self._folder)
        except (
            Exception
        ) as error:  # whatever the store or network raises, the job compiles without it
            text = f"cannot fetch archives from {self.store.place.url}: {describe_error(error)}"
            reason = Reason(text, code="archive-not-fetched")
            self._lookup = CacheLookup(level="miss", reason=reason, refusals=(reason,))
        for text in self._lookup.refusals:
            print(with_code(f"headway: {text}", code=text.code), file=sys.stderr)
        return self._lookup.level

    def save(self) -> bool:
        """Publish newly compiled code; returns whether there was any.

        Only local rank 0 of each node publishes.
        """
        if self._launcher_handles_it or self._folder is None or self._lookup is None:
            return False
        if os.environ.get("LOCAL_RANK", "0") != "0":
            return False
        if self.store.key is not None and not self.store.key.signs:
            text = "headway: compile cache not saved: the key can only verify"
            print(with_code(text, code="compile-cache-key-verify-only"), file=sys.stderr)
            return False
        try:
            archive = self.store.publish(
                self._folder, self._request(), self._lookup, self._compile_seconds()
            )
        except Exception as error:  # must not fail the job
            text = (
                f"headway: cannot save the compile cache to {self.store.place.url}: "
                f"{describe_error(error)}"
            )
            print(with_code(text, code="compile-cache-save-failed"), file=sys.stderr)
            return False
        if archive is not None:
            self._lookup = CacheLookup(level="exact", manifests=(archive,))
        return archive is not None

    def __enter__(self) -> SharedCache:
        self.load()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.save()

    def _request(self) -> CacheKey:
        torch = importlib.import_module("torch")
        script = getattr(sys.modules["__main__"], "__file__", None)  # a notebook has none
        code = code_digest([script] if script else [])
        return CacheKey(facts=host_facts.compile_facts(torch), job=self.job, code=code)

    def _compile_seconds(self) -> float:
        """Compile time as torch counts it; only measured if no archive was found."""
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is None or self._lookup is None or self._lookup.level != "miss":
            return 0.0
        metrics = utils.get_compilation_metrics()
        return sum((metrics_row.duration_us or 0) / 1e6 for metrics_row in metrics)


def shared_cache(url: str, *, job: str | None = None, key: str | None = None) -> SharedCache:
    """A compile cache in a folder or at a URL; `key` is the path of the team's key file."""
    return SharedCache(url, job=job, key=key)


@contextmanager
def _exclusive_lock(root: Path) -> Iterator[None]:
    with (root / ".lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _patch() -> None:
    for name, install in PATCHES.items():
        if name not in _patched_modules:
            _patched_modules.add(name)
            module: ModuleType = importlib.import_module(name)
            install(module)
