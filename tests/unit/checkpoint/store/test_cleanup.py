"""What nobody needs goes; what somebody writes or may go on from stays."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from headway.checkpoint.format.rank_file import write_part
from headway.checkpoint.store.cleanup import ABANDONED_S, pin, sweep
from headway.checkpoint.store.commit import Draft, commit
from headway.checkpoint.store.store import Store
from headway.storage.place import open_place
from tests.unit.checkpoint.store.small_saves import items, metadata, save

KILLED = """
import os, sys
from headway.checkpoint.store.commit import Draft
from headway.checkpoint.format.rank_file import write_part
from tests.unit.checkpoint.store.small_saves import items

draft = Draft(sys.argv[1], 5, "dead", 1).__enter__()
write_part(draft.folder, 0, items("dead", 0))
os.kill(os.getpid(), 9)
"""


@pytest.fixture(params=["folder", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return str(tmp_path) if request.param == "folder" else f"memory://{secrets.token_hex(8)}/store"


def test_a_draft_that_is_written_stays(store: str) -> None:
    with Draft(store, 5, "id", 1) as draft:
        write_part(draft.folder, 0, items("id", 0))
        assert sweep(store) == []
        assert sweep(store, now=1e12) == []
        commit(draft, metadata)
    assert sweep(store) == []
    assert [one.step for one in Store(store).checkpoints()] == [5]


@pytest.mark.timeout(60)
def test_the_draft_of_a_process_that_was_killed_goes(tmp_path: Path) -> None:
    kept = save(tmp_path, 4, "kept")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=50)
    assert done.returncode == -9
    assert ".draft-0000000005-dead" in os.listdir(tmp_path)
    (swept,) = sweep(tmp_path)
    assert swept.startswith(".trash-0000000005-")
    assert sorted(os.listdir(tmp_path)) == [".lock", "latest", "step-0000000004"]
    assert Store(tmp_path).checkpoints() == [kept]


def test_behind_a_url_the_owner_is_asked() -> None:
    url = f"memory://{secrets.token_hex(8)}/store"
    draft = Draft(url, 5, "id", 1)
    where = open_place(url)
    with draft:
        (owner,) = (name for name in where.list_names(draft.name) if name.startswith("owner-"))
        told = where.read(f"{draft.name}/{owner}")
    where.write(f"{draft.name}/__0_0.distcp", b"torn")
    assert sweep(url) == [], "nobody says who writes it: it is given time"
    where.write(f"{draft.name}/{owner}", told.replace(b'"born": "', b'"born": "1'))
    assert sweep(url) == [draft.name]
    where.write(f"{draft.name}/{owner}", told.replace(b'"boot": "', b'"boot": "elsewhere'))
    assert sweep(url) == [], "it may run on another machine"
    assert sweep(url, now=where.modified_at(draft.name) + ABANDONED_S + 1) == [draft.name]
    assert where.list_names() == []


def test_a_deletion_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    one = save(tmp_path, 5, "one")
    os.rename(one.path, tmp_path / ".trash-0000000005-ab12")
    assert sweep(tmp_path) == [".trash-0000000005-ab12"]
    assert ".trash-0000000005-ab12" not in os.listdir(tmp_path)


def test_a_replacement_that_was_cut_short_is_settled(tmp_path: Path) -> None:
    old = save(tmp_path, 5, "old")
    aside = tmp_path / ".aside-0000000005-old"
    os.rename(old.path, aside)
    assert [one.path for one in Store(tmp_path).checkpoints()] == [str(aside)], "it still counts"
    assert sweep(tmp_path) == []
    assert Store(tmp_path).checkpoints() == [old]
    new = save(tmp_path, 5, "new")
    assert aside.exists()
    assert len(sweep(tmp_path)) == 1
    assert not aside.exists()
    assert Store(tmp_path).checkpoints() == [new]


@pytest.mark.parametrize("ids", [("a", "b"), ("b", "a")])
def test_of_several_replaced_ones_the_newest_comes_back(
    ids: tuple[str, str], tmp_path: Path
) -> None:
    for save_id in ids:
        one = save(tmp_path, 5, save_id)
    os.rename(one.path, tmp_path / f".aside-0000000005-{ids[1]}")
    assert len(sweep(tmp_path)) == 1
    assert Store(tmp_path).checkpoints() == [one]


def test_what_was_replaced_stays_where_the_new_one_is_damaged(tmp_path: Path) -> None:
    save(tmp_path, 5, "old")
    new = save(tmp_path, 5, "new")
    (Path(new.path) / "manifest.json").write_bytes(b"")
    assert sweep(tmp_path) == []
    found = Store(tmp_path).latest_valid("full")
    assert found.checkpoint is not None and found.checkpoint.manifest.save_id == "old"
    assert len(found.notes) == 1


def test_what_was_replaced_stays_as_long_as_it_is_needed(tmp_path: Path) -> None:
    save(tmp_path, 5, "full")
    pinned = save(tmp_path, 6, "pinned")
    pin(tmp_path, pinned)
    delta = save(tmp_path, 7, "delta", parent="full")
    save(tmp_path, 5, "again")
    save(tmp_path, 6, "again")
    assert sweep(tmp_path) == []
    assert Store(tmp_path).verify(delta, "full") == ""
    assert (tmp_path / ".aside-0000000006-pinned").exists()


def test_what_a_commit_left_behind_goes(tmp_path: Path) -> None:
    one = save(tmp_path, 5, "one")
    for name in ("lock", "part-0.json", ".new-manifest.json-77"):
        (Path(one.path) / name).touch()
    (tmp_path / ".new-latest-77").touch()
    (tmp_path / "notes.txt").touch()
    assert sweep(tmp_path) == []
    names = [".metadata", "__0_0.distcp", "manifest.json"]
    assert sorted(os.listdir(one.path)) == names
    assert sorted(os.listdir(tmp_path)) == [".lock", "latest", "notes.txt", "step-0000000005"]


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert sweep(tmp_path / "nothing") == []
    assert not (tmp_path / "nothing").exists()
