"""Detection of hung jobs: which rank made no step for too long, and where it is in its code."""
