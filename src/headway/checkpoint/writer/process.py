"""The writer process of one rank.

It serves one rank at a time. A staging buffer is free once it is written; a checkpoint is committed
by the writer of rank 0 once all ranks have written their part. The process ends on request, or when
no rank has connected for a while and nothing is left to write.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from headway.checkpoint.engine.buffers import EMPTY, FILLING, READY, BufferSet
from headway.checkpoint.store.cleanup import sweep
from headway.checkpoint.store.commit import AbortMark, Draft
from headway.checkpoint.writer import address, protocol
from headway.checkpoint.writer.address import Address
from headway.checkpoint.writer.tasks import (
    WriteJob,
    abort,
    aborted_error,
    all_parts_written,
    clean_up,
    code_of,
    commit_parts,
    error_outcome,
    is_settled,
    read_abort_mark,
    verify_committed,
    write,
)
from headway.errors import HeadwayError, SaveFailed
from headway.storage import disk

IDLE_CHECK_S = 0.5  # interval of checks whether it should end
FIRST_MESSAGE_S = 10.0  # for the first message of a connection
COMMIT_POLL_S = 0.01  # initial interval of checks for the parts of other ranks
LOCAL_POLL_S = (
    COMMIT_POLL_S,
    0.25,
)  # minimum and maximum interval for a folder
REMOTE_POLL_S = (0.2, 5.0)  # and for an object store, where each check is several requests
PARTS_TIMEOUT_S = 600.0  # for the parts of other ranks
MAX_OUTCOMES = 100  # outcomes to keep
NICE = 10  # a tenth of the CPU share of the training
DCP_MODULE = "headway.checkpoint.format.dcp"  # the module that imports torch


class Writer:
    """The state of the writer process; one thread serves the rank, another one writes."""

    def __init__(
        self,
        listening: socket.socket,
        idle_s: float,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """`release` frees the name of the writer for another process."""
        self.listening = listening
        self.idle_s = idle_s
        self._release = release
        self.buffer_set = BufferSet()
        self.layouts: dict[str, dict[str, Any]] = {}
        self.jobs: queue.Queue[WriteRequest] = queue.Queue()
        self.busy: list[int] = []  # buffers that are being written or queued
        self.pending: list[PendingCommit] = []  # parts waiting for those of other ranks, in order
        self.last_committed = ""  # save id of the last checkpoint
        self.outcomes: list[dict[str, Any]] = []
        self.outcome_count = 0  # number of outcomes so far
        self.ending_since: float | None = None  # when the rank asked it to end
        self.ended = threading.Event()  # the rank was told
        self.dismissed = False  # no rank will reconnect
        self.lock = threading.Lock()
        self.client_lock = threading.Lock()  # held while a rank is connected
        self.client_pid = 0  # process of the last rank, even if it has ended
        self.last_seen = time.monotonic()
        self._progress_at = self._checked_at = (
            self.last_seen
        )  # when a store last accepted or answered something
        self._swept_stores: set[str] = set()
        self._answers: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "prepare": self._prepare,
            "reserve": self._reserve,
            "layout": self._layout,
            "filling": self._filling,
            "whole": self._buffer_ready,
            "status": lambda _: self._status(),
            "end": self._end,
        }

    def run(self) -> None:
        """Serve until the process is no longer needed."""
        threading.Thread(target=self._write_all, daemon=True).start()
        threading.Thread(target=self._commit_all, daemon=True).start()
        self.listening.settimeout(IDLE_CHECK_S)
        while not (self._is_abandoned() and not self._has_work()):
            try:
                end, _ = self.listening.accept()
            except TimeoutError:
                continue
            except OSError:  # closed: the rank has asked it to end
                self.ended.wait(FIRST_MESSAGE_S)
                return
            threading.Thread(target=self._accept, args=(end,), daemon=True).start()

    def _is_abandoned(self) -> bool:
        waited = time.monotonic() - self.last_seen
        return not self.client_lock.locked() and (self.dismissed or waited > self.idle_s)

    def _has_work(self) -> bool:
        with self.lock:
            return bool(self.busy or self.pending)

    def _accept(self, end: socket.socket) -> None:
        """Serve one rank at a time; others are rejected and may retry, or only read the status."""
        with end, contextlib.suppress(protocol.PeerClosed, TimeoutError):
            if not address.is_own_peer(end):
                return
            process, _ = protocol.peer(end)
            end.settimeout(FIRST_MESSAGE_S)
            first, descriptors = protocol.receive(end)
            protocol.close(descriptors)
            if first.get("op") == "look":
                protocol.send(end, self._full_status(), self._descriptors())
                return
            if first.get("op") != "hello":
                return
            if not self.client_lock.acquire(blocking=False):
                protocol.send(end, {"taken": True})
                return
            try:
                self.client_pid = process
                self._serve(end)
            finally:
                self.last_seen = time.monotonic()
                self.client_lock.release()

    def _serve(self, end: socket.socket) -> None:
        end.settimeout(None)
        protocol.send(end, {"pid": os.getpid(), **self._full_status()}, self._descriptors())
        while not self.ended.is_set():
            message, descriptors = protocol.receive(end)
            message |= {"handles": descriptors, "from": end}
            try:
                answer = self._answers[message["op"]](message)
            except (LookupError, TypeError, ValueError):  # not a valid message: stop serving
                protocol.close(descriptors)
                return
            if answer is not None:
                attached = self._descriptors() if message["op"] == "reserve" else ()
                protocol.send(end, answer, attached)
            if message["op"] == "end":
                self.ended.set()

    def _descriptors(self) -> list[int]:
        return [buffer.descriptor for buffer in self.buffer_set.buffers]

    def _prepare(self, _: dict[str, Any]) -> None:
        """Import torch early: the commit needs it, and nothing waits for the import now."""
        threading.Thread(target=importlib.import_module, args=(DCP_MODULE,), daemon=True).start()

    def _reserve(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            self.buffer_set.reserve(message["count"], message["size"])
        except OSError as error:
            text = f"no memory for {message['count']} staging buffers: {error}"
            return error_outcome(SaveFailed(text, code="no-memory-for-images"))
        return self._status()

    def _filling(self, message: dict[str, Any]) -> None:
        buffer = self.buffer_set.buffers[message["image"]]
        buffer.state, buffer.step = FILLING, message["step"]

    def _layout(self, message: dict[str, Any]) -> None:
        used = {buffer.contents.get("layout") for buffer in self.buffer_set.buffers}
        in_use = {name: layout for name, layout in self.layouts.items() if name in used}
        self.layouts = {**in_use, message["id"]: message["layout"]}

    def _buffer_ready(self, message: dict[str, Any]) -> None:
        number = message["image"]
        buffer = self.buffer_set.buffers[number]
        buffer.state = READY if message["good"] else EMPTY
        job_fields = message["job"]
        buffer.contents = {"layout": message["layout"], "values": message["values"]}
        buffer.contents |= {key: job_fields[key] for key in ("world", "extra")}
        buffer.contents["save"] = job_fields["save_id"]
        if not message["write"]:  # memory only
            protocol.close(message["handles"])
            return
        fields = {"values": message["values"], "layout": self.layouts[message["layout"]]}
        fields["changed"] = message["changed"]
        job = WriteJob(step=buffer.step, **fields, **job_fields)
        if not message["good"]:
            protocol.close(message["handles"])
            if job.world > 1:
                with contextlib.suppress(HeadwayError):  # the store may not exist
                    mark = AbortMark(
                        job.rank, "its staging buffer is not complete", "image-not-whole"
                    )
                    abort(job, job.draft(), mark)
            return
        (ids,) = message["handles"]
        with self.lock:
            self.busy.append(number)
        self.jobs.put(WriteRequest(job, self.client_pid, number, buffer.view, ids))

    def _full_status(self) -> dict[str, Any]:
        buffers = [buffer.public() for buffer in self.buffer_set.buffers]
        return {"images": buffers, "layouts": self.layouts, **self._status()}

    def _status(self) -> dict[str, Any]:
        with self.lock:
            return {
                "busy": list(self.busy),
                "waiting": [
                    pending.job.step
                    for pending in self.pending
                    if pending.client_pid == self.client_pid
                ],
                "outcomes": list(self.outcomes),
                "stalled_s": self._stalled_s(),
            }

    def _stalled_s(self) -> float:
        """Seconds for which the store has not answered."""
        now = time.monotonic()
        writing = now - self._progress_at if self.busy else 0.0
        return max(writing, now - self._checked_at if self.pending else 0.0)

    def _note_progress(self) -> None:
        self._progress_at = time.monotonic()

    def _end(self, message: dict[str, Any]) -> dict[str, Any]:
        """End the process. Its name is free before the rank is told, for the next writer."""
        self.ending_since = time.monotonic()
        while self._has_work():
            # killed while waiting: another rank may connect
            if protocol.peer_closed(message["from"]):
                self.ending_since = None
                raise protocol.PeerClosed("the rank has disconnected")
            time.sleep(COMMIT_POLL_S)
        self.listening.shutdown(socket.SHUT_RDWR)
        self._release()
        return self._status()

    def _write_all(self) -> None:
        while True:
            request = self.jobs.get()
            started = self._progress_at = time.monotonic()
            try:
                self._write(request, started)
            except Exception as error:  # any error: the next one may be written
                self._record_outcome(request.job, request.client_pid, started, error_outcome(error))
            with self.lock:
                self.busy.remove(request.image)

    def _write(self, request: WriteRequest, started: float) -> None:
        job = self._without_lost_parent(request.job)
        self._sweep(job)
        with contextlib.ExitStack() as stack, contextlib.ExitStack() as handles:
            handles.callback(protocol.close, (request.ids,))
            draft = job.draft()
            try:
                if mark := read_abort_mark(job, draft):
                    raise aborted_error(job, mark)
                stack.enter_context(draft)
                handles.pop_all()  # closed by its reader
                size = write(job, draft, request.view, request.ids, self._note_progress)
            except BaseException as error:
                own = _abort_mark(job.rank, error)
                mark = read_abort_mark(job, draft) or own
                abort(job, draft, mark)
                if mark is not own:  # replace secondary errors, such as a removed folder
                    raise aborted_error(job, mark) from error
                raise
            measured = {"bytes": size, "written_s": time.monotonic() - started}
            with self.lock:
                open_draft = stack.pop_all()
                self.pending.append(
                    PendingCommit(job, draft, request.client_pid, started, measured, open_draft)
                )

    def _sweep(self, job: WriteJob) -> None:
        """Once for each store: remove what killed writers have left."""
        if job.rank == 0 and job.store not in self._swept_stores:
            self._swept_stores.add(job.store)
            with contextlib.suppress(Exception):  # the commit cleans up again
                sweep(job.store)

    def _without_lost_parent(self, job: WriteJob) -> WriteJob:
        """The job, writing whole tables if the parent of the delta may never be committed."""
        with self.lock:
            known = {self.last_committed, *(pending.job.save_id for pending in self.pending)}
        return job if job.parent in known else replace(job, changed=[])

    def _commit_all(self) -> None:
        """Commit the newest save that all ranks have written; abort older incomplete ones."""
        while True:
            time.sleep(COMMIT_POLL_S)
            self._checked_at = time.monotonic()
            self._check_pending(self._checked_at)

    def _check_pending(self, now: float) -> None:
        """Check the pending commits that are due."""
        with self.lock:
            waiting = list(self.pending)
        due = [commit for commit in waiting if commit.next_check <= now]
        for commit in reversed(due):
            if _ready(commit):
                self._commit(commit, waiting[: waiting.index(commit)])
                break
        with self.lock:
            due = [commit for commit in due if commit in self.pending]
        for commit in due:
            if mark := self._stale_reason(commit):
                self._abort_pending(commit, mark)
            commit.next_check = now + pause_s(
                now - commit.since, local=commit.draft.place.can_rename
            )

    def _stale_reason(self, pending: PendingCommit) -> AbortMark | None:
        """Why it will never be a checkpoint; None if it may still be."""
        now = time.monotonic()
        rank = pending.job.rank
        if now - pending.since > PARTS_TIMEOUT_S:
            return AbortMark(rank, "not all ranks have written their part", "ranks-missing")
        if (
            pending.client_pid != self.client_pid
            and self.ending_since is not None
            and now - self.ending_since > FIRST_MESSAGE_S
        ):
            return AbortMark(rank, "the ranks that started it have ended", "ranks-gone")
        with contextlib.suppress(Exception):  # checked again later
            if mark := read_abort_mark(pending.job, pending.draft):
                return mark
            if rank == 0 and not any(part.rank == 0 for part in pending.draft.parts()):
                return AbortMark(rank, "its files were removed", "files-removed")
        return None

    def _commit(self, pending: PendingCommit, older: list[PendingCommit]) -> None:
        for other in older:
            if _ready(other):
                self._commit(other, [])
            else:
                reason = f"step {pending.job.step} exists already"
                self._abort_pending(other, AbortMark(other.job.rank, reason, "newer-step-saved"))
        outcome = dict(pending.measured)
        try:
            with pending.stack:
                if pending.job.rank == 0:
                    outcome |= commit_parts(pending.job, pending.draft)
                else:
                    verify_committed(pending.job, pending.draft)
            self.last_committed = pending.job.save_id
            if pending.job.rank == 0:
                clean_up(pending.job)
        except Exception as error:
            outcome |= error_outcome(error)
            if pending.job.rank == 0 and "name" not in outcome:
                abort(pending.job, pending.draft, _abort_mark(0, error))
        self._record_outcome(pending.job, pending.client_pid, pending.started, outcome, pending)

    def _abort_pending(self, pending: PendingCommit, mark: AbortMark) -> None:
        with contextlib.suppress(Exception):  # a sweep removes the rest
            pending.stack.close()
            if pending.job.rank == 0:
                abort(pending.job, pending.draft, mark)
        outcome = {**pending.measured, **error_outcome(aborted_error(pending.job, mark))}
        self._record_outcome(pending.job, pending.client_pid, pending.started, outcome, pending)

    def _record_outcome(
        self,
        job: WriteJob,
        client_pid: int,
        started: float,
        fields: dict[str, Any],
        commit: PendingCommit | None = None,
    ) -> None:
        """Record it for the process that requested it; drop it if that process has ended."""
        outcome = {"step": job.step, "seconds": time.monotonic() - started, **fields}
        with self.lock:
            if commit in self.pending:
                self.pending.remove(commit)
            if client_pid == self.client_pid:
                self.outcome_count += 1
                outcome["number"] = self.outcome_count
                self.outcomes = [*self.outcomes[1 - MAX_OUTCOMES :], outcome]


@dataclass(frozen=True)
class WriteRequest:
    """A buffer to write, and the rows of it that have changed."""

    job: WriteJob
    client_pid: int  # the process that requested it
    image: int
    view: memoryview
    ids: int


@dataclass(eq=False)
class PendingCommit:
    """A written part, until the checkpoint is committed."""

    job: WriteJob
    draft: Draft
    client_pid: int
    started: float
    measured: dict[str, Any]
    stack: contextlib.ExitStack
    since: float = field(default_factory=time.monotonic)
    next_check: float = 0.0  # when it is checked again


def pause_s(waited_s: float, *, local: bool) -> float:
    """Time until the next check: a quarter of the time waited so far, within bounds."""
    minimum, maximum = LOCAL_POLL_S if local else REMOTE_POLL_S
    return min(max(minimum, waited_s / 4), maximum)


def _ready(pending: PendingCommit) -> bool:
    """Whether all parts are written; on other ranks than 0, whether rank 0 is finished with it.

    Until then each rank holds the draft, so that no sweep removes it.
    """
    try:
        if pending.job.rank:
            return is_settled(pending.draft)
        return all_parts_written(pending.job, pending.draft)
    except Exception:  # any error of the store: checked again later
        return False


def _abort_mark(rank: int, error: BaseException) -> AbortMark:
    return AbortMark(rank, str(error) or type(error).__name__, code_of(error))


def main(name: str, idle_s: float) -> None:
    """Run the writer process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from the terminal, for the job
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm sends it to all processes of a step
    with contextlib.suppress(OSError):
        os.nice(NICE)
    try:
        name_lock = Address(name)
    except disk.Busy:  # another process was faster
        return
    try:
        writer = Writer(name_lock.socket, idle_s, name_lock.release)
        signal.signal(signal.SIGTERM, lambda *_: setattr(writer, "dismissed", True))
        writer.run()
    finally:
        name_lock.release()
