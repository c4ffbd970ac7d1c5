"""transformers.Trainer under torchrun, resumed from the checkpoint it finds."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.programs.bench import BIN, HERE, Bench, Kill, same, slow, well

pytestmark = slow("transformers", limit_s=600)

STEPS, EVERY = 240, 40
TORCHRUN = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]


def program(root: Path) -> Bench:
    return Bench(root, [*TORCHRUN, str(HERE / "transformers_trainer.py")], leaves=["out"])


def test_transformers(tmp_path: Path) -> None:
    bench = program(tmp_path)
    bench.plainly()
    plain = weights(tmp_path)
    shutil.rmtree(tmp_path / "out" / f"checkpoint-{STEPS}")
    bench.plainly(resumes=True)  # which older versions of transformers cannot on several CPU ranks
    assert same(weights(tmp_path), plain)
    done = bench.auto(Kill(1, 50, EVERY), Kill(0, 90, EVERY))
    well(bench, done, kills=[1, 0], steps=STEPS, every=EVERY)
    assert same(weights(tmp_path), plain)
    again = bench.auto(Kill(0, 130, EVERY))
    well(bench, again, kills=[0], steps=STEPS, every=EVERY)
    assert same(weights(tmp_path), plain)


def weights(root: Path) -> object:
    import torch
    from safetensors.torch import load_file

    last = root / "out" / f"checkpoint-{STEPS}"
    optimizer = torch.load(last / "optimizer.pt", weights_only=True)
    return load_file(root / "out" / "model" / "model.safetensors"), optimizer
