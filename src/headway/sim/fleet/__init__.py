"""Simulate a fleet with planted regressions and lemon nodes, to test detectors."""
