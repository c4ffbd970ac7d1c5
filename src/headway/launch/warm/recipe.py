"""What to import ahead: what this job's last attempt has imported, by its own journals."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.journal.folder import JOURNAL, write_atomically

# torch and what it brings: known not to start threads, not to open files, not to touch a device.
FAMILY = {
    "torch", "numpy", "triton", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock",
    "fsspec", "typing_extensions", "torchgen", "functorch", "setuptools", "packaging",
}  # fmt: skip
MEMORY = "warm.json"
EVENT = b'"ev":"imported"'
MOST_LINES = 4000  # of one journal that are looked through


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a zygote imports, and what is known of the programs that import it."""

    modules: list[str] = field(default_factory=list)
    preset: dict[str, str] = field(default_factory=dict)
    mains: dict[str, str] = field(default_factory=dict)
    ranked: bool = False  # the environment says who is which rank
    workers: int = 0  # ranks of this host


@dataclass(kw_only=True)
class Memory:
    """warm.json: what one launch has learned for the next."""

    off: str = ""  # why warm starts are off for this run
    left_out: dict[str, str] = field(default_factory=dict)
    good: list[str] = field(default_factory=list)
    seconds: float = 0.0  # that the imports took

    @classmethod
    def read(cls, folder: Path) -> Memory:
        """Nothing where there is nothing, or something else."""
        try:
            raw = json.loads((folder / MEMORY).read_text())
            known = {key: raw[key] for key in ("off", "left_out", "good", "seconds") if key in raw}
        except (OSError, ValueError, TypeError):
            return cls()
        return cls(**known)

    def write(self, folder: Path) -> None:
        """A run folder that is gone is no reason to fail."""
        content = {"schema": 1, **self.__dict__}
        with contextlib.suppress(OSError):
            write_atomically(folder / MEMORY, json.dumps(content, indent=1) + "\n")


def find(folder: Path, host: str) -> Recipe | None:
    """From the newest launch of this run that has told; None before that."""
    told = list(_told(folder / JOURNAL))
    if not told:
        return None
    newest = max(told, key=lambda pair: pair[0].get("wall", 0))[0].get("launch")
    mine = [pair for pair in told if pair[0].get("launch") == newest]
    here = [pair for pair in mine if pair[0].get("host") == host] or mine
    # Ranks first: the order of imports is theirs.
    here.sort(key=lambda pair: (pair[0].get("rank") is None, pair[0].get("wall", 0)))
    return combine(here, _ranks(folder / JOURNAL, newest, host))


def combine(told: Iterable[tuple[dict[str, Any], dict[str, Any]]], workers: int = 0) -> Recipe:
    """One recipe for all processes of an attempt."""
    modules: dict[str, None] = {}
    preset: dict[str, str] = {}
    unsure: set[str] = set()
    mains: dict[str, str] = {}
    ranked = False
    for head, event in told:
        modules.update(dict.fromkeys(unfold(event.get("modules", []))))
        ranked = ranked or head.get("local_rank") is not None
        for name, value in event.get("set", {}).items():
            if preset.get(name, value) != value or value is None:
                unsure.add(name)
            elif isinstance(value, str):
                preset[name] = value
        if event.get("main"):
            mains[event["main"]] = event.get("file", "")
    if unsure:  # not the same for all: whoever sets these must be started cold
        mains = {}
    return Recipe(
        modules=list(modules),
        preset={name: value for name, value in preset.items() if name not in unsure},
        mains=mains,
        ranked=ranked,
        workers=workers,
    )


def unfold(names: Iterable[str]) -> Iterator[str]:
    """The names as `imports.fold` has shortened them: a leading dot is the last one's package."""
    package = ""
    for name in names:
        full = package + name if name.startswith(".") else name
        package = full.rpartition(".")[0]
        yield full


def _told(journal: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Head and event of every process that has told what it imported."""
    for path in journal.glob("*.jsonl"):
        if path.name.startswith("launcher-"):
            continue
        with contextlib.suppress(OSError, ValueError, StopIteration), open(path, "rb") as file:
            head = json.loads(next(file))
            for _, line in zip(range(MOST_LINES), file, strict=False):
                if EVENT in line[:40]:
                    yield head, json.loads(line)
                    break


def _ranks(journal: Path, launch: Any, host: str) -> int:
    """How many ranks of a launch ran on this host."""
    found = set()
    for path in journal.glob(f"{host}-*.jsonl"):
        with contextlib.suppress(OSError, ValueError, StopIteration), open(path, "rb") as file:
            head = json.loads(next(file))
            if head.get("launch") == launch and head.get("local_rank") is not None:
                found.add(head["local_rank"])
    return len(found)


def is_small(found: Recipe) -> bool:
    """Nothing but torch and what it brings."""
    return small(found) == found.modules


def small(found: Recipe) -> list[str]:
    """The modules that are known to be safe."""
    known = FAMILY | sys.stdlib_module_names
    return [name for name in found.modules if name.partition(".")[0] in known]
