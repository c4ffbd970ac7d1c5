"""What-if without a run: the ETT% of a job that is only planned."""
