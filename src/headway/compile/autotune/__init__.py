"""The autotune advisor: which configs are worth trying, from what a run has recorded."""
