"""What an object is, in words that mean the same in another process."""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import types
from typing import Any

PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, enum.Enum)
MAX_DEPTH = 4


class UnknownIdentity(Exception):
    """Nothing can be said of it that another process would understand."""


def identity(thing: Any, depth: int = 0) -> str:
    """The same for two objects of two processes only if code made for one is right for both."""
    if depth > MAX_DEPTH:
        raise UnknownIdentity("it is nested too deeply")
    if isinstance(thing, PLAIN_TYPES):
        return f"{type(thing).__qualname__} {thing!r}"
    if isinstance(thing, types.ModuleType):
        return f"module {thing.__name__}"
    if isinstance(thing, type):
        return f"class {thing.__module__}.{thing.__qualname__}"
    if isinstance(thing, types.FunctionType):
        return _function(thing, depth)
    if isinstance(thing, types.MethodType):
        return f"method {identity(thing.__func__, depth + 1)} of {_kind(thing.__self__)}"
    if isinstance(thing, functools.partial):
        parts = [thing.func, *thing.args, *(thing.keywords[k] for k in sorted(thing.keywords))]
        told = " ".join(identity(part, depth + 1) for part in parts)
        return f"partial {sorted(thing.keywords)} {told}"
    if isinstance(thing, (list, tuple)):
        return f"{_kind(thing)} {[identity(item, depth + 1) for item in thing]}"
    if isinstance(thing, dict):
        return f"{_kind(thing)} {_items(thing, depth)}"
    named = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    if isinstance(named, str):  # functions of C, operators of torch
        return f"{_kind(thing)} {getattr(thing, '__module__', None)}.{named}"
    # What it holds is guarded by its own names, and those guards are kept.
    return f"a {_kind(thing)}"


def _function(function: types.FunctionType, depth: int) -> str:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(identity(cell.cell_contents, depth + 1))
        except ValueError:
            cells.append("empty")
    defaults = [identity(value, depth + 1) for value in function.__defaults__ or ()]
    named = _items(function.__kwdefaults__ or {}, depth)
    told = "\n".join([code_text(function.__code__), *cells, *defaults, str(named)])
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    return f"function {function.__module__}.{function.__qualname__} {digest}"


def code_text(code: types.CodeType) -> str:
    """All that a piece of code computes, but for the values of the names that it looks up."""
    count = code.co_argcount + code.co_kwonlyargcount
    flags = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    takes = (code.co_posonlyargcount, code.co_argcount, flags, code.co_varnames[:count])
    constants = [_constant(part) for part in code.co_consts]
    return f"{code.co_code!r} {code.co_exceptiontable!r} {code.co_names} {takes} {constants}"


def _constant(part: Any) -> str:
    if isinstance(part, types.CodeType):
        return code_text(part)
    if isinstance(part, frozenset):  # its order is another one in each process
        return f"frozenset {sorted(map(_constant, part))}"
    if isinstance(part, tuple):
        return f"tuple {list(map(_constant, part))}"
    return repr(part)


def _items(thing: dict[Any, Any], depth: int) -> list[str]:
    return [f"{key!r}: {identity(thing[key], depth + 1)}" for key in thing]


def _kind(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
