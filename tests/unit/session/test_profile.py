"""Profiles on disk: whole, shared, and in every bad state."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError, NewerSchema
from headway.session.profile import (
    DAMAGED_SUFFIX,
    Baseline,
    DisabledBooster,
    JobProfile,
    ProfileStore,
    to_dict,
)
from tests.support import has_code

FULL = JobProfile(
    job="train-1",
    words=("train.py", "--lr", "1"),
    runs=3,
    last_run="train-3",
    off={
        "async_save": DisabledBooster(why="no room", versions="headway 1"),
        "publish": DisabledBooster(why="x", versions="", of="abc"),
    },
    measured={"torch 2, CPU, 2 rank(s)": Baseline(compile_s=8.0, save_s=0.5)},
    refused=1,
    silence_s=2.5,
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    shelf = ProfileStore(tmp_path / "runs")
    assert shelf.update("train-1", lambda known: FULL) == FULL
    assert shelf.read("train-1") == shelf.read_strict("train-1") == FULL
    assert shelf.jobs() == ["train-1"]
    shelf.forget("train-1")
    assert shelf.jobs() == [] and shelf.read("train-1") == JobProfile(job="train-1")


def test_runs_that_end_together_lose_nothing(tmp_path: Path) -> None:
    def run() -> None:
        for _ in range(20):
            ProfileStore(tmp_path).update("j", lambda known: replace(known, runs=known.runs + 1))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ProfileStore(tmp_path).read("j").runs == 80


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": 1}', b'{"schema": "1", "job": 2}', b"[" * 99_999],
)
def test_a_damaged_one_is_set_aside_with_a_note(tmp_path: Path, content: bytes) -> None:
    lines: list[str] = []
    shelf = ProfileStore(tmp_path, lines.append)
    shelf.root.mkdir()
    shelf.path("j").write_bytes(content)
    with pytest.raises(HeadwayError, check=has_code("profile-damaged")):
        shelf.read_strict("j")
    assert shelf.read("j") == JobProfile(job="j")
    (note,) = lines
    assert note.endswith(" [profile-set-aside]")
    assert (shelf.root / f"j.json{DAMAGED_SUFFIX}").read_bytes() == content
    assert shelf.update("j", lambda known: replace(known, runs=1)) == JobProfile(job="j", runs=1)


def test_a_newer_one_is_neither_used_nor_written(tmp_path: Path) -> None:
    lines: list[str] = []
    shelf = ProfileStore(tmp_path, lines.append)
    shelf.root.mkdir()
    content = json.dumps({**to_dict(FULL), "schema": 99})
    shelf.path("j").write_text(content)
    assert shelf.read("j") == JobProfile(job="j")
    assert shelf.update("j", lambda known: FULL) is None
    assert shelf.path("j").read_text() == content
    assert lines[0].endswith(" [profile-newer-schema]")
    with pytest.raises(NewerSchema, check=has_code("newer-schema")):
        shelf.read_strict("j")


def test_a_folder_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / ".auto").write_text("a file is in its place")
    shelf = ProfileStore(tmp_path, lines.append)
    assert shelf.read("j") == JobProfile(job="j")
    assert shelf.update("j", lambda known: FULL) is None
    assert lines[-1].endswith(" [profile-unwritable]")


@pytest.mark.parametrize("value", [-1, "2", None, True, float("nan"), 1e99, []])
def test_what_is_no_time_is_not_known(tmp_path: Path, value: Any) -> None:
    shelf = ProfileStore(tmp_path)
    shelf.root.mkdir()
    content = to_dict(FULL)
    content["silence_s"] = value
    content["measured"]["torch 2, CPU, 2 rank(s)"]["save_s"] = value
    shelf.path("j").write_text(json.dumps(content))
    profile = shelf.read("j")
    assert profile.silence_s is None
    assert profile.measured["torch 2, CPU, 2 rank(s)"] == Baseline(compile_s=8.0)
