"""Lightning, two ranks that it launches itself, resumed by its own `--ckpt_path last`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.programs.bench import HERE, Bench, Kill, same, slow, well

pytestmark = slow("lightning", "jsonargparse", limit_s=600)

EPOCHS, STEPS = 30, 32  # in all; of an epoch


def program(root: Path) -> Bench:
    options = {
        "seed_everything": 7,
        "ckpt_path": "last",
        "trainer.accelerator": "cpu",
        "trainer.devices": 2,
        "trainer.strategy": "ddp",
        "trainer.max_epochs": EPOCHS,
        "trainer.default_root_dir": "out",
        "trainer.enable_progress_bar": "false",
        "trainer.callbacks": "ModelCheckpoint",
        "trainer.callbacks.dirpath": "out",
        "trainer.callbacks.save_last": "true",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    script = str(HERE / "lightning_cli.py")
    return Bench(root, [sys.executable, script, "fit", *words], leaves=["out"])


def test_lightning(tmp_path: Path) -> None:
    bench = program(tmp_path)
    bench.plainly()
    plain = weights(tmp_path)
    done = bench.auto(Kill(1, 150, STEPS), Kill(0, 120, STEPS))
    well(bench, done, kills=[1, 0], steps=EPOCHS * STEPS, every=STEPS)
    assert same(weights(tmp_path), plain)
    again = bench.auto(Kill(1, 100, STEPS))
    well(bench, again, kills=[1], steps=EPOCHS * STEPS, every=STEPS)
    assert same(weights(tmp_path), plain)


def weights(root: Path) -> object:
    import torch

    found = torch.load(root / "out" / "last.ckpt", weights_only=True)
    return found["state_dict"], found["optimizer_states"], found["global_step"]
