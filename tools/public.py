"""The public names of the package and their signatures, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "headway"
# What the documentation calls public: all public names of a module, or some of them.
MODULES: dict[str, tuple[str, ...]] = {
    "headway": (),
    "headway.auto": (),
    "headway.advise.model": (),
    "headway.advise.replay": (),
    "headway.checkpoint": (),
    "headway.checkpoint.checkpointer": ("SaveHandle",),
    "headway.checkpoint.data": (),
    "headway.checkpoint.interval": (),
    "headway.checkpoint.restore": ("RestoredState",),
    "headway.checkpoint.tuner": (),
    "headway.compile": (),
    "headway.errors": (),
    "headway.fleet.store.reader": ("QueryResult", "run_query"),
    "headway.fleet.queries.queries": ("build_query",),
    "headway.fleet.queries.dimensions": ("Filter",),
    "headway.fleet.importers.record": (),
    "headway.fleet.importers.source": (),
    "headway.fleet.store.parquet": ("Store",),
    "headway.integrations.torchrec": ("install", "installed", "uninstall", "collective_plan"),
    "headway.ledger.model": (),
    "headway.ledger.segments": ("Segment",),
    "headway.publish": (),
    "headway.publish.targets.base": ("Packages", "SnapshotContent", "Target", "Work"),
    "headway.schedule.cost": (),
    "headway.schedule.preemption": (),
    "headway.startup": (),
    "headway.startup.batches": (),
    "headway.startup.process_groups": (),
    "headway.startup.sharding": (),
    "headway.startup.stages": (),
    "headway.testing": (),
    "headway.units": ("NS",),
}
SPECIAL = ("__call__", "__enter__", "__getitem__", "__iter__", "__len__")  # methods to be told of


def names() -> Iterator[str]:
    """Each public name, with its signature where it has one."""
    for module, chosen in MODULES.items():
        yield module
        for name in chosen or exported(module):
            yield from _described(module, name)


def exported(module: str) -> list[str]:
    """What `__all__` names, or else what is defined there."""
    tree = _parsed(module)
    for node in tree.body:
        if isinstance(node, ast.Assign) and _targets(node) == ["__all__"]:
            return list(ast.literal_eval(node.value))
    found = [name for node in tree.body for name in _defined(node)]
    return [name for name in found if not name.startswith("_")]


@cache
def trees() -> dict[Path, ast.Module]:
    """The source, parsed, by its files in order."""
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


@cache
def nodes() -> tuple[tuple[ast.AST, ...], ...]:
    """Everything in each file of the source."""
    return tuple(tuple(ast.walk(tree)) for tree in trees().values())


def _parsed(module: str) -> ast.Module:
    path = SOURCE.joinpath(*module.split(".")[1:])
    return trees()[path / "__init__.py" if path.is_dir() else path.with_suffix(".py")]


def _is_module(module: str) -> bool:
    path = SOURCE.joinpath(*module.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


def _targets(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [one.id for one in targets if isinstance(one, ast.Name)]


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    return _targets(node) if isinstance(node, (ast.Assign, ast.AnnAssign)) else []


def _described(module: str, name: str) -> Iterator[str]:
    full = f"{module}.{name}"
    node = _found(module, name)
    if node is None:
        yield f"{full} (module)"
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield f"{full}{_signature(node)}"
    elif isinstance(node, ast.ClassDef):
        yield from _class(full, node)
    else:
        yield full


def _found(module: str, name: str) -> ast.stmt | None:
    """Where a name is defined, through the modules that hand it on; None for a module."""
    tree = _parsed(module)
    for node in tree.body:
        if name in _defined(node) and name != "__getattr__":
            return node
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name and _is_module(node.module):
                    if _is_module(f"{node.module}.{alias.name}"):
                        return None
                    return _found(node.module, alias.name)
    if _is_module(f"{module}.{name}"):
        return None
    raise LookupError(f"{module} has no {name}")


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool = False) -> str:
    text = ast.unparse(node.args)
    if method:
        text = text.partition(", ")[2] if text.startswith(("self, ", "cls, ")) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({text}){returns}"


def _class(full: str, node: ast.ClassDef) -> Iterator[str]:
    """Its bases, fields, properties and methods."""
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield f"{full}({bases})" if bases else full
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            default = f" = {ast.unparse(one.value)}" if one.value else ""
            if not one.target.id.startswith("_"):
                yield f"{full}.{one.target.id}: {ast.unparse(one.annotation)}{default}"
        elif isinstance(one, ast.Assign):
            yield from (f"{full}.{name}" for name in _targets(one) if name[0] != "_")
        elif isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _method(full, one)


def _method(full: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    marks = {ast.unparse(one) for one in node.decorator_list}
    if node.name == "__init__":
        yield f"{full}{_signature(node, method=True).removesuffix(' -> None')}"
    elif node.name.startswith("_") and node.name not in SPECIAL:
        return
    elif marks & {"property", "cached_property", "functools.cached_property"}:
        returns = f": {ast.unparse(node.returns)}" if node.returns else ""
        yield f"{full}.{node.name}{returns} (property)"
    else:
        yield f"{full}.{node.name}{_signature(node, method='staticmethod' not in marks)}"
