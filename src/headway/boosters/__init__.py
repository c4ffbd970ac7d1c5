"""Which boosters a job runs with under `headway run --auto`: chosen, watched, learned from."""
