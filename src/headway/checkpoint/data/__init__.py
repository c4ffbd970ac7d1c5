"""The position in the data, so that no sample is repeated or skipped after a restart."""

from headway.checkpoint.data.position import Position
from headway.checkpoint.data.sampler import GlobalBatches

__all__ = ["GlobalBatches", "Position"]
