"""One `headway run`: settings, background services, `--auto`, and the work after the job."""
