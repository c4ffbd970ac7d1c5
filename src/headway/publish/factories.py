"""Whether a function of the user's can be found, without running any of their code."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from pathlib import Path

from headway.errors import UsageError
from headway.publish.recipe import Recipe


def check_functions(recipe: Recipe) -> None:
    """Of all that a recipe names; UsageError if a publish on this machine would not find it."""
    for name in filter(None, (recipe.model.factory, recipe.golden.inputs)):
        module, _, function = name.partition(":")
        source = _module_file(module, recipe.folder)
        if source is None:
            raise UsageError(
                f"{name} cannot be imported: there is no module {module.partition('.')[0]!r} "
                "beside the recipe, and none is installed",
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
    """The file of a module, or some other path where that is not known; None if there is none."""
    first, dot, _ = module.partition(".")
    before = sys.path[:]
    sys.path[:0] = [str(folder), os.getcwd()]  # as a publish has it
    try:
        spec = importlib.util.find_spec(first)  # of a first name nothing is imported for that
    except (ImportError, ValueError):
        return None
    finally:
        sys.path[:] = before
    if spec is None:
        return None
    return Path(spec.origin or "") if not dot else Path()


def _binds_name(source: Path, function: str) -> bool:
    """Whether the name is bound somewhere in it; what cannot be told from its text may be."""
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
