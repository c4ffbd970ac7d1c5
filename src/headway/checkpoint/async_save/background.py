"""The writing thread, its queue, and the saves that failed.

Locks are not reentrant: a signal handler may run anywhere, and may itself save or list files.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

from headway.checkpoint.engine.buffers import MemoryPool
from headway.errors import SaveFailed
from headway.journal import file_access
from headway.probe.hooks import checkpoint
from headway.probe.patching import within
from headway.probe.recorder import guard, recorder
from headway.probe.unfinished_saves import UnfinishedSave

MIN_NOTED_WAIT_NS = 1_000_000  # ns; shorter waits are not recorded
HOOK = "behind"


class WriteFailed(SaveFailed, RuntimeError):
    """A save that had already returned could not be written.

    The raised class also inherits from the class of the error that the original call would raise.
    """

    code = "background-write-failed"
    kind: type[BaseException]  # class of the original error
    errno: int | None

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> Any:  # the class is created for the error
        return _make_write_failed, (self.kind, str(self), self.fields, self.errno)


class BackgroundSave:
    """A file, or a DCP folder, that is being written."""

    def __init__(
        self, path: str, what: str, size: int, write: Callable[[], Any], step: int, blocked: int
    ) -> None:
        self.path, self.what, self.size, self.step = path, what, size, step
        self.blocked = blocked  # ns that the call blocked
        self.thread = threading.get_ident()  # thread that called save
        self.refused = False  # whether a removal was refused because of its failure
        self.error = ""
        self.kind: type[BaseException] = WriteFailed  # of the error
        self.errno: int | None = None
        self.result: Any = None
        self.silent = False  # not a save of its own: not recorded
        self._write = write
        self._busy = threading.Lock()
        self._busy.acquire()

    def run(self) -> None:
        """Write it, in the writing thread."""
        start = monotonic_ns()
        try:
            with within(checkpoint.SAVE):
                self.result = self._write()
        except BaseException as error:
            self.error = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            self.kind, self.errno = type(error), getattr(error, "errno", None)
        del self._write  # with everything it references
        if not self.silent:
            guard(HOOK, self._note, start, monotonic_ns())

    def _note(self, start: int, end: int) -> None:
        fields: dict[str, Any] = {"path": self.path, "step": self.step}
        file = {"error": "write"} if self.error else {"file": file_access.file_identity(self.path)}
        recorder.span(
            checkpoint.SAVE, start, end, what=self.what, background=True, **fields, **file
        )
        error = {"error": self.error} if self.error else {}
        recorder.emit(
            "behind", start, end=end, bytes=self.size, blocked=self.blocked, **fields, **error
        )

    def finish(self) -> None:
        """Release waiting threads."""
        self._busy.release()

    def wait(self) -> None:
        """Wait until it is on disk or has failed."""
        with self._busy:
            pass


@dataclass
class CheckpointFolder:
    """A checkpoint of several files that a framework saves."""

    path: str
    record: UnfinishedSave | None
    thread: int | None = field(default_factory=threading.get_ident)  # thread of the save
    jobs: list[BackgroundSave] = field(default_factory=list)
    failed: bool = False

    def finish(self) -> None:
        """Mark it as complete once it is on disk; after an error it stays unfinished."""
        if self.record is None or self.failed or any(job.error for job in self.jobs):
            return
        _unremoved_records.append(self.record)
        for record in list(_unremoved_records):
            with contextlib.suppress(OSError):  # retried with the next folder
                record.finish()
                _unremoved_records.remove(record)


_unremoved_records: list[UnfinishedSave] = []  # records that could not be removed yet


class WriteQueue:
    """The saves of this process, in order."""

    def __init__(self) -> None:
        self.pending: list[BackgroundSave] = []
        self.failed: list[BackgroundSave] = []  # failures that have not been reported
        self.folder: CheckpointFolder | None = None  # the folder that a framework is saving
        self.closed = False  # the process is ending: saves are synchronous
        self.pool = MemoryPool()
        self._thread_state = (
            threading.local()
        )  # `internal`: this thread runs code of this package, and must not wait
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def in_save(self) -> bool:
        """Whether this thread runs code of this package."""
        return getattr(self._thread_state, "internal", False)

    def writes(self) -> bool:
        """Whether this is the writing thread."""
        return threading.current_thread() is self._thread

    @contextmanager
    def internal(self) -> Iterator[None]:
        """Run code that must not wait for files."""
        before = self.in_save()
        self._thread_state.internal = True
        try:
            yield
        finally:
            self._thread_state.internal = before

    def submit(self, job: BackgroundSave) -> None:
        """Queue a save."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="headway-save", daemon=True)
            self._thread.start()
        if self.folder is not None and self.folder.thread == threading.get_ident():
            self.folder.jobs.append(job)
        if not job.silent:
            recorder.emit("saving", path=job.path, step=job.step)
            checkpoint.unwritten_paths.add(job.path)
        self.pending.append(job)
        self._wake.put(None)

    def _run(self) -> None:
        self._thread_state.internal = True
        while True:
            self._wake.get()
            while self.pending:
                self._finish(self.pending[0])

    def _finish(self, job: BackgroundSave) -> None:
        try:
            job.run()
        finally:
            if job.error:
                self.failed.append(job)
            del self.pending[0]
            if all(other.path != job.path for other in self.pending):
                checkpoint.unwritten_paths.discard(job.path)
            job.finish()

    def wait(self, why: str, concerns: Callable[[BackgroundSave], bool] | None = None) -> None:
        """Wait for the saves that it concerns, by default all."""
        jobs = [job for job in self.pending if concerns is None or concerns(job)]
        if not jobs or self.writes():
            return
        self.wait_for(jobs[-1], why)  # saves are written in order

    def wait_for(self, job: BackgroundSave, why: str) -> None:
        """Wait for that save and all before it."""
        start = monotonic_ns()
        self._wake.put(None)
        job.wait()
        end = monotonic_ns()
        if end - start >= MIN_NOTED_WAIT_NS:
            guard(HOOK, _note_wait, why, start, end)

    def refuse(self, paths: list[str]) -> None:
        """Raise failed saves of this thread before it removes or renames files near them.

        Once per failure; the next save raises it as well, as this exception may be swallowed.
        """
        thread = threading.get_ident()
        failed = [
            job
            for job in self.failed
            if job.thread == thread
            and not job.refused
            and any(is_below(path, os.path.dirname(os.path.dirname(job.path))) for path in paths)
        ]
        for job in failed:
            job.refused = True
        if failed:
            raise describe_failures(failed)

    def raise_failed(self, path: str | None = None) -> None:
        """Raise failed saves once: all, or those of that path."""
        fields = [job for job in self.failed if path is None or job.path == path]
        for job in fields:
            self.failed.remove(job)
        if fields:
            raise describe_failures(fields)


