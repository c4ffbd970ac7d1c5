"""Who writes a draft, where there are no locks to tell."""

from __future__ import annotations

import os

from headway.checkpoint.store.names import OWNER_PREFIX
from headway.journal.process import identify_process as identify_process
from headway.journal.process import process_ended as process_ended
from headway.journal.writer import boot_id


def owner_file_name() -> str:
    """The file by which this process says that it writes."""
    return f"{OWNER_PREFIX}{boot_id()}-{os.getpid()}.json"
