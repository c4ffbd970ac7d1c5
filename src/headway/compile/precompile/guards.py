"""Record the guards that torch drops from a package, and check them in another process.

Each guarded object is described by a text that is equal in two processes only if code compiled for
one object is correct for the other.
"""

from __future__ import annotations

import builtins
import enum
import functools
import hashlib
import inspect
import itertools
import json
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.storage.atomic_write import write_atomically

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


DROPPED_KINDS = {"ID_MATCH", "CLOSURE_MATCH", "WEAKREF_ALIVE", "DICT_VERSION"}
GUARDS_FILE = "headway-guards.json"


@dataclass(frozen=True)
class DroppedGuard:
    """One guard: the expression it looks at, the module whose globals it sees, what was there."""

    source: str
    module: str
    what: str


class ModuleGlobals:
    """A module's globals as they are now, with the names that dynamo adds once it has compiled."""

    def __init__(self, module: str) -> None:
        self._of = vars(sys.modules[module])

    def __getitem__(self, name: str) -> Any:
        if name in self._of:
            return self._of[name]
        if name.startswith("__import_"):
            return sys.modules[name.removeprefix("__import_").replace("_dot_", ".")]
        if name.startswith("__builtins_dict__"):
            return vars(builtins)
        raise KeyError(name)


class PackageGuards:
    """Those of one package: of the function that was given to torch.compile, and of its parts."""

    def __init__(self) -> None:
        self.dropped: list[DroppedGuard] = []
        self.unknowable = ""  # why this package can be used by nobody else

    def take(self, entries: Any, module: str, *, top: bool) -> None:
        """The guards of one compile; `top`: of the function itself, whose `self` is known."""
        for entry in entries:
            if not is_dropped(entry):
                continue
            source = entry.orig_guard.name
            if not top and "L[" in source:
                self.unknowable = f"{source} is looked at in a part of its own"
                continue
            try:
                self.dropped.append(DroppedGuard(source, module, identity(entry.value)))
            except UnknownIdentity as error:
                self.unknowable = f"{source}: {error}"

    def write(self, folder: str) -> None:
        """Beside the package."""
        rows = sorted({(one.source, one.module, one.what) for one in self.dropped})
        write_atomically(Path(folder) / GUARDS_FILE, json.dumps(rows))

    def watch(self, function: Callable[..., Any]) -> Callable[[], tuple[int, ...]]:
        """The identities of all of them in this process, as quickly as Python can tell."""
        ids: dict[str, list[str]] = {}
        for source, module in sorted({(one.source, one.module) for one in self.dropped}):
            ids.setdefault(module, []).append(f"id({source})")
        known = known_locals(function)
        looks: list[Callable[[], tuple[int, ...]]] = [
            eval(f"lambda: ({', '.join(parts)},)", {"L": known, "G": ModuleGlobals(module)})
            for module, parts in ids.items()
        ]
        if len(looks) == 1:
            return looks[0]
        return lambda: tuple(itertools.chain.from_iterable(look() for look in looks))


def is_dropped(entry: Any) -> bool:
    """Whether torch drops this guard from a package."""
    derived = set(entry.derived_guard_types)
    return entry.guard_type in DROPPED_KINDS or bool(derived & {"ID_MATCH", "DICT_VERSION"})


def read_guards(folder: str) -> list[DroppedGuard]:
    """What was kept beside a package."""
    with open(os.path.join(folder, GUARDS_FILE), encoding="utf-8") as file:
        return [DroppedGuard(*row) for row in json.load(file)]


def mismatch_reason(folder: str, function: Callable[..., Any]) -> str:
    """Why a package may not be used for this function; empty if it may."""
    try:
        dropped = read_guards(folder)
    except (OSError, ValueError, TypeError):
        return "nothing is kept of the guards it lacks"
    known = known_locals(function)
    for one in dropped:
        try:
            scope = {"L": known, "G": ModuleGlobals(one.module)}
            found = identity(eval(one.source, scope))
        except Exception as error:
            return f"{one.source} cannot be told here: {type(error).__name__}"
        if found != one.what:
            return f"{one.source} was {one.what} and is {found}"
    return ""


def known_locals(function: Callable[..., Any]) -> dict[str, Any]:
    """The locals that are known before a call: `self`."""
    owner = getattr(function, "__self__", None)
    code = getattr(function, "__code__", None)
    return {code.co_varnames[0]: owner} if owner is not None and code and code.co_varnames else {}
