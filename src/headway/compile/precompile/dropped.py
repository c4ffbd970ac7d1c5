"""The guards that torch drops from a package, kept beside it, and checked by what things are."""

from __future__ import annotations

import builtins
import itertools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.compile.precompile.identity import UnknownIdentity, identity
from headway.journal.folder import write_atomically

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
