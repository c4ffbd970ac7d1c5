"""Workers that are killed: what serves is whole, and what they held is free."""

from __future__ import annotations

import random
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from headway.publish.store import SnapshotStore
from headway.storage import process_identity
from headway.storage.lease import AlreadyPublishing, lease
from headway.storage.place import open_place
from tests.unit.publish.snapshots import content, only_what_is_needed, publish

KILLED = """
import os, sys
from headway.publish.store import SnapshotStore
from headway.storage import disk
from tests.unit.publish.snapshots import publish
left = int(sys.argv[2])
def counted(known):
    def call(*args, **more):
        global left
        if left == 0:
            os.kill(os.getpid(), 9)
        left -= 1
        return known(*args, **more)
    return call
for name in ("create", "write_at", "sync", "sync_folder", "rename", "lock"):
    setattr(disk, name, counted(getattr(disk, name)))
publish(SnapshotStore(sys.argv[1]), sys.argv[3])
"""


def test_killed_for_real(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "s")
    publish(store, "0")
    chance = random.Random(5)
    ends = set()
    for life in range(1, 6):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "s"), str(chance.randrange(40))]
        done = subprocess.run([*command, str(life)], stderr=subprocess.PIPE, timeout=60)
        assert done.returncode in (0, -9), done.stderr
        ends.add(done.returncode)
        latest = store.snapshot()
        key = latest.manifest.anchor["key"]
        assert content(store, latest, tmp_path) == [f"weights of {key}", "code"]
        store.sweep()
        only_what_is_needed(store)
    assert ends == {0, -9}


HOLDER = """
import sys, time
from headway.storage.lease import lease
from headway.storage.place import open_place
with lease(open_place(sys.argv[1]), "a"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_holder(tmp_path: Path) -> None:
    (tmp_path / "leases").mkdir()
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(AlreadyPublishing), lease(open_place(tmp_path), "a"):
            raise AssertionError
        holder.kill()
        holder.wait()
    with lease(open_place(tmp_path), "a"):
        pass


def test_a_killed_holder_where_there_are_no_locks() -> None:
    where = open_place(f"memory://{secrets.token_hex(8)}")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = process_identity.identify_process(child.pid)[:-1] + b', "held": true}'
    where.write("leases/a/0", record)
    with pytest.raises(AlreadyPublishing), lease(where, "a", settle_s=0):
        raise AssertionError
    child.kill()
    child.communicate()
    with lease(where, "a", settle_s=0):
        assert len(where.list_names("leases/a")) == 1
