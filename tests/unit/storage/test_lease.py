"""One holder at a time; tests/integration/test_publish_kills.py kills one."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.storage import disk
from headway.storage import lease as leases
from headway.storage.lease import AlreadyPublishing, exclusive_change, lease
from headway.storage.place import Place, open_place
from tests.support import has_code


@pytest.fixture(params=["folder", "no locks", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "no locks":

        def none(*args: object, **more: object) -> int:
            raise disk.NoLocks

        monkeypatch.setattr(disk, "lock", none)
    url = f"memory://{secrets.token_hex(8)}" if request.param == "memory" else str(tmp_path)
    place = open_place(url)
    place.make_folder("leases")
    return place


def test_one_at_a_time(where: Place) -> None:
    with (
        lease(where, "a", settle_s=0),
        lease(where, "b", settle_s=0),
        pytest.raises(AlreadyPublishing, check=has_code("anchor-taken")),
        lease(where, "a", settle_s=0),
    ):
        raise AssertionError
    with lease(where, "a", settle_s=0):
        pass


class Clock:
    """Stands in for `time`: nobody sleeps for long, and it is known that somebody had to wait."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waiting = threading.Event()

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if seconds:
            self.waiting.set()
            threading.Event().wait(0.001)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(leases, "time", fake)
    return fake


@pytest.mark.parametrize("where", ["no locks", "memory"], indirect=True)
def test_changes_wait_for_each_other(where: Place, clock: Clock) -> None:
    order: list[str] = []

    def change() -> None:
        with exclusive_change(where):
            order.append("second")

    thread = threading.Thread(target=change)
    with exclusive_change(where):
        thread.start()
        assert clock.waiting.wait(10)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


class Stalled:
    """A place of somebody who takes long to say that the lease is theirs."""

    def __init__(self, real: Place, meanwhile: Callable[[], object]) -> None:
        self._real, self._meanwhile = real, meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, name: str, content: bytes) -> None:
        if b'"held": true' in content:
            self._meanwhile()
        self._real.write(name, content)


def test_two_that_stall_do_not_both_hold_it(clock: Clock) -> None:
    where = open_place(f"memory://{secrets.token_hex(8)}")
    with contextlib.ExitStack() as second:

        def meanwhile() -> None:
            clock.now = 0.0  # of a machine whose clock is slow
            second.enter_context(lease(where, "a", settle_s=0))

        first: Any = Stalled(where, meanwhile)
        with pytest.raises(AlreadyPublishing), lease(first, "a", settle_s=0):
            raise AssertionError
        assert len(where.list_names("leases/a")) == 1


def test_a_lease_is_as_old_as_the_store_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine believes that the time is."""
    where = open_place(f"memory://{secrets.token_hex(8)}")
    where.write("leases/a/0", b'{"boot": "of another machine", "held": true}')
    clock = Clock()
    clock.now = 10**10
    monkeypatch.setattr(leases, "time", clock)
    with pytest.raises(AlreadyPublishing), lease(where, "a", settle_s=0):
        raise AssertionError
    monkeypatch.setattr(leases, "LOST_S", -1.0)
    with lease(where, "a", settle_s=0):
        assert len(where.list_names("leases/a")) == 1
