"""A ledger in the formats of other tools: Perfetto, OTLP, OpenMetrics, CSV and experiment trackers."""
