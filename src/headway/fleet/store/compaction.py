"""Merge many small files into few, safely beside writers, readers and other compactions.

A compaction writes its files under an ID of its own, then publishes one marker that lists the IDs
it replaces; from then on readers use its files. Replaced files stay for a grace period for running
readers; a later compaction finalizes the earlier one and deletes them. See manifest.py.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from typing import NamedTuple

from headway.errors import HeadwayError, with_code
from headway.fleet.schema import SCHEMA, TABLES
from headway.fleet.store import arrow, manifest
from headway.fleet.store.parquet import LiveFiles, Store
from headway.fleet.store.reader import TRIES, damaged_markers, find_damaged
from headway.fleet.store.view import open_view

GRACE_S = 3600.0  # how long a reader may be at work
DEAD_S = 86400.0  # a file without a commit is a dead writer's; see store.WRITE_S
GROWTH = 2  # a compacted stem is taken again when what is new has grown to half of it


class CompactionResult(NamedTuple):
    """What was done."""

    replaced: int  # stems
    files: int  # that took their place
    rows: int
    deleted: int  # files that earlier rounds had replaced, or that dead writers left
    notes: tuple[str, ...] = ()


def compact(store: Store, *, grace_s: float = GRACE_S) -> CompactionResult:
    """One round: clear up after the earlier ones, then merge what is small."""
    arrow.require_packages(*arrow.READ_PACKAGES)
    store.check()
    deleted = clear(store, grace_s)
    damaged: dict[str, str] = {}
    for left in reversed(range(TRIES)):
        snapshot = store.snapshot()
        chosen = _choose(snapshot, damaged)
        try:
            files, rows = _merge(store, snapshot, damaged, chosen) if len(chosen) > 1 else (0, 0)
            break
        except HeadwayError:
            raise
        except Exception:
            new = find_damaged(store, snapshot, known=damaged)
            damaged.update(new)
            if not left or not new:
                raise
    notes = tuple(
        with_code(f"left as it is: {why}", code="file-damaged")
        for why in (*damaged.values(), *damaged_markers(store, snapshot))
    )
    return CompactionResult(len(chosen) if files else 0, files, rows, deleted, notes)


def _choose(snapshot: LiveFiles, damaged: Collection[str]) -> set[str]:
    """All plain writes, and those settled compactions that are not much larger than them."""
    sizes: dict[str, int] = {}
    for file in snapshot.files:
        sizes[file.stem] = sizes.get(file.stem, 0) + file.size
    told = snapshot.log
    live = told.live() - {file.stem for file in snapshot.files if file.name in damaged}
    live -= told.damaged
    chosen = set(live & told.writes)
    total = sum(sizes.get(stem, 0) for stem in chosen)
    for stem in sorted(live & told.settled, key=lambda one: (sizes.get(one, 0), one)):
        if chosen and sizes.get(stem, 0) <= GROWTH * total:
            chosen.add(stem)
            total += sizes.get(stem, 0)
    return chosen


def _merge(
    store: Store, snapshot: LiveFiles, damaged: Collection[str], chosen: set[str]
) -> tuple[int, int]:
    """The rows of the chosen stems that count, one file for each table and day."""
    began = time.monotonic()
    stem = f"c{round(time.time() * 1000):013d}-{secrets.token_hex(4)}"
    files = rows = 0
    with open_view(store, snapshot, without=damaged) as found:
        for name, day in sorted({(f.table, f.day) for f in snapshot.files if f.stem in chosen}):
            wanted = {f.name for f in snapshot.files if f.stem in chosen and f.day == day}
            table = found.table(name, wanted)
            part = found.get(table.order_by(["run_id", TABLES[name].day]))
            if part.num_rows:
                content = arrow.to_parquet(part.cast(arrow.arrow_schema(TABLES[name])))
                store.place.put(manifest.file_name(name, day, stem, SCHEMA), content)
                files, rows = files + 1, rows + part.num_rows
    if time.monotonic() - began > DEAD_S / 2:
        raise HeadwayError(
            f"compacting {store.url} took more than {DEAD_S / 2:.0f} s", code="store-too-slow"
        )
    store.place.put(manifest.compaction_marker(stem), manifest.to_marker(chosen, SCHEMA))
    return files, rows


def clear(store: Store, grace_s: float) -> int:
    """Settle compactions and delete what they replace, and what dead writers left."""
    now = time.time()
    told = _finalize(store, now - grace_s)
    files = store.files()
    gone = 0
    left = set(told.damaged)  # what they replace is not known for sure, and they hide it
    for stem in sorted(told.settled):  # in this order: one may replace an earlier one
        replaced = told.compactions[stem]
        if stem in left or replaced & left:
            left.add(stem)
            continue
        gone += _delete(store, [file.name for file in files if file.stem in replaced])
        for old in replaced:
            for marker in (
                manifest.commit_marker(old),
                manifest.compaction_marker(old),
                manifest.finalized_marker(old),
            ):
                store.place.delete(marker)
    counted = told.live()
    for stem in told.compactions.keys() - counted - told.settled:
        if told.missing(stem):  # it lost, and can never count again
            store.place.delete(manifest.compaction_marker(stem))
    return gone + _delete(store, _orphans(store, now - DEAD_S))


def _finalize(store: Store, before: float) -> manifest.Manifest:
    """Those that were complete by then, and count, count from now on whatever comes."""
    told = store.read_log()
    counted = set(told.in_force())
    for entry in list(store.place.entries(manifest.COMPACTIONS)):
        for stem in manifest.marker_ids([entry.name], ".json") & counted - told.settled:
            if entry.changed <= before:
                copy = manifest.to_marker(told.compactions[stem], SCHEMA)
                store.place.put(manifest.finalized_marker(stem), copy)
    return store.read_log()


def _orphans(store: Store, before: float) -> list[str]:
    """Old files of no write and no compaction, and what was never renamed."""
    told = store.read_log()
    known = told.writes | told.compactions.keys() | told.damaged
    found = []
    for folder in (*TABLES, manifest.COMMITS, manifest.COMPACTIONS):
        for entry in store.place.entries(folder):
            file = manifest.parse_file_name(entry.name, entry.size)
            aside = entry.name.rpartition("/")[2].startswith(".")
            if entry.changed <= before and (aside or (file and file.stem not in known)):
                found.append(entry.name)
    return found


def _delete(store: Store, names: Collection[str]) -> int:
    for name in names:
        store.place.delete(name)
    return len(names)
