"""The files of a checkpoint: rank files, DCP metadata, deltas, and their readers."""
