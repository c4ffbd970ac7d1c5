"""Exclusive leases in a store: by flock, or by records that are renewed where there are no locks.

The lease of a killed process becomes free by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import threading
import time
from collections.abc import Iterator

from headway.errors import PublishFailed
from headway.storage import disk, process_identity
from headway.storage.place import LOCK, LocalPlace, Place

RENEW_S = 20.0  # where there are no locks, a lease is renewed this often,
LOST_S = 120.0  # and is free when it was not for so long
SETTLE_S = 1.0  # until two who came at once see each other
WAIT_S = 0.2  # until it is asked again whether another worker is done
CHANGES_LEASE = "changes"  # the lease of who changes which snapshots there are, or which serves


class AlreadyPublishing(PublishFailed):
    """Another worker has it."""

    code = "anchor-taken"

    def __init__(self) -> None:
        super().__init__("another worker publishes this anchor now")


@contextlib.contextmanager
def lease(place: Place, key: str, *, settle_s: float = SETTLE_S) -> Iterator[None]:
    """Hold the lease of an anchor; Taken if somebody else does."""
    if isinstance(place, LocalPlace):
        path = place.path(f"leases/{key}")
        try:
            lock = disk.lock(path, wait=False)
        except disk.Busy:
            raise AlreadyPublishing from None
        except disk.NoLocks:
            pass
        else:
            try:
                yield
            finally:
                with contextlib.suppress(FileNotFoundError):
                    disk.unlink(path)
                disk.close(lock)
            return
    with _lease_by_record(place, f"leases/{key}", settle_s):
        yield


@contextlib.contextmanager
def wait_for_lease(place: Place, key: str) -> Iterator[None]:
    """The same, as soon as nobody else holds it."""
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lease(place, key, settle_s=0.0))
                break
            except AlreadyPublishing:
                time.sleep(random.uniform(0.5, 1.5) * WAIT_S)
        yield


@contextlib.contextmanager
def exclusive_change(place: Place) -> Iterator[None]:
    """Nobody else changes meanwhile which snapshots there are, or which of them serves."""
    lock = None
    if isinstance(place, LocalPlace):
        with contextlib.suppress(disk.NoLocks):
            lock = disk.lock(place.path(LOCK))
    if lock is None:
        with wait_for_lease(place, CHANGES_LEASE):
            yield
        return
    try:
        yield
    finally:
        disk.close(lock)


@contextlib.contextmanager
def _lease_by_record(place: Place, folder: str, settle_s: float) -> Iterator[None]:
    """By a file that says who wants it: of several, the first by name has it, and says so.

    Who comes later finds that it is had, whatever the clocks of the machines say. Two that were
    slow may both say so: each of them looks once more afterwards, and neither has it then.
    """
    own = f"{time.time():020.6f}-{os.getpid()}-{secrets.token_hex(4)}"
    place.make_folder(folder)
    record = _LeaseRecord(place, f"{folder}/{own}")
    try:
        time.sleep(settle_s)
        if min(_competitors(place, folder, own), default=own) < own:
            raise AlreadyPublishing
        record.write(held=True)
        _competitors(place, folder, own)
        yield
    finally:
        record.delete()


class _LeaseRecord:
    """Says in a file who wants a lease or has it, and renews that as long as it exists."""

    def __init__(self, place: Place, name: str) -> None:
        self._place, self._name = place, name
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._content = b""
        self.write(held=False)
        self._thread = threading.Thread(target=self._renew, name="headway-lease", daemon=True)
        self._thread.start()

    def write(self, *, held: bool) -> None:
        content = json.dumps(
            {**json.loads(process_identity.identify_process()), "held": held}
        ).encode()
        with self._writing:
            self._content = content
            self._place.write(self._name, content)

    def delete(self) -> None:
        self._stop.set()
        self._thread.join()
        self._place.delete(self._name)

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_S):
            with contextlib.suppress(OSError), self._writing:
                self._place.size(self._name)  # who was taken for lost does not come back
                self._place.write(self._name, self._content)


def _competitors(place: Place, folder: str, own: str) -> list[str]:
    """Those who are alive and want it too; Taken if one of them has it."""
    names = []
    for name in place.list_names(folder):
        if name == own:
            continue
        with contextlib.suppress(FileNotFoundError):
            content = place.read(f"{folder}/{name}")
            gone = process_identity.process_ended(content)
            if gone or (gone is None and _age(place, folder, name, own) > LOST_S):
                place.delete(f"{folder}/{name}")
            elif b'"held": true' in content:
                raise AlreadyPublishing
            else:
                names.append(name)
    return names


def _age(place: Place, folder: str, name: str, own: str) -> float:
    """Seconds since a record was renewed, by the clock of the store: ours has just been."""
    return place.modified_at(f"{folder}/{own}") - place.modified_at(f"{folder}/{name}")
