"""The record that each process writes: JSON lines and a pulse page. Standard library only."""
