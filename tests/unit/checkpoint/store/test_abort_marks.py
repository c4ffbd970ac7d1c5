"""The mark of a save that was given up: who reads it, and when it goes."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from headway.checkpoint.store import layout
from headway.checkpoint.store.cleanup import ABANDONED_S, sweep
from headway.checkpoint.store.commit import AbortMark, Draft, find_abort_mark, write_abort_mark
from headway.checkpoint.store.store import Store
from headway.storage.place import open_place
from tests.unit.checkpoint.store.small_saves import save

GIVEN = AbortMark(1, "the disk is full")
DEAD = """
import os, sys
from headway.checkpoint.store.commit import AbortMark, Draft, write_abort_mark

write_abort_mark(Draft(sys.argv[1], 5, "dead", 2), AbortMark(0, "why"))
os.kill(os.getpid(), 9)
"""


@pytest.fixture(params=["folder", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "folder" else f"memory://{secrets.token_hex(8)}/store"


def test_a_mark_is_read_where_there_is_no_draft(store: str) -> None:
    draft = Draft(store, 5, "id", 2)
    assert find_abort_mark(draft) is None
    assert write_abort_mark(draft, GIVEN)
    assert find_abort_mark(draft) == find_abort_mark(Draft(store, 5, "id", 2)) == GIVEN
    assert find_abort_mark(Draft(store, 5, "other", 2)) is None
    assert Store(store).scan() == ([], [])
    assert write_abort_mark(draft, AbortMark(0, "another reason")), "rank 0 has the last word"
    assert find_abort_mark(draft) == AbortMark(0, "another reason")


def test_half_a_mark_is_none(store: str) -> None:
    draft = Draft(store, 5, "id", 2)
    draft.place.make_folder()
    draft.place.write(layout.abort_mark_name(5, "id"), b'{"rank": 1, "wh')
    assert find_abort_mark(draft) is None
    sweep(store)
    assert layout.abort_mark_name(5, "id") in open_place(store).list_names()
    sweep(store, now=1e12)
    assert layout.abort_mark_name(5, "id") not in open_place(store).list_names()


def test_ones_own_go_with_the_next_checkpoint(store: str) -> None:
    write_abort_mark(Draft(store, 5, "id", 2), GIVEN)
    kept = save(store, 6, "next")
    sweep(store)
    assert [name for name in open_place(store).list_names() if "given" in name] == []
    assert Store(store).checkpoints() == [kept]


def test_those_of_somebody_who_lives_or_cannot_be_asked_stay(store: str) -> None:
    """The first process of this machine is another one, and lives."""
    draft = Draft(store, 5, "id", 2)
    write_abort_mark(draft, GIVEN)
    name = layout.abort_mark_name(5, "id")
    told = json.loads(draft.place.read(name))
    born = Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
    for owner in ({"pid": 1, "born": born}, {"boot": "of another machine"}):
        draft.place.write(name, json.dumps({**told, "owner": told["owner"] | owner}).encode())
        sweep(store)
        assert find_abort_mark(draft) == GIVEN
    sweep(store, now=draft.place.modified_at(name) + ABANDONED_S + 1)
    assert find_abort_mark(draft) is None


@pytest.mark.timeout(60)
def test_one_of_a_process_that_was_killed_is_whole_and_goes(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DEAD, str(tmp_path)], timeout=50)
    assert done.returncode == -9
    assert find_abort_mark(Draft(tmp_path, 5, "dead", 2)) == AbortMark(0, "why")
    sweep(tmp_path)
    assert os.listdir(tmp_path) == [".lock"]


def test_a_store_that_takes_nothing_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    draft = Draft(tmp_path / "store", 5, "id", 2)
    (tmp_path / "store").rmdir()
    (tmp_path / "store").write_text("a file")
    assert not write_abort_mark(draft, GIVEN)
    assert find_abort_mark(draft) is None
