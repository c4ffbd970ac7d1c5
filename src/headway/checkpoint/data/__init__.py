"""Where the reader is, so that no sample is trained twice or left out after a restart."""

from headway.checkpoint.data.batches import GlobalBatches
from headway.checkpoint.data.position import Position

__all__ = ["GlobalBatches", "Position"]
