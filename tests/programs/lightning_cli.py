"""Lightning as its command line offers it: model, data and loop are those of the package.

There is nothing of ours in it; the checkpoints, and the resuming from the last one, are asked for
with Lightning's own options.
"""

from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, DemoModel

if __name__ == "__main__":
    LightningCLI(DemoModel, BoringDataModule)
