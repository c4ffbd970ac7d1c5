"""Exports a ledger to other tools: Perfetto, OTLP, OpenMetrics, CSV, experiment trackers."""
