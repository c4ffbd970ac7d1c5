"""Detect regressions of a fleet and attribute them to fields and hosts; see docs/regressions.md."""
