"""Publish recipes: a TOML file, checked when it is read, without running any user code."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from headway.errors import CheckpointUntrusted, PublishFailed, UsageError
from headway.publish.targets import base
from headway.settings import read_toml

T = TypeVar("T")
NOT_IN_DIGEST = ("registry", "release", "script")  # sections that do not change the snapshot
PLAIN_CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict")
GOLDEN_PART = "golden"  # part of an anchor with golden inputs: see headway/checkpoint/anchor.py


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How to build the model, and which parts of the anchor are its weights."""

    factory: str = ""  # module:function; default: that of the anchor
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weights: tuple[str, ...] = ()  # parts of the anchor; the first with a tensor is used
    ignore: tuple[str, ...] = ("n_averaged",)  # tensors of the anchor that the model need not have


@dataclass(frozen=True, kw_only=True)
class GoldenOptions:
    """Inputs on which all targets must agree; default: those of the anchor."""

    inputs: str | None = None  # module:function
    anchor: str | None = None  # or a part of the anchor with `inputs` and optional `outputs`
    tolerance: float = 1e-3  # for `outputs`, possibly from another device
    batch: bool = True  # the first dimension of every input is dynamic


@dataclass(frozen=True, kw_only=True)
class Prune:
    """Omit table rows that were not used recently."""

    last_use: str  # part of the anchor with the last use of each row, by table
    within: float  # keep rows whose last use is at most this much before the newest
    tables: tuple[str, ...] = ("*",)


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How to shrink embedding tables, by patterns of their names."""

    int8: tuple[str, ...] = ()
    fp16: tuple[str, ...] = ()
    prune: Prune | None = None
    tolerance: float = 0.05  # between outputs before and after


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper limits; growth is relative to the serving snapshot."""

    size_mb: float | None = None
    size_growth: float | None = None
    latency_ms: float | None = None
    latency_growth: float | None = None


@dataclass(frozen=True, kw_only=True)
class RegistryOptions:
    """Model registry of MLflow in which snapshots are registered."""

    mlflow: str  # the registered model
    uri: str | None = None  # of the server; default: MLFLOW_TRACKING_URI
    alias: str = "champion"  # alias of the serving version


@dataclass(frozen=True)
class TargetOptions:
    """A target: its name, and the options of its section."""

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A parsed recipe; user modules are imported from `folder` first."""

    model: ModelOptions
    golden: GoldenOptions
    tables: TableOptions
    limits: Limits
    targets: tuple[TargetOptions, ...]
    registry: RegistryOptions | None
    keep: int  # number of snapshots to keep, besides the serving one
    release: bool  # release the anchor once it is published
    folder: Path
    digest: str
    spec: str = ""  # structure of the golden inputs of the anchor; default: positional


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe; raises UsageError."""
    if not path.is_file():
        raise UsageError(
            f"there is no recipe {path}; `headway publish --help` shows one",
            code="recipe-not-found",
        )
    content = read_toml(path)
    sections = ("model", "golden", "tables", "limits", "targets", "registry")
    _check_keys(content, (*sections, "keep", "release", "script"), f"{path.name} has no section")
    if not content.get("targets"):
        raise UsageError(f"{path.name} needs a section [targets]", code="recipe-without-targets")
    keep = content.get("keep", 5)
    if type(keep) is not int or keep < 1:
        raise UsageError(
            f"{path.name} sets keep to {keep!r}, but it must be 1 or more",
            code="recipe-value-invalid",
        )
    model = _parse_section(ModelOptions, content.get("model", {}), f"{path.name} [model]")
    golden = _parse_section(GoldenOptions, content.get("golden", {}), f"{path.name} [golden]")
    if golden.inputs is not None and golden.anchor is not None:
        raise UsageError(
            f"{path.name} [golden] has both inputs and anchor; use one of them",
            code="recipe-golden-twice",
        )
    for name in filter(None, (model.factory, golden.inputs)):
        if not all(name.partition(":")):
            raise UsageError(
                f"{path.name}: {name!r} does not have the form module:function",
                code="function-malformed",
            )
    release = content.get("release", False)
    if type(release) is not bool:
        raise UsageError(
            f"{path.name} sets release to {release!r}, but it must be true or false",
            code="recipe-value-invalid",
        )
    _parse_value(
        "tuple", content.get("script", []), path.name, "script"
    )  # for --auto: session/auto.py
    made_of = {name: value for name, value in content.items() if name not in NOT_IN_DIGEST}
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True, default=str).encode())
    return Recipe(
        model=model,
        golden=golden,
        tables=_parse_section(TableOptions, content.get("tables", {}), f"{path.name} [tables]"),
        limits=_parse_section(Limits, content.get("limits", {}), f"{path.name} [limits]"),
        targets=_parse_targets(content["targets"], f"{path.name} [targets]"),
        registry=_parse_section(RegistryOptions, content["registry"], f"{path.name} [registry]")
        if "registry" in content
        else None,
        keep=keep,
        release=release,
        folder=path.resolve().parent,
        digest=digest.hexdigest(),
    )


