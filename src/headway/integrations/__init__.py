"""Other libraries, one file each; none of them is needed by anything else."""
