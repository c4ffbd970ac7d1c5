"""Pure functions: journals -> timeline -> attempts -> buckets."""
