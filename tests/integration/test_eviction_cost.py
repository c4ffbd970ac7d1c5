"""The eviction cost in the journal of a real job of two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.run import load
from headway.schedule.cost import from_ledger
from headway.schedule.cost_report import read_cost_report

JOB = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(30):
    optimizer.zero_grad(); model(torch.ones(1, 2)).sum().backward(); optimizer.step()
    time.sleep(0.1)
    if step in (4, 19) and dist.get_rank() == 0:
        torch.save(model.state_dict(), sys.argv[1])
    dist.barrier()
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_each_durable_checkpoint_is_a_price(tmp_path: Path) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(JOB)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    words = [sys.executable, "-m", "headway", "run", "--no-report", "-o", str(run), "--"]
    completed = subprocess.run(
        [*words, *torchrun, "--standalone", str(script), str(tmp_path / "c.pt")], timeout=170
    )
    assert completed.returncode == 0
    lines = {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (run / "journal").glob("*.jsonl")
    }
    launcher = next(event for name, event in lines.items() if name.startswith("launcher-"))
    prices = [line for line in launcher if line["ev"] == "price"]
    saves = [
        line
        for event in lines.values()
        for line in event
        if line.get("name") == "checkpoint_save" and line["ev"] in ("open", "span")
    ]
    saved = [price for price in prices if price["saved"]]
    assert {price["since"] for price in saved} == {save["t"] for save in saves}
    assert {price["accelerators"] for price in prices} == {2}
    ledger = from_ledger(load(run).ledger)
    last = read_cost_report(run, time.time())
    assert last is not None and last.accelerators == ledger.accelerators == 2
    assert last.save == pytest.approx(ledger.save, abs=0.001)
    for price in saved:
        unsaved = (price["t"] - price["since"]) / 1e9
        assert price["lost_s"] == pytest.approx(2 * (unsaved + price["recover_s"]), abs=0.01)
    later = read_cost_report(run, time.time() + 60)
    assert later is not None and later.over
