"""Short scripts in real processes with the probe in them, and the journals they leave."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.journal.reader import Journal, read_journals
from headway.launch.attempt import BOOT

Probed = Callable[..., list[Journal]]
os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # torch 2.13 may hang without it


def probe_env(folder: Path, *unset: str, **more: str) -> dict[str, str]:
    """The environment of a script with the probe in it, which writes to that folder."""
    base = {k: v for k, v in os.environ.items() if not k.startswith(("HEADWAY", *unset))}
    return {
        **base,
        "PYTHONPATH": str(BOOT),
        "HEADWAY_DIR": str(folder),
        "HEADWAY_LAUNCH": "test",
        "HEADWAY_STRICT": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }


@pytest.fixture
def probed(tmp_path: Path) -> Probed:
    """Run a script with the probe; returns the journals of all its processes."""

    def run(
        script: str,
        *,
        python: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        code: int = 0,
    ) -> list[Journal]:
        folder = tmp_path / "journal"
        folder.mkdir(exist_ok=True)
        (tmp_path / "script.py").write_text(script)
        done = subprocess.run(
            [sys.executable, *python, str(tmp_path / "script.py")],
            cwd=tmp_path,
            env=probe_env(folder, **(env or {})),
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == code, done.stderr
        journals, problems = read_journals(str(folder))
        assert not problems
        return journals

    return run


def names(journal: Journal) -> list[str]:
    return [span.name for span in journal.spans]


def steps(journal: Journal) -> int:
    return journal.windows[-1].last if journal.windows else 0
