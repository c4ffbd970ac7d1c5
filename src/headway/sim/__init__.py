"""Simulators of a cluster under preemption policies and of a fleet with planted regressions.

An optional leaf: only commands import it, and only when they run it."""
