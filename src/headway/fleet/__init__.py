"""A store of many runs: tables, queries, importers, metrics, regressions and alerts."""
