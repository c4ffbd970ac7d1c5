"""Fault injection: planned in a file, the same faults every time, recorded in the journal."""
