"""The recompile advisor: why torch compiles again, from a run's journals, and the cure."""
