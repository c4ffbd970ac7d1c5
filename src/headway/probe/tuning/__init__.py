"""Autotuning in this process: what is told of it, and what an earlier run has found out."""
