"""Eviction cost, preemption policies, and the publishers and the Slurm controller that use them."""
