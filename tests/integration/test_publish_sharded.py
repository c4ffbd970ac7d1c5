"""Checkpoints that two ranks have written with torch's DCP, read tensor by tensor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headway.errors import CheckpointDamaged
from headway.publish.anchor import find_anchor
from tests.support import has_code, lazy

torch = lazy("torch")
source = lazy("headway.publish.source:open_source")
whole = lazy("headway.publish.source:read_tensor")

SCRIPT = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
rows = torch.arange(51 * 8, dtype=torch.float32).view(51, 8)
given = {
    "rows": distribute_tensor(rows, mesh, [Shard(0)]),
    "columns": distribute_tensor(rows.to(torch.bfloat16), mesh, [Shard(1)]),
    "all": distribute_tensor(rows, mesh, [Replicate()]),
    "turned": rows.t(),
    "number": torch.tensor(7.0),
    "none": torch.empty(0, 3),
}
dcp.save({"model": given, "step": 3}, checkpoint_id=sys.argv[1])
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sharded")
    (path / "script.py").write_text(SCRIPT)
    run = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [sys.executable, *run, str(path / "script.py"), str(path / "anchor")]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    return path / "anchor"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_every_tensor_comes_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("read by torch, which takes the memory twice")

    monkeypatch.setattr("headway.publish.source._DcpSource._as_torch_does", never)
    given = source(find_anchor(str(folder)))
    rows = torch.arange(51 * 8, dtype=torch.float32).view(51, 8)
    assert torch.equal(whole(given, "model.rows"), rows)
    assert torch.equal(whole(given, "model.columns"), rows.to(torch.bfloat16))
    assert torch.equal(whole(given, "model.all"), rows)
    assert torch.equal(whole(given, "model.turned"), rows.t())
    assert whole(given, "model.number") == 7 and whole(given, "model.none").shape == (0, 3)
    wide = torch.zeros(51, 8, dtype=torch.float64)
    given.read("model.columns", wide)
    assert torch.equal(wide, rows.to(torch.bfloat16).double())


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_a_changed_byte_in_either_shard(folder: Path) -> None:
    shards = sorted(folder.glob("*.distcp"))
    assert len(shards) == 2
    parts = torch.arange(51 * 8, dtype=torch.float32).view(51, 8).split(26)
    for path, part in zip(shards, parts, strict=True):
        content = path.read_bytes()
        at = content.find(part.numpy().tobytes())
        assert at > 0
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(CheckpointDamaged, check=has_code("checksum-mismatch")) as error:
            whole(source(find_anchor(str(folder))), "model.rows")
        assert path.name in str(error.value)
        path.write_bytes(content)
