"""Publishers: report the eviction cost of runs to Slurm, Kubernetes, Ray or a file."""
