"""One holder at a time; what a killed one held is free."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from headway.checkpoint.store import disk, owners
from headway.checkpoint.store.place import Place, place
from headway.publish.lease import Taken, lease

HOLDER = """
import sys, time
from headway.checkpoint.store.place import place
from headway.publish.lease import lease
with lease(place(sys.argv[1]), "a"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["folder", "no locks", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "no locks":

        def none(*args: object, **more: object) -> int:
            raise disk.NoLocks

        monkeypatch.setattr(disk, "lock", none)
    url = f"memory://{secrets.token_hex(8)}" if request.param == "memory" else str(tmp_path)
    found = place(url)
    found.make("leases")
    return found


def test_one_at_a_time(where: Place) -> None:
    with (
        lease(where, "a", settle_s=0),
        lease(where, "b", settle_s=0),
        pytest.raises(Taken, match="another worker"),
        lease(where, "a", settle_s=0),
    ):
        raise AssertionError
    with lease(where, "a", settle_s=0):
        pass


def test_a_killed_holder(tmp_path: Path) -> None:
    (tmp_path / "leases").mkdir()
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(Taken), lease(place(tmp_path), "a"):
            raise AssertionError
        holder.kill()
        holder.wait()
    with lease(place(tmp_path), "a"):
        pass


def test_a_killed_holder_where_there_are_no_locks() -> None:
    where = place(f"memory://{secrets.token_hex(8)}")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told = owners.describe(child.pid)[:-1] + b', "held": true}'
    where.write("leases/a/0", told)
    with pytest.raises(Taken), lease(where, "a", settle_s=0):
        raise AssertionError
    child.kill()
    child.communicate()
    with lease(where, "a", settle_s=0):
        assert len(where.names("leases/a")) == 1
