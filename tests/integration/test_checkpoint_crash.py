"""kill -9 of trainers, of writers, or of all: the newest state comes back, and nothing is left."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.integration.checkpointed.server import ask
from tests.support import examples

# What the first rank had done last when somebody was killed.
MOMENTS = ("born", "restoring", "restored", "step", "saving", "saved", "closing")
WHO = ("trainers", "one", "writers", "writer", "all")


@pytest.mark.timeout(110)
def test_killed_at_any_instant(tmp_path: Path) -> None:
    kills = examples(80)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path  # it syncs faster
    with tempfile.TemporaryDirectory(prefix="headway-", dir=memory) as folder:
        found = ask("crash:trials", folder=folder, seed=7, kills=kills, worlds=[1, 2, 1, 4, 1])
    assert found["kills"] == kills
    assert found["restored from disk"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_killed_a_thousand_times(tmp_path: Path) -> None:
    found = ask("crash:trials", folder=str(tmp_path), seed=1, kills=1000, worlds=[1, 2, 1, 4])
    assert found["kills"] == 1000
    for moment in MOMENTS:
        assert found[f"killed when {moment}"], found
    for who in WHO:
        assert found[f"killed: {who}"], found
    for source in ("disk", "memory", "nothing"):
        assert found[f"restored from {source}"], found
    for left in (".draft", ".new", ".trash"):
        assert found[f"left behind: {left}"], found
