"""A batch of the right kind at once, before the data is there."""

from headway.startup.batches.fast import fast_batch, recording
from headway.startup.batches.schema import Schema, SchemaError

__all__ = ["Schema", "SchemaError", "fast_batch", "recording"]
