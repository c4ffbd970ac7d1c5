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
from headway.checkpoint.store.store import Store
from headway.checkpoint.writer import process, protocol
from headway.checkpoint.writer.process import Writer, _ready
from headway.checkpoint.writer.tasks import WriteJob, error_outcome
from headway.errors import SaveFailed, UsageError
from tests.support import has_code
from tests.unit.checkpoint.store.small_saves import metadata

pytestmark = pytest.mark.timeout(30)
VALUE = base64.b64encode(b"a value").decode()


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    """With one image; what a checkpoint holds is described without torch."""
    monkeypatch.setattr("headway.checkpoint.writer.tasks._metadata_builder", lambda job: metadata)
    with socket.socket() as unused:
        found = Writer(unused, idle_s=1.0)
        found.client_pid = os.getpid()
        found.buffer_set.reserve(1, 4096)
        found.layouts["plan"] = {"tensors": [["w", "", 0, 64]], "values": ["v"], "metadata": ""}
        yield found
        found.buffer_set.close()


def ask(writer: Writer, store: Path, step: int, **more: Any) -> None:
    """A rank says that an image is whole."""
    job = {"store": str(store), "save_id": f"s{step}", "rank": 0, "world": 1, "extra": {}}
    job |= {"keep": None, "anchor": False, "rate": None, "parent": f"s{step - 1}"}
    changed = more.pop("changed", [])
    ids = os.memfd_create("rows")
    os.write(ids, bytes(8) + (1).to_bytes(8, "little"))
    writer._filling({"image": 0, "step": step})
    told = {"image": 0, "good": True, "write": True, "layout": "plan", "values": [VALUE]}
    writer._buffer_ready({**told, "job": {**job, **more}, "changed": changed, "handles": [ids]})


def work(writer: Writer) -> None:
    """What its two threads do, once."""
    asked = writer.jobs.get()
    try:
        writer._write(asked, time.monotonic())
    except SaveFailed as error:
        writer._record_outcome(asked.job, asked.client_pid, 0.0, error_outcome(error))
    writer.busy.remove(asked.image)
    settle(writer)


def settle(writer: Writer) -> None:
    for number, one in reversed(list(enumerate(list(writer.pending)))):
        if _ready(one):
            writer._commit(one, writer.pending[:number])
            break
    for one in list(writer.pending):
        if given := writer._stale_reason(one):
            writer._abort_pending(one, given)


def codes(writer: Writer) -> list[str]:
    return [outcome.get("code", "") for outcome in writer._status()["outcomes"]]


def given_up(writer: Writer) -> list[tuple[int, str]]:
    """Which rank did it, and why."""
    outcomes = writer._status()["outcomes"]
    told = [one["fields"] for one in outcomes if one.get("code") == "save-given-up"]
    return [(fields["rank"], fields["cause"]) for fields in told]


def rows(writer: Writer, *, count: int = 4) -> list[dict[str, Any]]:
    return [{"tensors": [0], "count": count, "ids": 1, "at": 8}]


def kinds(store: Path) -> list[str]:
    return [one.manifest.kind for one in Store(store).checkpoints()]


def test_an_image_becomes_a_checkpoint(writer: Writer, tmp_path: Path) -> None:
    ask(writer, tmp_path, 1)
    assert writer._status()["busy"] == [0]
    work(writer)
    status = writer._status()
    assert (status["busy"], status["waiting"], codes(writer)) == ([], [], [""])
    assert [one.step for one in Store(tmp_path).checkpoints()] == [1]


