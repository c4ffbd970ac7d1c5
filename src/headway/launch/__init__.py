"""Runs a command and records its start, its end, and the signals between."""
