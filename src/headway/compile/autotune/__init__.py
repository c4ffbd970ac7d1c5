"""Autotune advisor: which configs are worth trying, from the timings that runs recorded."""
