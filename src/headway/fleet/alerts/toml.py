"""TOML, and on which line of it something stands."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from headway.errors import UsageError


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The content; one sentence if it is none."""
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not valid TOML: {error}", code="toml-invalid") from None
    return found


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The line on which what lies at that path begins: only then has the text up to there it."""
    lines, begin = text.splitlines(), 1
    for number in range(1, len(lines) + 1):
        try:
            found = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue  # in the midst of something that goes over several lines
        if _has_path(found, path):
            return begin
        begin = number + 1
    return begin


def _has_path(found: Any, path: Sequence[str | int]) -> bool:
    for part in path:
        if isinstance(part, int):
            if not isinstance(found, list) or len(found) <= part:
                return False
        elif not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return True
