"""Every setting, in one place: flags over HEADWAY_* over headway.toml over the defaults."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from headway.errors import MissingExtra, UsageError

# Read by the probe, in processes that load none of this: see headway/probe/__init__.py.
INTERNAL = (
    "HEADWAY_ASYNC_SAVE",
    "HEADWAY_AUTOTUNE",
    "HEADWAY_CHAOS",
    "HEADWAY_COMPILE",
    "HEADWAY_DIR",
    "HEADWAY_LAUNCH",
    "HEADWAY_OFF",
    "HEADWAY_OWNER",
    "HEADWAY_RUN",
    "HEADWAY_STEPS",
    "HEADWAY_STRICT",
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user can set. The name in the environment is HEADWAY_ and the field's, upper case."""

    auto: bool = False  # turn on every booster that is safe for the job
    output: str | None = None  # the run folder or URL; default headway/<name>
    name: str | None = None  # the run's name; default from the scheduler or the script
    restarts: int = 0  # how often a failed command may be started again
    warm: bool = False  # fork restarts from a process that has imported everything already
    hang_watch: bool = True  # notice that no step is made, and end it where it may be restarted
    hang_after: float = 120.0  # seconds without a step that are never a hang
    compile_cache: str | None = None  # folder or URL where jobs share what torch.compile makes
    compile_tier: str = "safe"  # or precompile: keep what dynamo has traced as well
    cache_key: str | None = None  # file with the team's key for the archives there
    autotune: str | None = None  # run or file whose pruned autotune configs are used
    async_save: bool = False  # write what torch.save and dcp.save save behind the training
    learn: bool = False  # mark as dynamic what earlier runs of the job have recompiled for
    store: str | None = None  # folder or URL of the store that runs are written to
    labels: str | None = None  # what a run belongs to: team=ads,model=dlrm
    report: bool = True  # print the summary at the end of a run

    @classmethod
    def read(cls, **flags: Any) -> Settings:
        """The settings in force; flags that are None were not given."""
        return cls(**{key: value for key, (value, _) in resolve(**flags).items()})


def resolve(
    *, env: Mapping[str, str] = os.environ, folder: Path | None = None, **flags: Any
) -> dict[str, tuple[Any, str]]:
    """Each setting's value and where it came from."""
    file, filed = _file(folder or Path.cwd())
    out: dict[str, tuple[Any, str]] = {}
    for field in fields(Settings):
        variable = f"HEADWAY_{field.name.upper()}"
        if flags.get(field.name) is not None:
            value = flags[field.name]
            if type(value) in (int, float) and value < 0:
                flag = field.name.replace("_", "-")
                raise UsageError(f"--{flag} is {value}, but it must be 0 or more")
            out[field.name] = (value, "flag")
        elif variable in env:
            out[field.name] = (_parse(field.type, env[variable], variable), variable)
        elif field.name in filed:
            value = filed[field.name]
            if not isinstance(value, str):
                value = str(value).lower()
            out[field.name] = (_parse(field.type, value, f"{field.name} in {file}"), file)
        else:
            out[field.name] = (field.default, "default")
    return out


def _parse(kind: Any, text: str, where: str) -> Any:
    if kind == "int":
        if not text.isdecimal():
            raise UsageError(f"{where} is {text!r}, but it must be a whole number from 0 on")
        return int(text)
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            raise UsageError(f"{where} is {text!r}, but it must be a number") from None
    if kind != "bool":
        return text
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise UsageError(f"{where} is {text!r}, but it must be true or false")


def _file(folder: Path) -> tuple[str, dict[str, Any]]:
    """headway.toml, else [tool.headway] of pyproject.toml, in this folder."""
    own, project = folder / "headway.toml", folder / "pyproject.toml"
    if own.is_file():
        found, name = read_toml(own), own.name
    elif project.is_file() and b"[tool.headway]" in project.read_bytes():
        found, name = read_toml(project).get("tool", {}).get("headway", {}), project.name
    else:
        return "", {}
    unknown = set(found) - {field.name for field in fields(Settings)}
    if unknown:
        known = ", ".join(field.name for field in fields(Settings))
        raise UsageError(f"{name} sets {sorted(unknown)[0]!r}; the settings are {known}")
    return name, found


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file; one sentence if it is none."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise MissingExtra(f"{path.name} needs tomli; type: pip install tomli") from None
    try:
        with path.open("rb") as file:
            found: dict[str, Any] = tomllib.load(file)
            return found
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
