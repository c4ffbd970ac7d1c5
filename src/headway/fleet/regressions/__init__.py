"""What changed in a fleet for the worse, when and why; see docs/regressions.md."""
