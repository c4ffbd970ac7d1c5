"""The writer of one rank: holds its images, writes them, and stays when the rank is killed.

It knows one rank at a time. An image is free once it is written; the checkpoint is there once all
ranks have written theirs, which the writer of rank 0 looks after. It ends when it is told to, or
when no rank has come back for a while and nothing is left to write.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.checkpoint.store.commit import Draft
from headway.checkpoint.writer import wire
from headway.checkpoint.writer.images import EMPTY, FILLING, WHOLE, Images
from headway.checkpoint.writer.write import (
    Job,
    all_there,
    check,
    clear_up,
    finish,
    give_up,
    settled,
    write,
)

LOOK_S = 0.5  # how often it asks itself whether it is still wanted
FIRST_S = 10.0  # for the first word of whoever comes
PARTS_S = 0.01  # how often it looks for the parts of other ranks
PATIENCE_S = 600.0  # for them
KEPT = 100  # outcomes that are kept for a rank that comes back


class Writer:
    """Its state; one thread talks, another writes."""

    def __init__(self, listening: socket.socket, linger_s: float) -> None:
        self.listening = listening
        self.linger_s = linger_s
        self.images = Images()
        self.layouts: dict[str, dict[str, Any]] = {}
        self.jobs: queue.Queue[tuple[int, int, int, Job]] = queue.Queue()
        self.busy: list[int] = []  # images that are written, or wait for it
        self.waiting: list[Waiting] = []  # for the parts of other ranks, in order
        self.outcomes: list[dict[str, Any]] = []
        self.count = 0  # of all outcomes
        self.ended = threading.Event()  # and the rank knows it
        self.dismissed = False  # nobody will come back
        self.lock = threading.Lock()
        self.served = threading.Lock()  # held while a rank is there
        self.seen = time.monotonic()
        self._answers: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
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
        self.listening.settimeout(LOOK_S)
        while not (self._forgotten() and not self._at_work()):
            try:
                end, _ = self.listening.accept()
            except TimeoutError:
                continue
            except OSError:  # closed: the rank has said that it ends
                self.ended.wait(FIRST_S)
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
        with end, contextlib.suppress(wire.Gone, TimeoutError):
            if wire.user(end) != os.getuid():
                return
            end.settimeout(FIRST_S)
            if wire.receive(end)[0]["op"] == "look":
                wire.send(end, self._all(), self._descriptors())
                return
            if not self.served.acquire(blocking=False):
                wire.send(end, {"taken": True})
                return
            try:
                self._serve(end)
            finally:
                self.seen = time.monotonic()
                self.served.release()

    def _serve(self, end: socket.socket) -> None:
        end.settimeout(None)
        wire.send(end, {"pid": os.getpid(), **self._all()}, self._descriptors())
        while not self.ended.is_set():
            message, handles = wire.receive(end)
            message["handles"] = handles
            answer = self._answers[message["op"]](message)
            if answer is not None:
                given = self._descriptors() if message["op"] == "reserve" else ()
                wire.send(end, answer, given)
            if message["op"] == "end":
                self.ended.set()

    def _descriptors(self) -> list[int]:
        return [image.descriptor for image in self.images.all]

    def _reserve(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            self.images.reserve(message["count"], message["size"])
        except OSError as error:
            return {"error": f"no memory for {message['count']} images: {error}"}
        return self._status()

    def _filling(self, message: dict[str, Any]) -> None:
        image = self.images.all[message["image"]]
        image.state, image.step = FILLING, message["step"]

    def _layout(self, message: dict[str, Any]) -> None:
        self.layouts[message["id"]] = message["layout"]

    def _whole(self, message: dict[str, Any]) -> None:
        number = message["image"]
        image = self.images.all[number]
        image.state = WHOLE if message["good"] else EMPTY
        asked = message["job"]
        image.told = {"layout": message["layout"], "values": message["values"]}
        image.told |= {"save": asked["save_id"], "extra": asked["extra"]}
        if not message["good"]:
            wire.close(message["handles"])
            return
        told = {"values": message["values"], "layout": self.layouts[message["layout"]]}
        told["changed"] = message["changed"]
        job = Job(step=image.step, **told, **asked)
        with self.lock:
            self.busy.append(number)
        self.jobs.put((number, os.dup(image.descriptor), message["handles"][0], job))

    def _all(self) -> dict[str, Any]:
        images = [image.public() for image in self.images.all]
        return {"images": images, "layouts": self.layouts, **self._status()}

    def _status(self) -> dict[str, Any]:
        with self.lock:
            return {
                "busy": list(self.busy),
                "waiting": [one.job.step for one in self.waiting],
                "outcomes": list(self.outcomes),
            }

    def _end(self, message: dict[str, Any]) -> dict[str, Any]:
        """The name is free before the rank hears of it: the next of that name may be started."""
        while self._at_work():
            time.sleep(PARTS_S)
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        return self._status()

    def _write_all(self) -> None:
        while True:
            number, descriptor, ids, job = self.jobs.get()
            begun = time.monotonic()
            draft = job.draft()
            try:
                with contextlib.ExitStack() as stack:
                    stack.enter_context(draft)
                    size = write(job, draft, descriptor, ids)
                    took = {"bytes": size, "written_s": time.monotonic() - begun}
                    with self.lock:
                        self.waiting.append(Waiting(job, draft, begun, took, stack.pop_all()))
            except Exception as error:  # whatever it is, the next one may be written
                self._over(job, begun, {"error": str(error) or type(error).__name__})
                if job.rank == 0:
                    give_up(draft)
            with self.lock:
                self.busy.remove(number)

    def _commit_all(self) -> None:
        """The newest that all ranks have written; an older one that is not will never be."""
        while True:
            time.sleep(PARTS_S)
            with self.lock:
                waiting = list(self.waiting)
            for number, one in reversed(list(enumerate(waiting))):
                if _ready(one):
                    self._commit(one, waiting[:number])
                    break
            for one in waiting:
                if time.monotonic() - one.begun > PATIENCE_S:
                    self._drop(one, "not all ranks have written their part")

    def _commit(self, one: Waiting, older: list[Waiting]) -> None:
        for other in older:
            if _ready(other):
                self._commit(other, [])
            else:
                self._drop(other, f"step {one.job.step} is there already")
        told = dict(one.took)
        try:
            with one.held:
                if one.job.rank == 0:
                    told |= finish(one.job, one.draft)
                else:
                    check(one.job)
            if one.job.rank == 0:
                clear_up(one.job)
        except Exception as error:
            told["error"] = str(error) or type(error).__name__
            if one.job.rank == 0 and "name" not in told:
                give_up(one.draft)
        self._over(one.job, one.begun, told, one)

    def _drop(self, one: Waiting, why: str) -> None:
        one.held.close()
        if one.job.rank == 0:
            give_up(one.draft)
        text = f"the checkpoint of step {one.job.step} was given up: {why}"
        self._over(one.job, one.begun, {**one.took, "error": text}, one)

    def _over(
        self, job: Job, begun: float, told: dict[str, Any], waited: Waiting | None = None
    ) -> None:
        outcome = {"step": job.step, "seconds": time.monotonic() - begun, **told}
        with self.lock:
            self.count += 1
            outcome["number"] = self.count
            if waited in self.waiting:
                self.waiting.remove(waited)
            self.outcomes = [*self.outcomes[1 - KEPT :], outcome]


@dataclass(eq=False)
class Waiting:
    """A part that is written, until the checkpoint is there."""

    job: Job
    draft: Draft
    begun: float
    took: dict[str, Any]
    held: contextlib.ExitStack


def _ready(one: Waiting) -> bool:
    """For rank 0, that all parts are there; for the others, that it has done with them.

    Until then each holds the draft, so that nobody takes it for one that was left behind.
    """
    try:
        if one.job.rank:
            return settled(one.draft)
        return all_there(one.job, one.draft)
    except OSError:  # looked for again
        return False


def listen(name: str) -> socket.socket:
    """At a name that is nowhere on a disk; OSError where somebody has it."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(f"\0{name}")
    except OSError:
        found.close()
        raise
    found.listen(1)
    return found


def main(name: str, linger_s: float) -> None:
    """The process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: meant for the job
    with contextlib.suppress(OSError):
        os.nice(5)
    try:
        listening = listen(name)
    except OSError:  # another one was faster
        return
    writer = Writer(listening, linger_s)
    signal.signal(signal.SIGTERM, lambda *_: setattr(writer, "dismissed", True))
    writer.run()
