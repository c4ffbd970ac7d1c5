"""What a job has saved, from its journals: where the checkpoint may be that is published."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.journal.reader import Journal, Span, read_journals
from headway.probe.hooks.checkpoint import file_identity

DCP_METADATA = ".metadata"  # of a folder of DCP
UNSUPPORTED_FORMATS = ("safetensors",)  # by what a publish cannot begin with


@dataclass(frozen=True)
class SavedCheckpoints:
    """By how they were written, the last ones first; paths are those where they are now."""

    stores: tuple[str, ...] = ()  # of Checkpointers
    folders: tuple[str, ...] = ()  # of DCP
    files: tuple[str, ...] = ()  # of torch.save
    here: bool = True  # rank 0 ran on this host


def find_saved(folder: Path, host: str) -> SavedCheckpoints:
    """All saves of a run, in the folder of its journals."""
    journals, _ = read_journals(str(folder))
    first = [journal for journal in journals if journal.rank in (0, None)]
    spans = sorted(_finished_saves(first), key=lambda pair: -pair[0])
    stores = [store for _, span in spans if isinstance(store := span.fields.get("store"), str)]
    paths = list(filter(None, (_current_path(span) for _, span in spans)))
    ranked = any(journal.rank is not None for journal in journals)
    hosts = [j.host for j in sorted(first, key=lambda j: j.wall) if j.rank == 0]
    return SavedCheckpoints(
        stores=tuple(dict.fromkeys(stores)),
        folders=tuple(dict.fromkeys(path for path in paths if os.path.isdir(path))),
        files=tuple(dict.fromkeys(path for path in paths if os.path.isfile(path))),
        here=hosts[-1:] == [host] if ranked else True,
    )


def _finished_saves(journals: Sequence[Journal]) -> Iterator[tuple[int, Span]]:
    """Those that came to their end, and when that was by the wall clock."""
    for journal in journals:
        for span in journal.spans:
            torn = span.end is None or span.fields.get("error") or span.fields.get("part")
            if span.name == "checkpoint_save" and not torn:
                yield journal.wall + (span.end or 0) - journal.opened, span


def _current_path(span: Span) -> str | None:
    """Where that save is now: many are written aside, and renamed when they are whole."""
    path, wanted = span.fields.get("path"), span.fields.get("file")
    if not isinstance(path, str) or "://" in path or span.fields.get("what") in UNSUPPORTED_FORMATS:
        return None
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, DCP_METADATA)):
        return None
    if file_identity(path) == (wanted or file_identity(path)):
        return path if os.path.exists(path) else None
    above = os.path.dirname(path)
    try:
        beside = [os.path.join(above, name) for name in os.listdir(above)]
    except OSError:
        return None
    return next((one for one in beside if file_identity(one) == wanted), None)
