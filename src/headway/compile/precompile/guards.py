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
DROPPED_KINDS = {"ID_MATCH", "CLOSURE_MATCH", "WEAKREF_ALIVE", "DICT_VERSION"}
GUARDS_FILE = "headway-guards.json"


class UnknownIdentity(Exception):
    """The object has no description that is valid in another process."""


def identity(value: Any, depth: int = 0) -> str:
    """Describe an object; equal texts in two processes mean that code for one is right for both."""
    if depth > MAX_DEPTH:
        raise UnknownIdentity(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, PLAIN_TYPES):
        return f"{type(value).__qualname__} {value!r}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    if isinstance(value, types.FunctionType):
        return _function(value, depth)
    if isinstance(value, types.MethodType):
        return f"method {identity(value.__func__, depth + 1)} of {_kind(value.__self__)}"
    if isinstance(value, functools.partial):
        parts = [value.func, *value.args, *(value.keywords[k] for k in sorted(value.keywords))]
        parts_text = " ".join(identity(part, depth + 1) for part in parts)
        return f"partial {sorted(value.keywords)} {parts_text}"
    if isinstance(value, (list, tuple)):
        return f"{_kind(value)} {[identity(item, depth + 1) for item in value]}"
    if isinstance(value, dict):
        return f"{_kind(value)} {_items(value, depth)}"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(name, str):  # C functions, torch operators
        return f"{_kind(value)} {getattr(value, '__module__', None)}.{name}"
    # Its attributes have guards of their own, which torch keeps.
    return f"a {_kind(value)}"


def _function(function: types.FunctionType, depth: int) -> str:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(identity(cell.cell_contents, depth + 1))
        except ValueError:
            cells.append("empty")
    defaults = [identity(value, depth + 1) for value in function.__defaults__ or ()]
    keywords = _items(function.__kwdefaults__ or {}, depth)
    text = "\n".join([code_text(function.__code__), *cells, *defaults, str(keywords)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"function {function.__module__}.{function.__qualname__} {digest}"


def code_text(code: types.CodeType) -> str:
    """Everything that defines what code computes, except the values of names that it looks up."""
    count = code.co_argcount + code.co_kwonlyargcount
    flags = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    signature = (code.co_posonlyargcount, code.co_argcount, flags, code.co_varnames[:count])
    constants = [_constant(part) for part in code.co_consts]
    return f"{code.co_code!r} {code.co_exceptiontable!r} {code.co_names} {signature} {constants}"


def _constant(constant: Any) -> str:
    if isinstance(constant, types.CodeType):
        return code_text(constant)
    if isinstance(constant, frozenset):  # its order differs between processes
        return f"frozenset {sorted(map(_constant, constant))}"
    if isinstance(constant, tuple):
        return f"tuple {list(map(_constant, constant))}"
    return repr(constant)


def _items(mapping: dict[Any, Any], depth: int) -> list[str]:
    return [f"{key!r}: {identity(mapping[key], depth + 1)}" for key in mapping]


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


@dataclass(frozen=True)
class DroppedGuard:
    """A dropped guard: its expression, the module of its globals, and the object's identity."""

    source: str
    module: str
    identity: str


class ModuleGlobals:
    """The current globals of a module, with the names that dynamo adds while it compiles."""

    def __init__(self, module: str) -> None:
        self._globals = vars(sys.modules[module])

    def __getitem__(self, name: str) -> Any:
        if name in self._globals:
            return self._globals[name]
        if name.startswith("__import_"):
            return sys.modules[name.removeprefix("__import_").replace("_dot_", ".")]
        if name.startswith("__builtins_dict__"):
            return vars(builtins)
        raise KeyError(name)


class PackageGuards:
    """Dropped guards of a package: of the function given to torch.compile, and of its parts."""

    def __init__(self) -> None:
        self.dropped: list[DroppedGuard] = []
        self.unportable_reason = ""  # why no other process can use the package

    def add(self, entries: Any, module: str, *, top: bool) -> None:
        """Add the guards of a compile; `top`: of the function itself, whose `self` is known."""
        for entry in entries:
            if not is_dropped(entry):
                continue
            source = entry.orig_guard.name
            if not top and "L[" in source:
                self.unportable_reason = f"{source} is used in a separately compiled part"
                continue
            try:
                self.dropped.append(DroppedGuard(source, module, identity(entry.value)))
            except UnknownIdentity as error:
                self.unportable_reason = f"{source}: {error}"

    def write(self, folder: str) -> None:
        """Write them into the package's folder."""
        rows = sorted({(guard.source, guard.module, guard.identity) for guard in self.dropped})
        write_atomically(Path(folder) / GUARDS_FILE, json.dumps(rows))

    def make_id_reader(self, function: Callable[..., Any]) -> Callable[[], tuple[int, ...]]:
        """Return a fast function that returns the ids of all guarded objects in this process."""
        ids: dict[str, list[str]] = {}
        for source, module in sorted({(guard.source, guard.module) for guard in self.dropped}):
            ids.setdefault(module, []).append(f"id({source})")
        scope_locals = known_locals(function)
        readers: list[Callable[[], tuple[int, ...]]] = [
            eval(f"lambda: ({', '.join(parts)},)", {"L": scope_locals, "G": ModuleGlobals(module)})
            for module, parts in ids.items()
        ]
        if len(readers) == 1:
            return readers[0]
        return lambda: tuple(itertools.chain.from_iterable(read() for read in readers))


def is_dropped(entry: Any) -> bool:
    """Whether torch drops this guard from a package."""
    derived = set(entry.derived_guard_types)
    return entry.guard_type in DROPPED_KINDS or bool(derived & {"ID_MATCH", "DICT_VERSION"})


def read_guards(folder: str) -> list[DroppedGuard]:
    """Read the guards from a package's folder."""
    with open(os.path.join(folder, GUARDS_FILE), encoding="utf-8") as file:
        return [DroppedGuard(*row) for row in json.load(file)]


def mismatch_reason(folder: str, function: Callable[..., Any]) -> str:
    """Why a package cannot be used for this function; empty if it can."""
    try:
        dropped = read_guards(folder)
    except (OSError, ValueError, TypeError):
        return "the record of its dropped guards is missing or damaged"
    scope_locals = known_locals(function)
    for guard in dropped:
        try:
            scope = {"L": scope_locals, "G": ModuleGlobals(guard.module)}
            current = identity(eval(guard.source, scope))
        except Exception as error:
            return f"{guard.source} cannot be described here: {type(error).__name__}"
        if current != guard.identity:
            return f"{guard.source} was {guard.identity}, now it is {current}"
    return ""


def known_locals(function: Callable[..., Any]) -> dict[str, Any]:
    """The locals that are known before a call: only `self`."""
    owner = getattr(function, "__self__", None)
    code = getattr(function, "__code__", None)
    return {code.co_varnames[0]: owner} if owner is not None and code and code.co_varnames else {}
