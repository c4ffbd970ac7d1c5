"""What a training run's folder says of the publish of its last checkpoint: `publish.json`.

Written when the publish job is handed over, and again by that job when it is done.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway import redact
from headway.journal import files
from headway.journal.folder import write_atomically

PUBLISH_JSON = "publish.json"
PUBLISH_SCHEMA = 1


def read_publish_note(folder: Path) -> dict[str, Any]:
    """The note; empty where there is none that can be read."""
    try:
        found = json.loads(files.read_file(folder / PUBLISH_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("schema") == PUBLISH_SCHEMA else {}


def write_publish_note(folder: Path, told: dict[str, Any]) -> None:
    """In the place of what was there."""
    content = json.dumps({"schema": PUBLISH_SCHEMA, **redact.data(told)}, indent=1) + "\n"
    write_atomically(folder / PUBLISH_JSON, content)
