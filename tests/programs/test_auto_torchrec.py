"""TorchRec under torchrun: sharded tables, resumed from a folder of DCP."""

from __future__ import annotations

from pathlib import Path

from tests.programs.bench import BIN, HERE, Bench, Kill, same, slow, well

pytestmark = slow("torchrec", limit_s=600)

STEPS, EVERY = 160, 20
TORCHRUN = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]


def program(root: Path) -> Bench:
    return Bench(root, [*TORCHRUN, str(HERE / "torchrec_dlrm.py")], leaves=["out"])


def test_torchrec(tmp_path: Path) -> None:
    bench = program(tmp_path)
    bench.plainly()
    plain = weights(tmp_path)
    done = bench.auto(Kill(1, 30, EVERY), Kill(0, 50, EVERY))
    well(bench, done, kills=[1, 0], steps=STEPS, every=EVERY)
    assert same(weights(tmp_path), plain)
    again = bench.auto(Kill(1, 70, EVERY))
    well(bench, again, kills=[1], steps=STEPS, every=EVERY)
    assert same(weights(tmp_path), plain)


def weights(root: Path) -> object:
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    whole = root / "whole.pt"
    dcp_to_torch_save(root / "out" / str(STEPS), whole)
    return torch.load(whole, weights_only=True)