def is_below(path: str, folder: str) -> bool:
    """Whether the path is inside the folder, at any depth."""
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def describe_failures(jobs: list[BackgroundSave]) -> WriteFailed:
    """One error for several failed writes."""
    more = f" (and {len(jobs) - 1} more)" if len(jobs) > 1 else ""
    first = jobs[0]
    sentence = f"{first.path} was not written{more}: {first.error}"
    fields = {"path": first.path, "error": first.error}
    return _make_write_failed(first.kind, sentence, fields, first.errno)


def _make_write_failed(
    kind: type[BaseException], sentence: str, fields: dict[str, Any], errno: int | None
) -> WriteFailed:
    error_class: type[WriteFailed] = WriteFailed
    if not issubclass(WriteFailed, kind):
        with contextlib.suppress(TypeError):  # a class that cannot be combined
            names = {"__module__": __name__, "__qualname__": WriteFailed.__qualname__}
            error_class = type(WriteFailed.__name__, (WriteFailed, kind), names)
    error = error_class(sentence, **fields)
    error.kind, error.errno = kind, errno
    return error


def _note_wait(why: str, start: int, end: int) -> None:
    recorder.span("blocked", start, end, what=f"async save: {why}")
    recorder.emit("behind", start, end=end, waited=why)


write_queue = WriteQueue()


def _after_fork() -> None:
    """A child process has no queue and no thread."""
    write_queue.__init__()  # type: ignore[misc]
    checkpoint.unwritten_paths.clear()


os.register_at_fork(after_in_child=_after_fork)
