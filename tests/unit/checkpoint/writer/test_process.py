"""What a writer does with images, step by step and without its threads."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.store.commit import Draft
from headway.checkpoint.store.read import Store
from headway.checkpoint.writer import process, wire
from headway.checkpoint.writer.process import Writer, _ready
from headway.checkpoint.writer.write import Job
from headway.errors import SaveFailed
from tests.unit.checkpoint.store.made import metadata

pytestmark = pytest.mark.timeout(30)
VALUE = base64.b64encode(b"a value").decode()


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    """With one image; what a checkpoint holds is described without torch."""
    monkeypatch.setattr("headway.checkpoint.writer.write._described", lambda job: metadata)
    with socket.socket() as unused:
        found = Writer(unused, linger_s=1.0)
        found.asker = os.getpid()
        found.images.reserve(1, 4096)
        found.layouts["plan"] = {"tensors": [["w", "", 0, 64]], "values": ["v"], "metadata": ""}
        yield found
        found.images.close()


def ask(writer: Writer, store: Path, step: int, **more: Any) -> None:
    """A rank says that an image is whole."""
    job = {"store": str(store), "save_id": f"s{step}", "rank": 0, "world": 1, "extra": {}}
    job |= {"keep": None, "anchor": False, "rate": None, "parent": f"s{step - 1}"}
    changed = more.pop("changed", [])
    ids = os.memfd_create("rows")
    os.write(ids, bytes(8) + (1).to_bytes(8, "little"))
    writer._filling({"image": 0, "step": step})
    told = {"image": 0, "good": True, "write": True, "layout": "plan", "values": [VALUE]}
    writer._whole({**told, "job": {**job, **more}, "changed": changed, "handles": [ids]})


def work(writer: Writer) -> None:
    """What its two threads do, once."""
    asked = writer.jobs.get()
    try:
        writer._write(asked, time.monotonic())
    except SaveFailed as error:
        writer._over(asked.job, asked.asker, 0.0, {"error": str(error)})
    writer.busy.remove(asked.image)
    settle(writer)


def settle(writer: Writer) -> None:
    for number, one in reversed(list(enumerate(list(writer.waiting)))):
        if _ready(one):
            writer._commit(one, writer.waiting[:number])
            break
    for one in list(writer.waiting):
        if given := writer._hopeless(one):
            writer._drop(one, given)


def errors(writer: Writer) -> list[str]:
    return [outcome.get("error", "") for outcome in writer._status()["outcomes"]]


def rows(writer: Writer, *, count: int = 4) -> list[dict[str, Any]]:
    return [{"tensors": [0], "count": count, "ids": 1, "at": 8}]


def kinds(store: Path) -> list[str]:
    return [one.manifest.kind for one in Store(store).checkpoints()]


def test_an_image_becomes_a_checkpoint(writer: Writer, tmp_path: Path) -> None:
    ask(writer, tmp_path, 1)
    assert writer._status()["busy"] == [0]
    work(writer)
    status = writer._status()
    assert (status["busy"], status["waiting"], errors(writer)) == ([], [], [""])
    assert [one.step for one in Store(tmp_path).checkpoints()] == [1]


def test_what_cannot_be_written_is_told_and_leaves_nothing_open(
    writer: Writer, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    assert writer.images.all[0].view  # mapped once, and for good
    before = len(os.listdir("/proc/self/fd"))
    for step in (1, 2):
        ask(writer, tmp_path / "store", step)
        os.rmdir(tmp_path / "store")
        (tmp_path / "store").write_text("a file")
        with pytest.raises(Exception, match="is a file"):
            work(writer)
        writer.busy.clear()
        (tmp_path / "store").unlink()
        (tmp_path / "store").mkdir()
    assert len(os.listdir("/proc/self/fd")) == before


def test_rows_build_on_what_is_there(writer: Writer, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    for step in (1, 2):
        ask(writer, tmp_path, step, changed=rows(writer))
        work(writer)
    assert kinds(tmp_path) == ["delta", "full"], "what is before the first one nobody knows"


def test_rows_that_build_on_a_failed_save_are_written_as_tables(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    ask(writer, tmp_path, 1)
    work(writer)
    with monkeypatch.context() as patch:
        patch.setattr(process, "write", _no_space)
        ask(writer, tmp_path, 2, changed=rows(writer))
        work(writer)
    ask(writer, tmp_path, 3, changed=rows(writer))
    work(writer)
    assert errors(writer) == ["", "the disk is full", ""]
    assert kinds(tmp_path) == ["full", "full"]


def _no_space(job: Job, draft: Draft, image: memoryview, ids: int) -> int:
    os.close(ids)
    raise SaveFailed("the disk is full")


def test_a_delta_whose_base_has_gone_is_no_checkpoint(writer: Writer, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    ask(writer, tmp_path, 1)
    work(writer)
    (one,) = Store(tmp_path).checkpoints()
    os.rename(one.path, tmp_path / "elsewhere")
    ask(writer, tmp_path, 2, changed=rows(writer))
    work(writer)
    assert "the save s1 that it builds on is gone" in errors(writer)[1]
    assert kinds(tmp_path) == []
    ask(writer, tmp_path, 3, changed=rows(writer))
    work(writer)
    assert kinds(tmp_path) == ["full"]


def test_a_draft_that_was_taken_away_is_given_up(writer: Writer, tmp_path: Path) -> None:
    ask(writer, tmp_path, 1, world=2)
    work(writer)
    assert writer._status()["waiting"] == [1]
    shutil.rmtree(writer.waiting[0].draft.folder)
    settle(writer)
    assert errors(writer) == ["the checkpoint of step 1 was given up: its files were taken away"]
    assert not writer._at_work()


def test_a_rank_does_not_hear_of_the_saves_of_another(writer: Writer, tmp_path: Path) -> None:
    ask(writer, tmp_path, 1, world=2)
    work(writer)
    writer.asker += 1  # the first one was killed, and another process is there
    assert writer._status()["waiting"] == []
    ask(writer, tmp_path, 2)
    work(writer)
    assert errors(writer) == [""], "nothing of step 1, which was given up"
    assert not writer._at_work()


def test_the_end_does_not_wait_long_for_ranks_that_are_gone(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(writer, tmp_path, 1, world=2)
    work(writer)
    writer.asker += 1
    writer.ending = time.monotonic()
    settle(writer)
    assert writer._at_work()
    monkeypatch.setattr(process, "FIRST_S", -1.0)
    settle(writer)
    assert not writer._at_work()


def test_a_rank_that_is_killed_while_it_ends_does_not_keep_the_writer(
    writer: Writer, tmp_path: Path
) -> None:
    ask(writer, tmp_path, 1, world=2)
    work(writer)
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(wire.Gone, match="the rank has gone"):
            writer._end({"from": ours})
    assert writer.ending is None and writer._at_work()


def test_another_rank_waits_until_it_is_settled(writer: Writer, tmp_path: Path) -> None:
    ask(writer, tmp_path, 1, rank=1, world=2)
    work(writer)
    assert writer._status()["waiting"] == [1]
    shutil.rmtree(writer.waiting[0].draft.folder)
    settle(writer)
    assert errors(writer) == ["the checkpoint of step 1 was given up by rank 0"]
    with contextlib.suppress(FileNotFoundError):
        assert not any(name.startswith(".draft") for name in os.listdir(tmp_path))
