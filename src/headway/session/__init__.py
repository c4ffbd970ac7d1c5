"""One `headway run`: settings, the parts beside the job, `--auto`, and what follows the job."""
