"""The fleet store: Parquet files or PostgreSQL, manifest, compaction and views."""
