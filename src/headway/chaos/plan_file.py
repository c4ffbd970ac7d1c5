"""Read a fault plan from a TOML or JSON file, or from one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.chaos.plan import FaultPlan


def read_plan(text: str) -> FaultPlan:
    """The plan in a TOML or JSON file of that name, or written out in one line."""
    from headway.chaos.plan import parse_inline_plan, parse_plan

    path = Path(text)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a name
        is_file = False
    if is_file:
        return parse_plan(_read_file(path), text)
    if path.suffix in (".toml", ".json") and "=" not in text:
        raise UsageError(f"there is no plan {text}; check its name", code="plan-not-found")
    return parse_inline_plan(text, "the plan")


def _read_file(path: Path) -> dict[str, Any]:
    if path.suffix != ".json":
        from headway.settings import read_toml

        return read_toml(path)
    import json

    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}", code="json-invalid") from None
    if not isinstance(found, dict):
        raise UsageError(
            f"{path} holds no table; a plan is {{'seed': 7, 'fault': [...]}}",
            code="plan-not-a-table",
        )
    return found
