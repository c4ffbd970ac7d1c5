"""Exclusive leases in a store: by flock, or by renewed records if the store has no locks.

The lease of a killed process is released automatically.
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

RENEW_S = 20.0  # without locks, interval of the renewal of a lease
LOST_S = 120.0  # without locks, a lease expires after this time without renewal
SETTLE_S = 1.0  # wait until concurrent requests can see each other
WAIT_S = 0.2  # between checks whether another worker has finished
CHANGES_LEASE = "changes"  # lease for changes of the snapshots or of the serving one


class AlreadyPublishing(PublishFailed):
    """Another worker has the lease."""

    code = "anchor-taken"

    def __init__(self) -> None:
        super().__init__("another worker is publishing this anchor")


@contextlib.contextmanager
def lease(place: Place, key: str, *, settle_s: float = SETTLE_S) -> Iterator[None]:
    """Hold a lease; raises AlreadyPublishing if another worker holds it."""
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
    """Hold a lease, after waiting until it is free."""
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
    """Exclusive right to change the snapshots of a store or the serving one."""
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
    """Hold a lease by a record file per request: the first by name gets it and marks it as held.

    Later requests find the mark, independent of the clocks of the machines. Two slow requests may
    both mark it: each checks again afterwards, and then neither gets it.
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
    """File of one request for a lease, or of its holder; renewed while it exists."""

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
                self._place.size(self._name)  # fails if the record was deleted as expired
                self._place.write(self._name, self._content)


def _competitors(place: Place, folder: str, own: str) -> list[str]:
    """Live competing requests; raises AlreadyPublishing if one of them holds the lease."""
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
    """Seconds since a record was renewed, by the clock of the store: our own is fresh."""
    return place.modified_at(f"{folder}/{own}") - place.modified_at(f"{folder}/{name}")
