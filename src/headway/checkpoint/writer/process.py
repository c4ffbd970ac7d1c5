"""The writer process of one rank.

It serves one rank at a time. A staging buffer is free once it is written; a checkpoint is committed
by the writer of rank 0 once all ranks have written their part. The process ends when it is told to,
or when no rank has connected for a while and nothing is left to write.
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

IDLE_CHECK_S = 0.5  # how often it asks itself whether it is still wanted
FIRST_MESSAGE_S = 10.0  # for the first word of whoever comes
COMMIT_POLL_S = 0.01  # how often it looks for the parts of other ranks, at first
LOCAL_POLL_S = (
    COMMIT_POLL_S,
    0.25,
)  # the shortest and the longest time between two looks at a folder,
REMOTE_POLL_S = (0.2, 5.0)  # and at an object store, where each look is some requests
PARTS_TIMEOUT_S = 600.0  # for them
MAX_OUTCOMES = 100  # outcomes that are kept
NICE = 10  # a tenth of what the training gets of a core, where both want it
DCP_MODULE = "headway.checkpoint.format.dcp"  # what imports torch


class Writer:
    """Its state; one thread talks, another writes."""

    def __init__(
        self,
        listening: socket.socket,
        linger_s: float,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """`release`: lets another one have its name."""
        self.listening = listening
        self.linger_s = linger_s
        self._release = release
        self.images = BufferSet()
        self.layouts: dict[str, dict[str, Any]] = {}
        self.jobs: queue.Queue[WriteRequest] = queue.Queue()
        self.busy: list[int] = []  # images that are written, or wait for it
        self.waiting: list[PendingCommit] = []  # for the parts of other ranks, in order
        self.made = ""  # the save of the last checkpoint
        self.outcomes: list[dict[str, Any]] = []
        self.count = 0  # of all outcomes
        self.ending: float | None = None  # since when
        self.ended = threading.Event()  # and the rank knows it
        self.dismissed = False  # nobody will come back
        self.lock = threading.Lock()
        self.served = threading.Lock()  # held while a rank is there
        self.asker = 0  # its process, also when that is gone
        self.seen = time.monotonic()
        self._moved = self._looked = self.seen  # when a store last took or told something
        self._swept: set[str] = set()  # stores
        self._answers: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "prepare": self._prepare,
            "reserve": self._reserve,
            "layout": self._layout,
            "filling": self._filling,
            "whole": self._whole,
            "status": lambda _: self._status(),
            "end": self._end,
        }

    def run(self) -> None:
        """Until nobody wants it any more."""
        threading.Thread(target=self._write_all, daemon=True).start()
        threading.Thread(target=self._commit_all, daemon=True).start()
        self.listening.settimeout(IDLE_CHECK_S)
        while not (self._forgotten() and not self._at_work()):
            try:
                end, _ = self.listening.accept()
            except TimeoutError:
                continue
            except OSError:  # closed: the rank has said that it ends
                self.ended.wait(FIRST_MESSAGE_S)
                return
            threading.Thread(target=self._meet, args=(end,), daemon=True).start()

    def _forgotten(self) -> bool:
        waited = time.monotonic() - self.seen
        return not self.served.locked() and (self.dismissed or waited > self.linger_s)

    def _at_work(self) -> bool:
        with self.lock:
            return bool(self.busy or self.waiting)

    def _meet(self, end: socket.socket) -> None:
        """One rank at a time: another one is told so, and may come again, or only look."""
        with end, contextlib.suppress(protocol.PeerClosed, TimeoutError):
            if not address.is_own_peer(end):
                return
            process, _ = protocol.peer(end)
            end.settimeout(FIRST_MESSAGE_S)
            first, handles = protocol.receive(end)
            protocol.close(handles)
            if first.get("op") == "look":
                protocol.send(end, self._all(), self._descriptors())
                return
            if first.get("op") != "hello":
                return
            if not self.served.acquire(blocking=False):
                protocol.send(end, {"taken": True})
                return
            try:
                self.asker = process
                self._serve(end)
            finally:
                self.seen = time.monotonic()
                self.served.release()

    def _serve(self, end: socket.socket) -> None:
        end.settimeout(None)
        protocol.send(end, {"pid": os.getpid(), **self._all()}, self._descriptors())
        while not self.ended.is_set():
            message, handles = protocol.receive(end)
            message |= {"handles": handles, "from": end}
            try:
                answer = self._answers[message["op"]](message)
            except (LookupError, TypeError, ValueError):  # it is not one of ours: no more of it
                protocol.close(handles)
                return
            if answer is not None:
                given = self._descriptors() if message["op"] == "reserve" else ()
                protocol.send(end, answer, given)
            if message["op"] == "end":
                self.ended.set()

    def _descriptors(self) -> list[int]:
        return [image.descriptor for image in self.images.all]

    def _prepare(self, _: dict[str, Any]) -> None:
        """It will commit, and needs torch for that: imported now, nobody waits for it then."""
        threading.Thread(target=importlib.import_module, args=(DCP_MODULE,), daemon=True).start()

    def _reserve(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            self.images.reserve(message["count"], message["size"])
        except OSError as error:
            text = f"no memory for {message['count']} images: {error}"
            return error_outcome(SaveFailed(text, code="no-memory-for-images"))
        return self._status()

    def _filling(self, message: dict[str, Any]) -> None:
        image = self.images.all[message["image"]]
        image.state, image.step = FILLING, message["step"]

    def _layout(self, message: dict[str, Any]) -> None:
        used = {image.told.get("layout") for image in self.images.all}
        kept = {name: layout for name, layout in self.layouts.items() if name in used}
        self.layouts = {**kept, message["id"]: message["layout"]}

    def _whole(self, message: dict[str, Any]) -> None:
        number = message["image"]
        image = self.images.all[number]
        image.state = READY if message["good"] else EMPTY
        asked = message["job"]
        image.told = {"layout": message["layout"], "values": message["values"]}
        image.told |= {key: asked[key] for key in ("world", "extra")}
        image.told["save"] = asked["save_id"]
        if not message["write"]:  # a snapshot: in memory only
            protocol.close(message["handles"])
            return
        about = {"values": message["values"], "layout": self.layouts[message["layout"]]}
        about["changed"] = message["changed"]
        job = WriteJob(step=image.step, **about, **asked)
        if not message["good"]:
            protocol.close(message["handles"])
            if job.world > 1:
                with contextlib.suppress(HeadwayError):  # there may be no such store
                    given = AbortMark(job.rank, "its image is not whole", "image-not-whole")
                    abort(job, job.draft(), given)
            return
        (ids,) = message["handles"]
        with self.lock:
            self.busy.append(number)
        self.jobs.put(WriteRequest(job, self.asker, number, image.view, ids))

    def _all(self) -> dict[str, Any]:
        images = [image.public() for image in self.images.all]
        return {"images": images, "layouts": self.layouts, **self._status()}

    def _status(self) -> dict[str, Any]:
        with self.lock:
            return {
                "busy": list(self.busy),
                "waiting": [one.job.step for one in self.waiting if one.asker == self.asker],
                "outcomes": list(self.outcomes),
                "stalled_s": self._stalled_s(),
            }

    def _stalled_s(self) -> float:
        """For how long the store has not answered to what this writer does with it."""
        now = time.monotonic()
        writing = now - self._moved if self.busy else 0.0
        return max(writing, now - self._looked if self.waiting else 0.0)

    def _has_moved(self) -> None:
        self._moved = time.monotonic()

    def _end(self, message: dict[str, Any]) -> dict[str, Any]:
        """The name is free before the rank hears of it: the next of that name may be started."""
        self.ending = time.monotonic()
        while self._at_work():
            if protocol.peer_closed(message["from"]):  # killed while it waits: another one may come
                self.ending = None
                raise protocol.PeerClosed("the rank has gone")
            time.sleep(COMMIT_POLL_S)
        self.listening.shutdown(socket.SHUT_RDWR)
        self._release()
        return self._status()

    def _write_all(self) -> None:
        while True:
            asked = self.jobs.get()
            begun = self._moved = time.monotonic()
            try:
                self._write(asked, begun)
            except Exception as error:  # whatever it is, the next one may be written
                self._over(asked.job, asked.asker, begun, error_outcome(error))
            with self.lock:
                self.busy.remove(asked.image)

    def _write(self, asked: WriteRequest, begun: float) -> None:
        job = self._standing(asked.job)
        self._sweep(job)
        with contextlib.ExitStack() as stack, contextlib.ExitStack() as handles:
            handles.callback(protocol.close, (asked.ids,))
            draft = job.draft()
            try:
                if given := read_abort_mark(job, draft):
                    raise aborted_error(job, given)
                stack.enter_context(draft)
                handles.pop_all()  # it is closed by whoever reads it
                size = write(job, draft, asked.view, asked.ids, self._has_moved)
            except BaseException as error:
                mine = _abort_mark(job.rank, error)
                given = read_abort_mark(job, draft) or mine
                abort(job, draft, given)
                if given is not mine:  # whatever came of that, such as a folder that is gone
                    raise aborted_error(job, given) from error
                raise
            took = {"bytes": size, "written_s": time.monotonic() - begun}
            with self.lock:
                held = stack.pop_all()
                self.waiting.append(PendingCommit(job, draft, asked.asker, begun, took, held))

    def _sweep(self, job: WriteJob) -> None:
        """Once for each store: what the writers before this one have left when they were killed."""
        if job.rank == 0 and job.store not in self._swept:
            self._swept.add(job.store)
            with contextlib.suppress(Exception):  # the commit does it again
                sweep(job.store)

    def _standing(self, job: WriteJob) -> WriteJob:
        """Tables by their rows only where the save that these build on is there, or may yet be."""
        with self.lock:
            known = {self.made, *(one.job.save_id for one in self.waiting)}
        return job if job.parent in known else replace(job, changed=[])

    def _commit_all(self) -> None:
        """The newest that all ranks have written; an older one that is not will never be."""
        while True:
            time.sleep(COMMIT_POLL_S)
            self._looked = time.monotonic()
            self._look(self._looked)

    def _look(self, now: float) -> None:
        """At those that are due."""
        with self.lock:
            waiting = list(self.waiting)
        due = [one for one in waiting if one.next <= now]
        for one in reversed(due):
            if _ready(one):
                self._commit(one, waiting[: waiting.index(one)])
                break
        with self.lock:
            due = [one for one in due if one in self.waiting]
        for one in due:
            if given := self._hopeless(one):
                self._drop(one, given)
            one.next = now + pause_s(now - one.since, local=one.draft.place.renames)

    def _hopeless(self, one: PendingCommit) -> AbortMark | None:
        """Why it will never be a checkpoint; None if it may be."""
        now = time.monotonic()
        mine = one.job.rank
        if now - one.since > PARTS_TIMEOUT_S:
            return AbortMark(mine, "not all ranks have written their part", "ranks-missing")
        if (
            one.asker != self.asker
            and self.ending is not None
            and now - self.ending > FIRST_MESSAGE_S
        ):
            return AbortMark(mine, "the ranks that have begun it are gone", "ranks-gone")
        with contextlib.suppress(Exception):  # looked for again
            if given := read_abort_mark(one.job, one.draft):
                return given
            if mine == 0 and not any(part.rank == 0 for part in one.draft.parts()):
                return AbortMark(mine, "its files were taken away", "files-removed")
        return None

    def _commit(self, one: PendingCommit, older: list[PendingCommit]) -> None:
        for other in older:
            if _ready(other):
                self._commit(other, [])
            else:
                why = f"step {one.job.step} is there already"
                self._drop(other, AbortMark(other.job.rank, why, "newer-step-saved"))
        outcome = dict(one.took)
        try:
            with one.held:
                if one.job.rank == 0:
                    outcome |= commit_parts(one.job, one.draft)
                else:
                    verify_committed(one.job, one.draft)
            self.made = one.job.save_id
            if one.job.rank == 0:
                clean_up(one.job)
        except Exception as error:
            outcome |= error_outcome(error)
            if one.job.rank == 0 and "name" not in outcome:
                abort(one.job, one.draft, _abort_mark(0, error))
        self._over(one.job, one.asker, one.begun, outcome, one)

    def _drop(self, one: PendingCommit, given: AbortMark) -> None:
        with contextlib.suppress(Exception):  # what is left of it is swept
            one.held.close()
            if one.job.rank == 0:
                abort(one.job, one.draft, given)
        outcome = {**one.took, **error_outcome(aborted_error(one.job, given))}
        self._over(one.job, one.asker, one.begun, outcome, one)

    def _over(
        self,
        job: WriteJob,
        asker: int,
        begun: float,
        became: dict[str, Any],
        waited: PendingCommit | None = None,
    ) -> None:
        """Told to the process that has asked for it; if that is gone, nobody wants to know."""
        outcome = {"step": job.step, "seconds": time.monotonic() - begun, **became}
        with self.lock:
            if waited in self.waiting:
                self.waiting.remove(waited)
            if asker == self.asker:
                self.count += 1
                outcome["number"] = self.count
                self.outcomes = [*self.outcomes[1 - MAX_OUTCOMES :], outcome]


@dataclass(frozen=True)
class WriteRequest:
    """An image that is to be written, and the rows of it that have changed."""

    job: WriteJob
    asker: int  # the process
    image: int
    view: memoryview
    ids: int


@dataclass(eq=False)
class PendingCommit:
    """A part that is written, until the checkpoint is there."""

    job: WriteJob
    draft: Draft
    asker: int
    begun: float
    took: dict[str, Any]
    held: contextlib.ExitStack
    since: float = field(default_factory=time.monotonic)
    next: float = 0.0  # when it is looked at again


def pause_s(waited_s: float, *, local: bool) -> float:
    """Until the next look: a quarter of the time for which was waited, within bounds."""
    shortest, longest = LOCAL_POLL_S if local else REMOTE_POLL_S
    return min(max(shortest, waited_s / 4), longest)


def _ready(one: PendingCommit) -> bool:
    """For rank 0, that all parts are there; for the others, that it has done with them.

    Until then each holds the draft, so that nobody takes it for one that was left behind.
    """
    try:
        if one.job.rank:
            return is_settled(one.draft)
        return all_parts_written(one.job, one.draft)
    except Exception:  # of whatever the store is: looked for again
        return False


def _abort_mark(rank: int, error: BaseException) -> AbortMark:
    return AbortMark(rank, str(error) or type(error).__name__, code_of(error))


def main(name: str, linger_s: float) -> None:
    """The process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: meant for the job
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm's, to all of a step: the same
    with contextlib.suppress(OSError):
        os.nice(NICE)
    try:
        held = Address(name)
    except disk.Busy:  # another one was faster
        return
    try:
        writer = Writer(held.socket, linger_s, held.release)
        signal.signal(signal.SIGTERM, lambda *_: setattr(writer, "dismissed", True))
        writer.run()
    finally:
        held.release()
