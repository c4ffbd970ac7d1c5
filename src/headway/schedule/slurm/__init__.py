"""Preemption on a real Slurm cluster: choose victims by eviction cost and let each save first."""
