"""`accelerate launch`: a loop with save_state, resumed by load_state."""

from __future__ import annotations

from pathlib import Path

from tests.programs.bench import BIN, HERE, Bench, Kill, same, slow, well

pytestmark = slow("accelerate", limit_s=600)

STEPS, EVERY = 240, 30
LAUNCH = [str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2"]
LAUNCH += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]


def program(root: Path) -> Bench:
    return Bench(root, [*LAUNCH, str(HERE / "accelerate_loop.py")], leaves=["out"])


def test_accelerate(tmp_path: Path) -> None:
    bench = program(tmp_path)
    bench.plainly()
    plain = weights(tmp_path)
    done = bench.auto(Kill(0, 40, EVERY), Kill(1, 70, EVERY))
    well(bench, done, kills=[0, 1], steps=STEPS, every=EVERY)
    assert same(weights(tmp_path), plain)
    again = bench.auto(Kill(1, 100, EVERY))
    well(bench, again, kills=[1], steps=STEPS, every=EVERY)
    assert same(weights(tmp_path), plain)


def weights(root: Path) -> object:
    import torch
    from safetensors.torch import load_file

    last = root / "out" / "checkpoints" / f"checkpoint_{STEPS // EVERY - 1}"
    optimizer = torch.load(last / "optimizer.bin", weights_only=True)
    return load_file(root / "out" / "model" / "model.safetensors"), optimizer
