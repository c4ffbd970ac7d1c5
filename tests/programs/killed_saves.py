"""Saves of a real framework, killed at each of their operations in turn: see tests/kills.py."""

import glob
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from tests.kills import sweep

torch.set_num_threads(1)


def transformers():
    """The save of a Trainer, which resumes by `get_last_checkpoint`; a job script lists folders."""
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerState, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    config = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    arguments = TrainingArguments(
        "out", use_cpu=True, report_to="none", save_total_limit=1, max_steps=4
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments)
    trainer.create_optimizer_and_scheduler(4)

    def save(step):
        trainer.state.global_step = step
        with torch.no_grad():
            trainer.model.transformer.wte.weight.fill_(step)
        for group in trainer.optimizer.param_groups:
            group["step"] = step
        trainer._save_checkpoint(trainer.model, None)

    def resume():
        newest = get_last_checkpoint("out")
        assert newest == max(glob.glob("out/checkpoint-*"))
        return newest

    def step_of(path):
        state = TrainerState.load_from_json(os.path.join(path, "trainer_state.json"))
        weights = load_file(os.path.join(path, "model.safetensors"))
        assert (weights["transformer.wte.weight"] == state.global_step).all()
        trainer._load_optimizer_and_scheduler(path)
        trainer._load_rng_state(path)
        assert trainer.optimizer.param_groups[0]["step"] == state.global_step
        return state.global_step

    return save, resume, step_of


def accelerate():
    """`save_state` and `load_state` with automatic naming."""
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    project = ProjectConfiguration("out", automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=True, project_config=project)
    net = torch.nn.Linear(3, 3)
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))

    def save(step):
        project.iteration = step
        with torch.no_grad():
            net.weight.fill_(step)
        optimizer.param_groups[0]["lr"] = step
        accelerator.save_state()

    def resume():
        accelerator.load_state()
        names = os.listdir("out/checkpoints")
        return max(names, key=lambda name: int(name.split("_")[1]))

    def step_of(name):
        step = int(name.split("_")[1])
        assert (net.weight == step).all() and optimizer.param_groups[0]["lr"] == step
        return step

    return save, resume, step_of


def lightning():
    """A checkpoint of one file."""
    import lightning.pytorch as pl
    from lightning.pytorch.demos.boring_classes import BoringModel

    model = BoringModel()
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, max_steps=1, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, default_root_dir="logs",
    )  # fmt: skip
    trainer.fit(model)

    def save(step):
        with torch.no_grad():
            model.layer.weight.fill_(step)
        trainer.save_checkpoint(f"out/step={step}.ckpt")
        if step > 1 and os.path.exists(f"out/step={step - 2}.ckpt"):
            trainer.strategy.remove_checkpoint(f"out/step={step - 2}.ckpt")

    def resume():
        return max(glob.glob("out/*"), key=lambda path: int(re.search(r"step=(\d+)", path)[1]))

    def step_of(path):
        found = torch.load(path, weights_only=True)
        weight = found["state_dict"]["layer.weight"]
        assert (weight == weight[0, 0]).all() and found["optimizer_states"]
        return int(weight[0, 0])

    return save, resume, step_of


if __name__ == "__main__":
    print("kills", sweep(*globals()[sys.argv[1]]()))
