"""What to import ahead: what the last attempt of this job imported, by its own journals."""

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

# torch and what it brings: known not to start threads, not to open files, not to touch a device.
TORCH_FAMILY = {
    "torch", "numpy", "triton", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock",
    "fsspec", "typing_extensions", "torchgen", "functorch", "setuptools", "packaging",
}  # fmt: skip
STATE_FILE = "warm.json"
STATE_FIELDS = ("off", "left_out", "good", "seconds", "cold")
EVENT = b'"ev":"imported"'
IMPORTS = (b'"name":"import"', b'"name":"compile_import"')
# What says which code an interpreter loads: a script sets it for its children only, and a journal
# that somebody else has written must not bring code into this one.
LOADER_PREFIXES = ("LD_", "PYTHON")
MAX_LINES, MAX_JOURNALS = 4000, 64  # that are looked through


@dataclass(frozen=True, kw_only=True)
class PreloadPlan:
    """What a zygote imports, and what is known of the programs that import it."""

    modules: list[str] = field(default_factory=list)
    preset: dict[str, str] = field(default_factory=dict)
    mains: dict[str, str] = field(default_factory=dict)
    ranked: bool = False  # the environment says who is which rank
    workers: int = 0  # ranks of this host
    seconds: float = 0.0  # that the imports of an agent and then of a rank took


# What torchrun imports, and its ranks as well, before anything is known of the job.
TORCHRUN_PROGRAM = ("torchrun", "torch.distributed.run")  # as a script, and as a module
TORCHRUN_PLAN = PreloadPlan(modules=["torch", "torch.distributed.run"], ranked=True)


@dataclass(kw_only=True)
class WarmState:
    """warm.json: what one launch has learned for the next."""

    off: str = ""  # why warm starts are off for this run
    left_out: dict[str, str] = field(default_factory=dict)
    good: list[str] = field(default_factory=list)
    seconds: float = 0.0  # of processor time for a zygote's imports
    cold: float = 0.0  # of the imports of a cold start, as far as one waits for the other

    @classmethod
    def read(cls, folder: Path) -> WarmState:
        """Nothing where there is nothing, or something else."""
        try:
            content = json.loads((folder / STATE_FILE).read_text())
            fields = {key: content[key] for key in STATE_FIELDS if key in content}
        except (OSError, ValueError, TypeError):
            return cls()
        return cls(**fields)

    def write(self, folder: Path) -> None:
        """Beside what other nodes have learned; a run folder that is gone is no reason to fail."""
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
    """From the newest launch of this run that has told; None before that."""
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
        return None  # their agent was the first to tell
    return combine_plans(newest_reports, len(ranks - {None}))


def combine_plans(
    reports: Iterable[tuple[dict[str, Any], dict[str, Any]]], workers: int = 0
) -> PreloadPlan:
    """One recipe for all processes of an attempt."""
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
    if conflicting:  # not the same for all: whoever sets these must be started cold
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
    """Head of each of the newest journals, and what it tells of imports; this host's, if any."""
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
    """Head, and the event with the seconds of the imports before it."""
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
    """How long at least one of them lasted."""
    total, until = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total
