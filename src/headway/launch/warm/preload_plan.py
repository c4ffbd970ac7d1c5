"""What to preload: the modules that the last attempt of this job imported, by its own journals."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.journal import file_access
from headway.journal.run_files import JOURNAL
from headway.storage.atomic_write import write_atomically

# torch and its dependencies: known to start no thread, open no file and use no device.
TORCH_FAMILY = {
    "torch", "numpy", "triton", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock",
    "fsspec", "typing_extensions", "torchgen", "functorch", "setuptools", "packaging",
}  # fmt: skip
STATE_FILE = "warm.json"
STATE_FIELDS = ("off", "left_out", "good", "seconds", "cold")
EVENT = b'"ev":"imported"'
IMPORTS = (b'"name":"import"', b'"name":"compile_import"')
# Variables that determine which code an interpreter loads: a script sets them for its children
# only, and a journal that someone else has written must not load code into this process.
LOADER_PREFIXES = ("LD_", "PYTHON")
MAX_LINES, MAX_JOURNALS = 4000, 64  # limits of the search


@dataclass(frozen=True, kw_only=True)
class PreloadPlan:
    """What a forkserver imports, and what is known about the programs that import it."""

    modules: list[str] = field(default_factory=list)
    preset: dict[str, str] = field(default_factory=dict)
    mains: dict[str, str] = field(default_factory=dict)
    ranked: bool = False  # the environment contains the rank
    workers: int = 0  # ranks of this host
    seconds: float = 0.0  # of the imports of an agent and then of a rank


# What torchrun and its ranks import, before anything is known about the job.
TORCHRUN_PROGRAM = ("torchrun", "torch.distributed.run")  # as a script and as a module
TORCHRUN_PLAN = PreloadPlan(modules=["torch", "torch.distributed.run"], ranked=True)


@dataclass(kw_only=True)
class WarmState:
    """The content of warm.json: what one launch has learned for the next."""

    off: str = ""  # why warm starts are disabled for this run
    left_out: dict[str, str] = field(default_factory=dict)
    good: list[str] = field(default_factory=list)
    seconds: float = 0.0  # CPU time of a forkserver's imports
    cold: float = 0.0  # of the imports of a cold start, as far as they are sequential

    @classmethod
    def read(cls, folder: Path) -> WarmState:
        """The state in the file; the default if it is missing or invalid."""
        try:
            content = json.loads((folder / STATE_FILE).read_text())
            fields = {key: content[key] for key in STATE_FIELDS if key in content}
        except (OSError, ValueError, TypeError):
            return cls()
        return cls(**fields)

    def write(self, folder: Path) -> None:
        """Merge into the file, which other nodes write too; errors are ignored."""
        stored = WarmState.read(folder)
        content = {
            "schema": 1,
            "off": self.off or stored.off,
            "left_out": {**stored.left_out, **self.left_out},
            "good": sorted({*stored.good, *self.good}),
            "seconds": self.seconds,
            "cold": self.cold,
        }
        with contextlib.suppress(OSError):
            write_atomically(folder / STATE_FILE, json.dumps(content, indent=1) + "\n")


def find_plan(folder: Path, host: str) -> PreloadPlan | None:
    """The plan by the newest launch of this run with a report; None without one."""
    journals = _newest_journals(folder / JOURNAL, host)
    reporting = [(head, event) for head, event in journals if event]
    if not reporting:
        return None
    newest = max((head for head, _ in reporting), key=lambda head: head.get("wall", 0)).get(
        "launch"
    )
    # Ranks first: the order of imports is theirs.
    newest_reports = sorted(
        (pair for pair in reporting if pair[0].get("launch") == newest),
        key=lambda pair: (pair[0].get("rank") is None, pair[0].get("wall", 0)),
    )
    ranks = {head.get("local_rank") for head, _ in journals if head.get("launch") == newest}
    if ranks - {None} and all(head.get("local_rank") is None for head, _ in newest_reports):
        return None  # only their agent has reported so far
    return combine_plans(newest_reports, len(ranks - {None}))


def combine_plans(
    reports: Iterable[tuple[dict[str, Any], dict[str, Any]]], workers: int = 0
) -> PreloadPlan:
    """One plan for all processes of an attempt."""
    modules: dict[str, None] = {}
    preset: dict[str, str] = {}
    conflicting: set[str] = set()
    mains: dict[str, str] = {}
    ranked, seconds = False, {True: 0.0, False: 0.0}
    for head, event in reports:
        agent = head.get("rank") is None
        seconds[agent] = max(seconds[agent], event.get("seconds", 0.0))
        modules.update(dict.fromkeys(unfold_names(event.get("modules", []))))
        ranked = ranked or head.get("local_rank") is not None
        for name, value in event.get("set", {}).items():
            if name.startswith(LOADER_PREFIXES):
                continue
            if preset.get(name, value) != value or value is None:
                conflicting.add(name)
            elif isinstance(value, str):
                preset[name] = value
        if event.get("main"):
            mains[event["main"]] = event.get("file", "")
    if conflicting:  # not the same for all: programs that set these must be started cold
        mains = {}
    return PreloadPlan(
        modules=list(modules),
        preset={name: value for name, value in preset.items() if name not in conflicting},
        mains=mains,
        ranked=ranked,
        workers=workers,
        seconds=sum(seconds.values()),
    )


def unfold_names(names: Iterable[str]) -> Iterator[str]:
    """The names that `import_log.fold` shortened: a leading dot is the package before it."""
    package = ""
    for name in names:
        full = package + name if name.startswith(".") else name
        package = full.rpartition(".")[0]
        yield full


def _newest_journals(journal: Path, host: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Head and imports of each of the newest journals, of this host if there are any."""
    with contextlib.suppress(OSError):
        entries = [entry for entry in os.scandir(journal) if entry.name.endswith(".jsonl")]
        processes = [entry for entry in entries if not entry.name.startswith("launcher-")]
        own = [entry for entry in processes if entry.name.startswith(f"{host}-")] or processes
        own.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
        return [
            journal_head
            for entry in own[:MAX_JOURNALS]
            if (journal_head := _read_imports(entry.path))
        ]
    return []


def _read_imports(path: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Head of the journal, and its imports with the seconds that they took."""
    opened: dict[Any, int] = {}
    spans: list[tuple[int, int]] = []
    with (
        contextlib.suppress(OSError, ValueError, StopIteration, KeyError),
        file_access.open_file(path) as file,
    ):
        head = json.loads(next(file))
        for _, line in zip(range(MAX_LINES), file, strict=False):
            if EVENT in line[:40]:
                return head, {**json.loads(line), "seconds": union_ns(spans) / 1e9}
            if any(name in line for name in IMPORTS):
                span = json.loads(line)
                if span["ev"] == "open":
                    opened[span["id"]] = span["t"]
                elif span["ev"] == "span":
                    spans.append((span["t"], span["end"]))
            elif opened and line.startswith(b'{"ev":"close"'):
                span = json.loads(line)
                if span["id"] in opened:
                    spans.append((opened.pop(span["id"]), span["t"]))
        return head, {}
    return None


def union_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Time in which at least one of the spans was open."""
    total, until = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total
