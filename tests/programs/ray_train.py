"""Ray Train in the way its documentation shows, on made-up data.

The examples that ship in the package report checkpoints, but never resume from one. This is the
shortest training that does: a function for the workers, `get_checkpoint` and `report` with a
checkpoint, and a run of one name and storage path, which Ray resumes when it is started again.
"""

import os
import sys
import tempfile

import ray
import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset


def train_func(config):
    """What each worker does."""
    torch.manual_seed(5)
    inputs = torch.randn(640, 16)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    loader = prepare_data_loader(DataLoader(data, batch_size=10, shuffle=True))
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    net = prepare_model(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    first = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
        net.module.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    for epoch in range(first, config["epochs"]):
        loader.sampler.set_epoch(epoch)
        for batch, wanted in loader:
            loss = torch.nn.functional.mse_loss(net(batch), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = {"net": net.module.state_dict(), "optimizer": optimizer.state_dict()}
        with tempfile.TemporaryDirectory() as folder:
            kept = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save({**state, "epoch": epoch}, os.path.join(folder, "state.pt"))
                kept = Checkpoint.from_directory(folder)
            ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=kept)


def main(max_failures):
    """Train, or go on with what was trained under that name."""
    ray.init(num_cpus=3)
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"epochs": 8},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="night",
            storage_path=os.path.abspath("out"),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(max_failures),
        ),
    )
    result = trainer.fit()
    with result.checkpoint.as_directory() as folder:
        state = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
    torch.save(state, "out/final.pt")
    print("trained", result.metrics)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
