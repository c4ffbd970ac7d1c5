"""All settings. Flags take precedence over HEADWAY_*, then headway.toml, then the defaults."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from headway.errors import UsageError

MAX_TOML_BYTES = 1 << 20
MAX_DIGITS = 18
MAX_SHOWN = 60  # characters of an invalid value in an error


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of Headway. The environment variable of a field is HEADWAY_ and its name."""

    auto: bool = False  # enable every booster that is safe for the job
    output: str | None = None  # the run folder or URL; default headway/<name>
    name: str | None = None  # the run's name; default from the scheduler or the script
    restarts: int = 0  # how often a failed command is restarted
    warm: bool = False  # fork restarts from a process that has the imports loaded
    hang_watch: bool = True  # detect hung jobs, and end them if they can be restarted
    hang_after: float = 120.0  # minimum seconds without a step before a job counts as hung
    compile_cache: str | None = None  # folder or URL of the shared compile archives
    compile_tier: str = "safe"  # or "precompile": archive traced frames as well
    cache_key: str | None = None  # file with the key that signs the archives
    autotune: str | None = None  # run or file with pruned autotune configs
    async_save: bool = False  # write checkpoints of torch.save and dcp.save in the background
    learn: bool = False  # mark dimensions as dynamic that made earlier runs recompile
    store: str | None = None  # folder or URL of the store for finished runs
    labels: str | None = None  # labels of the run: team=ads,model=dlrm
    report: bool = True  # print a summary at the end of the run

    @classmethod
    def read(cls, **flags: Any) -> Settings:
        """Resolve the settings; a flag that is None was not given."""
        return cls(**{key: value for key, (value, _) in resolve(**flags).items()})


def resolve(
    *, env: Mapping[str, str] = os.environ, folder: Path | None = None, **flags: Any
) -> dict[str, tuple[Any, str]]:
    """The value and the origin of each setting."""
    file, file_settings = _read_settings_file(folder or Path.cwd())
    out: dict[str, tuple[Any, str]] = {}
    for field in fields(Settings):
        variable = f"HEADWAY_{field.name.upper()}"
        if flags.get(field.name) is not None:
            value = flags[field.name]
            if field.type in ("int", "float"):
                _check_number(value, f"--{field.name.replace('_', '-')}")
            out[field.name] = (value, "flag")
        elif variable in env:
            out[field.name] = (_parse(field.type, env[variable], variable), variable)
        elif field.name in file_settings:
            value, where = file_settings[field.name], f"{field.name} in {file}"
            if not isinstance(value, str | int | float):
                raise UsageError(
                    f"{where} is {_shortened(value)}, but it must be a single value",
                    code="setting-invalid",
                    setting=field.name,
                )
            if not isinstance(value, str):
                value = str(value).lower()
            out[field.name] = (_parse(field.type, value, where), file)
        else:
            out[field.name] = (field.default, "default")
    return out


def _parse(kind: Any, text: str, where: str) -> Any:
    if kind == "int":
        if not text.isdecimal() or len(text) > MAX_DIGITS:
            raise UsageError(
                f"{where} is {_shortened(text)}, but it must be a whole number, 0 or more",
                code="setting-invalid",
                setting=where.split()[0],
            )
        return int(text)
    if kind == "float":
        try:
            number = float(text)
        except ValueError:
            raise UsageError(
                f"{where} is {_shortened(text)}, but it must be a number",
                code="setting-invalid",
                setting=where.split()[0],
            ) from None
        _check_number(number, where)
        return number
    if kind != "bool":
        return text
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise UsageError(
        f"{where} is {_shortened(text)}, but it must be true or false",
        code="setting-invalid",
        setting=where.split()[0],
    )


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _check_number(number: float, where: str) -> None:
    if not (number >= 0 and math.isfinite(number)):  # false for NaN too
        raise UsageError(
            f"{where} is {number}, but it must be finite and 0 or more",
            code="setting-invalid",
            setting=where.split()[0],
        )


def _read_settings_file(folder: Path) -> tuple[str, dict[str, Any]]:
    """headway.toml, else [tool.headway] of pyproject.toml, in this folder."""
    headway_toml, pyproject = folder / "headway.toml", folder / "pyproject.toml"
    if os.path.lexists(headway_toml):
        table, name = read_toml(headway_toml), headway_toml.name
    elif _mentions_headway(pyproject):
        tool = read_toml(pyproject).get("tool", {})
        table, name = tool.get("headway", {}) if isinstance(tool, dict) else {}, pyproject.name
    else:
        return "", {}
    if not isinstance(table, dict):
        raise UsageError(
            f"tool.headway in {name} must be a table; start it with [tool.headway]",
            code="toml-invalid",
        )
    unknown = set(table) - {field.name for field in fields(Settings)}
    if unknown:
        names = ", ".join(field.name for field in fields(Settings))
        raise UsageError(
            f"{name} sets {sorted(unknown)[0]!r}; the settings are {names}",
            code="setting-unknown",
            setting=sorted(unknown)[0],
        )
    return name, table


def _mentions_headway(project: Path) -> bool:
    """Whether the file may have settings of Headway; an unreadable one has none."""
    try:
        return project.is_file() and b"[tool.headway]" in project.read_bytes()
    except OSError:
        return False


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; UsageError if it is not valid."""
    import tomllib

    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            raise UsageError(f"{path} is not a regular file", code="toml-unreadable")
        with path.open("rb") as file:
            data = file.read(MAX_TOML_BYTES + 1)
        if len(data) > MAX_TOML_BYTES:
            raise UsageError(f"{path} is larger than 1 MB", code="toml-unreadable")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}", code="toml-unreadable"
        ) from None
    except RecursionError:
        raise UsageError(
            f"{path} is not valid TOML: it is nested too deeply", code="toml-invalid"
        ) from None
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError, numbers with too many digits
        raise UsageError(f"{path} is not valid TOML: {error}", code="toml-invalid") from None


def parse_labels(text: str | None) -> dict[str, str]:
    """Parse `team=ads,model=dlrm`; UsageError if it is not valid."""
    labels = {}
    for part in (text or "").split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            continue
        if not equals or not name.isidentifier() or not value:
            raise UsageError(
                f"the label {part!r} is not NAME=VALUE, such as team=ads", code="label-invalid"
            )
        labels[name] = value
    return labels
