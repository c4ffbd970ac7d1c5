"""Real frameworks under `--async-save`: a kill at any operation of a save leaves a checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs.bench import HERE, slow
from tests.support import probe_env


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=slow(name, limit_s=300))
        for name in ("transformers", "accelerate", "lightning")
    ],
)
def test_a_kill_at_any_operation_leaves_a_whole_checkpoint(tmp_path: Path, name: str) -> None:
    (tmp_path / "journal").mkdir()
    done = subprocess.run(
        [sys.executable, str(HERE / "killed_saves.py"), name],
        cwd=tmp_path,
        env=probe_env(tmp_path / "journal", HEADWAY_PROBE_ASYNC_SAVE="1", HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert int(done.stdout.split()[-1]) > 5