def complete_recipe(
    recipe: Recipe, anchor: str, info: Mapping[str, Any], *, trusted: bool = True
) -> Recipe:
    """Fill missing options from an anchor; PublishFailed if it lacks them, too.

    `trusted`: only this user can have written the anchor, so code that it names may be run.
    """
    model, golden = recipe.model, recipe.golden
    factory, arguments = info.get("factory"), info.get("arguments") or {}
    if not model.factory:
        if not isinstance(factory, str) or not isinstance(arguments, dict):
            raise PublishFailed(
                f"{anchor} is not published: neither the anchor nor the recipe gives the factory "
                "of the model",
                code="factory-not-given",
            )
        if not trusted:
            raise CheckpointUntrusted(
                f"{anchor} names the factory {factory}, and other users may have written it; to "
                f'allow it, add [model] factory = "{factory}" to the recipe',
                classes=[factory],
            )
        model = replace(model, factory=factory, arguments={**arguments, **model.arguments})
    spec = info.get("inputs")
    if golden.inputs is None and golden.anchor in (None, GOLDEN_PART):
        if not isinstance(spec, str) and golden.anchor is None:
            raise PublishFailed(
                f"{anchor} is not published: neither the anchor nor the recipe has golden inputs",
                code="golden-inputs-not-given",
            )
        if isinstance(spec, str) and not trusted and not _is_plain(spec):
            raise CheckpointUntrusted(
                f"{anchor} passes its golden inputs with classes, and other users may have written "
                "it; use [golden] inputs in the recipe instead",
                classes=[],
            )
        golden = replace(golden, anchor=GOLDEN_PART)
        recipe = replace(recipe, spec=spec if isinstance(spec, str) else "")
    return replace(recipe, model=model, golden=golden)


def _is_plain(spec: str) -> bool:
    """Whether a pytree structure written by torch contains only plain containers."""
    try:
        _, *nodes = json.loads(spec)
        while nodes:
            node = nodes.pop()
            if node["type"] not in PLAIN_CONTAINERS:
                return False
            nodes += node["children_spec"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return True


def _parse_targets(content: Any, section: str) -> tuple[TargetOptions, ...]:
    targets = []
    for name, options in _require_table(content, section).items():
        targets.append(TargetOptions(name, _require_table(options, f"{section[:-1]}.{name}]")))
        base.check_target_options(name, targets[-1].options)
    return tuple(targets)


def _require_table(value: Any, section: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(
            f"{section} is {value!r}, but it must be a table", code="recipe-value-invalid"
        )
    return value


def _parse_section(kind: type[T], content: Any, section: str) -> T:
    keys = {option.name: option for option in fields(kind)}  # type: ignore[arg-type]
    table = _require_table(content, section)
    _check_keys(table, keys, f"{section} has no")
    for name, option in keys.items():
        needed = option.default is MISSING and option.default_factory is MISSING
        if needed and name not in table:
            raise UsageError(f"{section} needs {name!r}", code="recipe-key-missing", key=name)
    values = {
        name: _parse_value(str(keys[name].type), table[name], section, name) for name in table
    }
    return kind(**values)


def _parse_value(kind: str, value: Any, section: str, name: str) -> Any:
    if kind.startswith("Prune"):
        return _parse_section(Prune, value, f"{section[:-1]}.{name}]")
    if kind.startswith("tuple"):
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
            raise UsageError(
                f"{section} sets {name} to {value!r}, but it must be a list of names",
                code="recipe-value-invalid",
            )
        return tuple(listed)
    if kind.startswith("Mapping"):
        return _require_table(value, f"{section[:-1]}.{name}]")
    forms = {
        "str": (str, "text"),
        "float": ((int, float), "a number"),
        "bool": (bool, "true or false"),
    }
    expected, description = forms[kind.removesuffix(" | None")]
    if not isinstance(value, expected) or (description == "a number" and isinstance(value, bool)):  # type: ignore[arg-type]
        raise UsageError(
            f"{section} sets {name} to {value!r}, but it must be {description}",
            code="recipe-value-invalid",
        )
    if description == "a number" and not value >= 0:
        raise UsageError(
            f"{section} sets {name} to {value}, but it must be 0 or more",
            code="recipe-value-invalid",
        )
    return value


def _check_keys(table: Mapping[str, Any], keys: Any, sentence: str) -> None:
    for name in table:
        if name in keys:
            continue
        near = difflib.get_close_matches(name, keys, 1)
        meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(keys)}"
        raise UsageError(
            f"{sentence} {name!r}; {meant}",
            code="recipe-key-unknown",
            key=name,
            near=near[0] if near else None,
        )


def check_functions(recipe: Recipe) -> None:
    """Check the functions of a recipe; UsageError if they do not exist on this machine."""
    for name in filter(None, (recipe.model.factory, recipe.golden.inputs)):
        module, _, function = name.partition(":")
        source = _module_file(module, recipe.folder)
        if source is None:
            raise UsageError(
                f"{name} cannot be imported: there is no module {module.partition('.')[0]!r} "
                "next to the recipe, and none is installed",
                code="module-not-found",
                module=module.partition(".")[0],
            )
        if source.suffix == ".py" and not _binds_name(source, function):
            raise UsageError(
                f"there is no function {function!r} in {source}",
                code="function-not-found",
                function=function,
            )


def _module_file(module: str, folder: Path) -> Path | None:
    """File of a module, or an empty path if unknown; None if the module does not exist."""
    first, dot, _ = module.partition(".")
    before = sys.path[:]
    sys.path[:0] = [str(folder), os.getcwd()]  # as in a publish
    try:
        spec = importlib.util.find_spec(first)  # does not import a top-level module
    except (ImportError, ValueError):
        return None
    finally:
        sys.path[:] = before
    if spec is None:
        return None
    return Path(spec.origin or "") if not dot else Path()


def _binds_name(source: Path, function: str) -> bool:
    """Whether the source may bind the name; True if the text leaves it open."""
    try:
        nodes = list(ast.walk(ast.parse(source.read_bytes())))
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(
            f"{source} cannot be imported: {error}", code="module-not-importable"
        ) from None
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return bool({function, "*", "__getattr__"} & names)
