"""A file given to an importer, and the JSON and timestamps in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from headway.errors import UsageError


class Source(NamedTuple):
    """One file; `collected_at` is its modification time in seconds since the epoch."""

    name: str
    text: str
    collected_at: float

    def objects(self) -> Iterator[dict[str, Any]]:
        """All JSON objects of documents or of JSON lines; incomplete ones are skipped."""
        decoder, at = json.JSONDecoder(), self.text.find("{")
        while at >= 0:
            try:
                content, end = decoder.raw_decode(self.text, at)
            except RecursionError:
                raise ValueError("its JSON is nested too deeply") from None
            except ValueError:
                at = self.text.find("\n{", at) + 1 or -1
                continue
            yield content
            at = self.text.find("{", end)


def source_names(sources: Sequence[Source]) -> str:
    """The names of files for messages."""
    more = f" and {len(sources) - 3} more" if len(sources) > 3 else ""
    return ", ".join(source.name for source in sources[:3]) + more


def read_source(path: Path) -> Source:
    """Read a file; UsageError if that fails."""
    try:
        return Source(path.name, path.read_text(encoding="utf-8"), path.stat().st_mtime)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", code="file-unreadable") from error


def parse_iso8601(text: str) -> float:
    """Parse ISO 8601 to seconds since the epoch; a time without a zone is UTC."""
    seconds, dot, tail = text.strip().replace("Z", "+00:00").partition(".")
    digits = len(tail) - len(tail.lstrip("0123456789"))
    fraction = f".{tail[:digits][:6]:0<6}{tail[digits:]}" if dot else ""
    time = datetime.fromisoformat(seconds + fraction)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
