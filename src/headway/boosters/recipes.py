"""Which recipe `--auto` publishes by: only one that names the script it was written for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.boosters.job import script_and_args
from headway.errors import HeadwayError
from headway.settings import read_toml

RECIPE_FILE = "publish.toml"
NO_RECIPE = f"there is no {RECIPE_FILE}"


def find_recipe(command: Sequence[str], here: Path) -> tuple[Path | None, str]:
    """In the working folder, or beside the script; where there is none for it, why."""
    script = script_and_args(command)[0] if command else ""
    folders = dict.fromkeys((here, here / Path(script).parent))
    why = ""
    for path in (folder / RECIPE_FILE for folder in folders):
        if not path.is_file():
            continue
        unfit = _mismatch_reason(path, script)
        if not unfit:
            return path, ""
        why = why or unfit
    return None, why or NO_RECIPE


def _mismatch_reason(path: Path, script: str) -> str:
    """Why a recipe is not for that script; what is wrong in it is told when it is read."""
    try:
        named: Any = read_toml(path).get("script", [])
    except HeadwayError:
        return ""
    names = [named] if isinstance(named, str) else named
    name = Path(script).name
    if not isinstance(names, list) or {name, script} & set(map(str, names)):
        return ""
    if names:
        return f"{path} is for {', '.join(map(str, names))}, and not for {name}"
    return f'{path} names no script; write script = "{name}" on top of it if it is for that'


def recipe_digest(path: Path) -> str:
    """What tells one version of a recipe from another; empty where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""
