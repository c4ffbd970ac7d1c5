"""Queries on a fleet store, and the dimensions they are filtered and grouped by."""
