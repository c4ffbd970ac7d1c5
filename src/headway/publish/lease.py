"""One worker at a time for each anchor; that of a worker who was killed is free again."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator

from headway.checkpoint.store import disk, owners
from headway.checkpoint.store.place import Folder, Place
from headway.errors import PublishFailed

RENEW_S = 20.0  # where there are no locks, a lease is renewed this often,
LOST_S = 120.0  # and is free when it was not for so long
SETTLE_S = 1.0  # until two who came at once see each other


class Taken(PublishFailed):
    """Another worker has it."""

    def __init__(self) -> None:
        super().__init__("another worker publishes this anchor now")


@contextlib.contextmanager
def lease(where: Place, key: str, *, settle_s: float = SETTLE_S) -> Iterator[None]:
    """Hold the lease of an anchor; Taken if somebody else does."""
    if isinstance(where, Folder):
        path = where.path(f"leases/{key}")
        try:
            held = disk.lock(path, wait=False)
        except disk.Busy:
            raise Taken from None
        except disk.NoLocks:
            pass
        else:
            try:
                yield
            finally:
                with contextlib.suppress(FileNotFoundError):
                    disk.unlink(path)
                disk.close(held)
            return
    with _announced(where, f"leases/{key}", settle_s):
        yield


@contextlib.contextmanager
def _announced(where: Place, folder: str, settle_s: float) -> Iterator[None]:
    """By a file that says who wants it: of several, the first by name has it, and says so.

    Who comes later finds that it is had, whatever the clocks of the machines say.
    """
    own = f"{time.time():020.6f}-{os.getpid()}-{secrets.token_hex(4)}"
    where.make(folder)
    where.write(f"{folder}/{own}", _told(held=False))
    stop = threading.Event()
    renewing = threading.Thread(target=_renew, args=(where, f"{folder}/{own}", stop), daemon=True)
    renewing.start()
    try:
        time.sleep(settle_s)
        if min(_others(where, folder, own), default=own) < own:
            raise Taken
        where.write(f"{folder}/{own}", _told(held=True))
        yield
    finally:
        stop.set()
        renewing.join()
        where.delete(f"{folder}/{own}")


def _told(*, held: bool) -> bytes:
    return json.dumps({**json.loads(owners.describe()), "held": held}).encode()


def _others(where: Place, folder: str, own: str) -> list[str]:
    """Those who are alive and want it too; Taken if one of them has it."""
    found = []
    for name in where.names(folder):
        if name == own:
            continue
        with contextlib.suppress(FileNotFoundError):
            told = where.read(f"{folder}/{name}")
            gone = owners.gone(told)
            if gone or (gone is None and where.changed(f"{folder}/{name}") < time.time() - LOST_S):
                where.delete(f"{folder}/{name}")
            elif b'"held": true' in told:
                raise Taken
            else:
                found.append(name)
    return found


def _renew(where: Place, name: str, stop: threading.Event) -> None:
    while not stop.wait(RENEW_S):
        with contextlib.suppress(OSError):
            where.write(name, where.read(name))
