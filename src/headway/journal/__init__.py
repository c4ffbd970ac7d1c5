"""The raw record each process writes: JSON lines plus a pulse page. Standard library only."""
