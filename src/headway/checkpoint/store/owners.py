"""Who writes a draft, where there are no locks to tell."""

from __future__ import annotations

import os

from headway.checkpoint.store.names import OWNER
from headway.journal.process import describe as describe
from headway.journal.process import gone as gone
from headway.journal.writer import boot_id


def name() -> str:
    """The file by which this process says that it writes."""
    return f"{OWNER}{boot_id()}-{os.getpid()}.json"
