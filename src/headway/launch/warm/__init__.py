"""Warm starts: fork restarts from a process that has the imports loaded."""
