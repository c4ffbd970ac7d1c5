"""A ledger in the formats of other tools: Perfetto, OTLP, OpenMetrics, CSV, experiment trackers."""
