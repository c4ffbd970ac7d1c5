"""A step compiled ahead in a real job, and what its report says of the first real batch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(200)

JOB = r"""
import os
import sys
import torch
from headway import startup

torch.manual_seed(0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        self.out = torch.nn.Linear(8, 1)

    def forward(self, ids):
        return self.out(self.table(ids)).square().mean()


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model, backend="aot_eager")


def step(ids):
    compiled(ids).backward()
    optimizer.step()
    optimizer.zero_grad()


fast, *real = map(int, sys.argv[1:])
stages = startup.Stages()
stages.add(lambda: torch.zeros(fast, dtype=torch.int64), "preproc_creation")


@stages.stage()
def ahead(preproc_creation):
    ready = startup.CompileAhead(step, modules=[model], optimizers=[optimizer])
    batch = startup.fast_batch(sample=preproc_creation)
    if "MARKED" in os.environ:
        torch._dynamo.mark_dynamic(batch, 0)
    ready.start(batch).wait()


stages.run()
for rows in real:
    step(torch.zeros(rows, dtype=torch.int64))
"""


def report(folder: Path, *rows: int, **env: str) -> tuple[str, str, dict[str, object]]:
    """Terminal, page and JSON of a run of the job: a fast batch, then real ones of these rows."""
    (folder / "job.py").write_text(JOB)
    base = {k: v for k, v in os.environ.items() if not k.startswith(("HEADWAY", "TORCH"))}

    def headway(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "headway", *words],
            cwd=folder,
            env={**base, "OMP_NUM_THREADS": "1", "HEADWAY_STRICT": "1", **env},
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    headway("run", "-o", "run", "--", sys.executable, "job.py", *map(str, rows))
    page = (folder / "run" / "report.html").read_text()
    return headway("report", "run"), page, json.loads(headway("report", "run", "--json"))


def test_a_real_batch_of_another_size(tmp_path: Path) -> None:
    text, page, told = report(tmp_path, 16, 24, 24, 40)
    said = re.search(
        r"compiled ahead +the first real batch compiled again, [\d.]+ m?s: "
        r"L\['ids'\]\.size\(\)\[0\] was 16 on the fast batch and is 24\n(.*)\n(.*)\n",
        text,
    )
    assert said is not None, text
    assert said[1].rstrip().endswith("forward")
    assert said[2].endswith("on the fast batch: torch._dynamo.mark_dynamic(ids, 0)")
    assert text.count("compiled again") == 1  # sizes that come later are dynamic by then
    assert "was 16 on the fast batch and is 24" in page
    recompiles = told["compile"]["recompiles"]  # type: ignore[index]
    assert [one["missed_ahead"] for one in recompiles] == [True]


def test_a_real_batch_that_hits(tmp_path: Path) -> None:
    text, page, told = report(tmp_path, 16, 16, 24)
    assert "compiled again" not in text + page
    recompiles = told["compile"]["recompiles"]  # type: ignore[index]
    assert [one["missed_ahead"] for one in recompiles] == [False]  # by the second one
    assert "Start-up stages (2)" in text
    assert 'id="stages"' in page


def test_the_cure_cures(tmp_path: Path) -> None:
    text, _, told = report(tmp_path, 16, 24, 40, MARKED="1")
    assert "compiled again" not in text
    assert told["compile"]["recompiles"] == []  # type: ignore[index]
