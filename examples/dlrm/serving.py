"""The model of train.py as it serves, for `headway publish`."""

import argparse

from torch import Tensor
from train import DLRM, click_batch

ROWS, DIM = 10_000, 16  # those of train.py, if nobody says otherwise


def build(rows: int = ROWS, dim: int = DIM, seed: int = 0) -> DLRM:
    return DLRM(argparse.Namespace(rows=rows, dim=dim, seed=seed))


def golden() -> tuple[Tensor, Tensor]:
    """Clicks that were not trained on."""
    dense, ids, _ = click_batch(seed=1, index=0, batch=64, rows=ROWS)
    return dense, ids
