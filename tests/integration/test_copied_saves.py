"""A checkpoint that is saved aside and copied, as Ray Train does it, is known when it is loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import os, signal, tempfile
import pyarrow.fs
import torch

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
first = 0
if os.path.exists("kept/state.pt"):
    state = torch.load("kept/state.pt", weights_only=True)
    net.load_state_dict(state["net"])
    first = state["step"]
for step in range(first + 1, 21):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step == 10 and not first:
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"net": net.state_dict(), "step": step}, os.path.join(folder, "state.pt"))
            os.mkdir("kept")
            local = pyarrow.fs.LocalFileSystem()
            pyarrow.fs.copy_files(folder, os.path.abspath("kept"), destination_filesystem=local)
    if step == 15 and not first:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "saves", [(), pytest.param(("--async-save",), marks=pytest.mark.slow)], ids=["plain", "async"]
)
def test_it_is_resumed_from_the_step_of_the_copy(tmp_path: Path, saves: tuple[str, ...]) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "job.py").write_text(JOB)
    headway = [sys.executable, "-m", "headway", "run", "--restarts", "2", *saves, "-o", "run", "--"]
    done = subprocess.run(
        [*headway, sys.executable, "job.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert [one["outcome"] for one in ledger["attempts"]] == ["failed", "completed"]
    assert signal.SIGKILL.name in ledger["failures"][0]["evidence"]
    assert ledger["attempts"][1]["resumed_from"] == 10
    assert ledger["steps"] == 20
    assert not ledger["notes"]
