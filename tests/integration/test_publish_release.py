"""The pin of an anchor goes after its snapshot is committed, and never before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headway.publish.anchor import pending_anchors
from headway.publish.store import SnapshotStore
from tests.support import lazy
from tests.unit.publish.anchors import checkpoint, state

trained = lazy("tests.unit.publish.dlrm:trained")
SERVED = Path(__file__).parents[1] / "unit/publish/dlrm.py"
pytestmark = pytest.mark.timeout(120)
RECIPE = """
release = true
[model]
factory = "served:build"
[golden]
inputs = "served:golden"
[targets.safetensors]
"""
KILLED = """
import os, signal, sys
from headway.publish import store
when, commit = sys.argv.pop(), store.SnapshotStore.commit
def killed(self, *args, **more):
    if when == "after":
        commit(self, *args, **more)
    os.kill(os.getpid(), signal.SIGKILL)
store.SnapshotStore.commit = killed
from headway.cli import main
main(sys.argv[1:])
"""


def run(folder: Path, *start: str, words: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = ["publish", "checkpoints", "--recipe", "recipe.toml", "--to", "store"]
    return subprocess.run(
        [sys.executable, *start, *command, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_the_commit(when: str, tmp_path: Path) -> None:
    shutil.copy(SERVED, tmp_path / "served.py")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    anchors = tmp_path / "checkpoints"
    checkpoint(anchors, state(trained(1)), 1)
    done = run(tmp_path, "-c", KILLED, words=(when,))
    assert done.returncode == -9, done.stderr
    before = SnapshotStore(tmp_path / "store").snapshots()
    assert len(before) == (when == "after")
    assert [anchor.step for anchor in pending_anchors(str(anchors))] == [1], "it is still an anchor"
    done = run(tmp_path, "-m", "headway")
    assert done.returncode == 0, done.stderr
    assert list(pending_anchors(str(anchors))) == [], "it is released"
    assert SnapshotStore(tmp_path / "store").snapshots()[: len(before)] == before
    assert list((anchors / "claims").iterdir()) == []
    assert run(tmp_path, "-m", "headway").returncode == 0
    assert len(SnapshotStore(tmp_path / "store").snapshots()) == 1