def test_what_cannot_be_written_is_told_and_leaves_nothing_open(
    writer: Writer, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    assert writer.buffer_set.buffers[0].view  # mapped once, and for good
    before = len(os.listdir("/proc/self/fd"))
    for step in (1, 2):
        ask(writer, tmp_path / "store", step)
        os.rmdir(tmp_path / "store")
        (tmp_path / "store").write_text("a file")
        with pytest.raises(UsageError, check=has_code("store-is-a-file")):
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
    assert codes(writer) == ["", "store-failed", ""]
    assert kinds(tmp_path) == ["full", "full"]


def _no_space(job: WriteJob, draft: Draft, image: memoryview, ids: int, moved: Any) -> int:
    os.close(ids)
    raise SaveFailed("the disk is full", code="store-failed")


def test_a_delta_whose_base_has_gone_is_no_checkpoint(writer: Writer, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    ask(writer, tmp_path, 1)
    work(writer)
    (one,) = Store(tmp_path).checkpoints()
    os.rename(one.path, tmp_path / "elsewhere")
    ask(writer, tmp_path, 2, changed=rows(writer))
    work(writer)
    assert codes(writer)[1] == "parent-missing"
    assert writer._status()["outcomes"][1]["fields"] == {"parent": "s1"}
    assert kinds(tmp_path) == []
    ask(writer, tmp_path, 3, changed=rows(writer))
    work(writer)
    assert kinds(tmp_path) == ["full"]


def test_a_draft_that_was_taken_away_is_given_up(writer: Writer, tmp_path: Path) -> None:
    ask(writer, tmp_path, 1, world=2)
    work(writer)
    assert writer._status()["waiting"] == [1]
    shutil.rmtree(writer.pending[0].draft.folder)
    settle(writer)
    assert given_up(writer) == [(0, "files-removed")]
    assert not writer._has_work()


def test_a_rank_does_not_hear_of_the_saves_of_another(writer: Writer, tmp_path: Path) -> None:
    ask(writer, tmp_path, 1, world=2)
    work(writer)
    writer.client_pid += 1  # the first one was killed, and another process is there
    assert writer._status()["waiting"] == []
    ask(writer, tmp_path, 2)
    work(writer)
    assert codes(writer) == [""], "nothing of step 1, which was given up"
    assert not writer._has_work()


def test_the_end_does_not_wait_long_for_ranks_that_are_gone(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(writer, tmp_path, 1, world=2)
    work(writer)
    writer.client_pid += 1
    writer.ending_since = time.monotonic()
    settle(writer)
    assert writer._has_work()
    monkeypatch.setattr(process, "FIRST_MESSAGE_S", -1.0)
    settle(writer)
    assert not writer._has_work()


def test_a_rank_that_is_killed_while_it_ends_does_not_keep_the_writer(
    writer: Writer, tmp_path: Path
) -> None:
    ask(writer, tmp_path, 1, world=2)
    work(writer)
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(protocol.PeerClosed):
            writer._end({"from": ours})
    assert writer.ending_since is None and writer._has_work()


def test_another_rank_waits_until_it_is_settled(writer: Writer, tmp_path: Path) -> None:
    ask(writer, tmp_path, 1, rank=1, world=2)
    work(writer)
    assert writer._status()["waiting"] == [1]
    shutil.rmtree(writer.pending[0].draft.folder)
    settle(writer)
    assert given_up(writer) == [(0, "")]
    with contextlib.suppress(FileNotFoundError):
        assert not any(name.startswith(".draft") for name in os.listdir(tmp_path))


def test_looks_become_rarer_and_an_object_store_is_asked_less_often() -> None:
    def looks(seconds: float, *, local: bool) -> int:
        at, count = 0.0, 0
        while at < seconds:
            at += process.pause_s(at, local=local)
            count += 1
        return count

    assert process.pause_s(0.0, local=True) == process.COMMIT_POLL_S
    assert looks(60, local=True) < 400 and looks(60, local=False) < 35
    assert process.pause_s(600.0, local=False) <= 5.0


def test_what_is_not_due_is_not_looked_at(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One turn of the thread that commits; the part of rank 1 does not come."""
    ask(writer, tmp_path, 1, world=2)
    asked = writer.jobs.get()
    writer._write(asked, time.monotonic())
    looks = []
    monkeypatch.setattr(process, "_ready", lambda one: looks.append(one))
    for now in (100.0, 100.001, 110.0):
        writer._check_pending(now)
    assert len(looks) == 2 and writer.pending[0].next_check > 110.0
    writer.pending[0].stack.close()


def test_only_the_layouts_of_images_are_kept(writer: Writer, tmp_path: Path) -> None:
    ask(writer, tmp_path, 1)
    for number in range(5):
        writer._layout({"id": f"plan-{number}", "layout": {}})
    assert list(writer._full_status()["layouts"]) == ["plan", "plan-4"]


def test_a_store_that_takes_nothing_is_told_of(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert writer._status()["stalled_s"] == 0
    ask(writer, tmp_path, 1)
    monkeypatch.setattr(writer, "_progress_at", time.monotonic() - 50)
    assert 50 <= writer._status()["stalled_s"] < 80
    work(writer)
    assert writer._status()["stalled_s"] == 0


def test_a_new_writer_takes_away_what_killed_ones_have_left(writer: Writer, tmp_path: Path) -> None:
    with Draft(tmp_path, 1, "killed", 1) as draft:
        pass  # nobody holds it any more
    assert os.path.isdir(draft.folder)
    ask(writer, tmp_path, 2)
    work(writer)
    assert not os.path.isdir(draft.folder)
