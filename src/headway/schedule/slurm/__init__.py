"""Beside slurmctld: who goes when a job finds no room, and that whoever goes has saved."""
