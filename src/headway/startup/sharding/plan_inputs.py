"""Describe what a plan depends on as JSON: equal for equal settings, in every process."""

from __future__ import annotations

import dis
import functools
import hashlib
import pickle
import types
from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch

from headway.compile.precompile.guards import code_text

MAX_DEPTH = 12  # nesting levels


def describe_inputs(value: Any, enclosing: tuple[int, ...] = ()) -> Any:
    """Describe a value by its type and content; a tensor by its type, shape and dtype."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, (float, torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return value.__name__
    if id(value) in enclosing or len(enclosing) > MAX_DEPTH:
        return type(value).__qualname__
    enclosing = (*enclosing, id(value))
    if isinstance(value, torch.Tensor):
        return [describe_inputs(type(value)), list(value.shape), str(value.dtype)]
    if isinstance(value, dict):
        return sorted(
            [
                [describe_inputs(k, enclosing), describe_inputs(v, enclosing)]
                for k, v in value.items()
            ],
            key=str,
        )
    if isinstance(value, (set, frozenset)):
        return sorted((describe_inputs(item, enclosing) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [describe_inputs(item, enclosing) for item in value]
    if isinstance(value, functools.partial):
        return [
            describe_inputs(item, enclosing) for item in (value.func, value.args, value.keywords)
        ]
    if isinstance(value, types.FunctionType):
        return _function(value, enclosing)
    if isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
        name = [getattr(value, "__module__", None), value.__qualname__]
        code = (
            [describe_inputs(value.__func__, enclosing)]
            if isinstance(value, types.MethodType)
            else []
        )
        return [name, *code, describe_inputs(value.__self__, enclosing)]
    return [describe_inputs(type(value)), _attributes(value, enclosing)]


def _function(function: types.FunctionType, enclosing: tuple[int, ...]) -> Any:
    functions = list(_called_functions(function))
    text = "\n".join(code_text(called.__code__) for called in functions)
    code = hashlib.sha256(text.encode()).hexdigest()[:16]
    cells = [_cell_content(cell) for cell in function.__closure__ or ()]
    settings = {
        name: value for called in functions for name, value in _globals(called) if _is_plain(value)
    }
    values = (function.__defaults__, function.__kwdefaults__, cells, settings)
    name = [function.__module__, function.__qualname__]
    return [*name, code, *(describe_inputs(value, enclosing) for value in values)]


def _called_functions(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """Yield the function, and functions of its module that it may call."""
    todo, visited = [function], {function}
    while todo:
        current = todo.pop()
        yield current
        for _, other in sorted(_globals(current), key=lambda pair: pair[0]):
            same = isinstance(other, types.FunctionType) and other.__module__ == current.__module__
            if same and other not in visited:
                visited.add(other)
                todo.append(other)


def _cell_content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that it uses."""
    for name in dict.fromkeys(_global_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    if isinstance(value, (tuple, list, set, frozenset)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, bytes, Enum, torch.dtype))


def _global_names(code: types.CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _global_names(part)


def _attributes(value: Any, enclosing: tuple[int, ...]) -> Any:
    """The attributes of an object, or a hash of its pickle if it has none."""
    attributes = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                attributes[name] = getattr(value, name)
    if attributes or hasattr(value, "__dict__"):
        return describe_inputs(attributes, enclosing)
    try:
        return hashlib.sha256(pickle.dumps(value, 4)).hexdigest()[:16]
    except Exception:  # a lock or handle, which has no content
        return None
