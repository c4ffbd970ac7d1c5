"""A training loop with Accelerate in the way its documentation shows, on made-up data.

Its examples begin with a download. This has what they have: `prepare`, `backward`, `save_state`
and `load_state` with automatic naming, and `skip_first_batches` in the middle of an epoch.
"""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, SAVE_STEPS = 6, 30


def main():
    """Train, from the last checkpoint if there is one."""
    project = ProjectConfiguration("out", automatic_checkpoint_naming=True, total_limit=2)
    order = DataLoaderConfiguration(use_seedable_sampler=True)  # the same after a restart
    accelerator = Accelerator(cpu=True, project_config=project, dataloader_config=order)
    set_seed(3)
    inputs = torch.randn(640, 16)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
    step = 0
    checkpoints = os.path.join("out", "checkpoints")
    if os.path.isdir(checkpoints) and os.listdir(checkpoints):
        accelerator.load_state()
        newest = max(int(name.split("_")[1]) for name in os.listdir(checkpoints))
        step = (newest + 1) * SAVE_STEPS
        project.iteration = newest + 1
    for epoch in range(step // len(loader), EPOCHS):
        loader.set_epoch(epoch)
        rest = accelerator.skip_first_batches(loader, step - epoch * len(loader))
        for batch, wanted in rest:
            loss = torch.nn.functional.mse_loss(net(batch), wanted)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % SAVE_STEPS == 0:
                accelerator.save_state()
    accelerator.wait_for_everyone()
    accelerator.save_model(accelerator.unwrap_model(net), "out/model")
    accelerator.print("loss", loss.item())
    accelerator.end_training()


if __name__ == "__main__":
    main()
