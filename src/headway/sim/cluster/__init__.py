"""Simulate preemption policies on a cluster with quotas, driven by a trace of jobs."""
