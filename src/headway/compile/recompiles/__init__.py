"""Recompile advisor: from a run's journals, why torch recompiled and how to avoid it."""
