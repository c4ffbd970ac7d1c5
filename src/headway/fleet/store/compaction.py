"""Merge many small files into few, safe while writers, readers and other compactions run.

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

GRACE_S = 3600.0  # time for running queries to finish before replaced files are deleted
DEAD_S = 86400.0  # files without a commit belong to a killed writer after this; see parquet.WRITE_S
GROWTH = 2  # a compacted write is compacted again when new data reaches half its size


class CompactionResult(NamedTuple):
    """The result of one compaction."""

    replaced: int  # writes
    files: int  # new files
    rows: int
    deleted: int  # files that earlier compactions had replaced or that killed writers left behind
    notes: tuple[str, ...] = ()


def compact(store: Store, *, grace_s: float = GRACE_S) -> CompactionResult:
    """Delete replaced files of earlier compactions, then merge small files."""
    arrow.require_packages(*arrow.READ_PACKAGES)
    store.check()
    deleted = collect_garbage(store, grace_s)
    damaged: dict[str, str] = {}
    for retries in reversed(range(TRIES)):
        live_files = store.live_files()
        inputs = _select_inputs(live_files, damaged)
        try:
            files, rows = _merge(store, live_files, damaged, inputs) if len(inputs) > 1 else (0, 0)
            break
        except HeadwayError:
            raise
        except Exception:
            newly_damaged = find_damaged(store, live_files, skip=damaged)
            damaged.update(newly_damaged)
            if not retries or not newly_damaged:
                raise
    notes = tuple(
        with_code(f"not compacted: {reason}", code="file-damaged")
        for reason in (*damaged.values(), *damaged_markers(store, live_files))
    )
    return CompactionResult(len(inputs) if files else 0, files, rows, deleted, notes)


def _select_inputs(live_files: LiveFiles, damaged: Collection[str]) -> set[str]:
    """All plain writes, and finalized compactions that are not much larger than them."""
    sizes: dict[str, int] = {}
    for file in live_files.files:
        sizes[file.write_id] = sizes.get(file.write_id, 0) + file.size
    current = live_files.manifest
    live_ids = current.live_ids() - {
        file.write_id for file in live_files.files if file.name in damaged
    }
    live_ids -= current.damaged
    inputs = set(live_ids & current.writes)
    total = sum(sizes.get(write_id, 0) for write_id in inputs)
    for write_id in sorted(
        live_ids & current.finalized, key=lambda write_id: (sizes.get(write_id, 0), write_id)
    ):
        if inputs and sizes.get(write_id, 0) <= GROWTH * total:
            inputs.add(write_id)
            total += sizes.get(write_id, 0)
    return inputs


def _merge(
    store: Store, live_files: LiveFiles, damaged: Collection[str], inputs: set[str]
) -> tuple[int, int]:
    """Write the live rows of the inputs, one file per table and day; return files and rows."""
    start = time.monotonic()
    write_id = f"c{round(time.time() * 1000):013d}-{secrets.token_hex(4)}"
    files = rows = 0
    with open_view(store, live_files, without=damaged) as view:
        for name, day in sorted(
            {(f.table, f.day) for f in live_files.files if f.write_id in inputs}
        ):
            file_names = {f.name for f in live_files.files if f.write_id in inputs and f.day == day}
            table = view.table(name, file_names)
            part = view.get(table.order_by(["run_id", TABLES[name].day]))
            if part.num_rows:
                content = arrow.to_parquet(part.cast(arrow.arrow_schema(TABLES[name])))
                store.files.put(manifest.file_name(name, day, write_id, SCHEMA), content)
                files, rows = files + 1, rows + part.num_rows
    if time.monotonic() - start > DEAD_S / 2:
        raise HeadwayError(
            f"compacting {store.url} took more than {DEAD_S / 2:.0f} s", code="store-too-slow"
        )
    store.files.put(manifest.compaction_marker(write_id), manifest.to_marker(inputs, SCHEMA))
    return files, rows


def collect_garbage(store: Store, grace_s: float) -> int:
    """Finalize compactions, delete what they replace, and delete files of killed writers."""
    now = time.time()
    current = _finalize(store, now - grace_s)
    files = store.data_files()
    deleted = 0
    undecided = set(current.damaged)  # what these replace is not certain
    # in order of time: a compaction may replace an earlier one
    for write_id in sorted(current.finalized):
        replaced = current.compactions[write_id]
        if write_id in undecided or replaced & undecided:
            undecided.add(write_id)
            continue
        deleted += _delete(store, [file.name for file in files if file.write_id in replaced])
        for replaced_id in replaced:
            for marker in (
                manifest.commit_marker(replaced_id),
                manifest.compaction_marker(replaced_id),
                manifest.finalized_marker(replaced_id),
            ):
                store.files.delete(marker)
    live_ids = current.live_ids()
    for write_id in current.compactions.keys() - live_ids - current.finalized:
        if current.missing(write_id):  # another compaction won, so this one can never become active
            store.files.delete(manifest.compaction_marker(write_id))
    return deleted + _delete(store, _orphans(store, now - DEAD_S))


def _finalize(store: Store, before: float) -> manifest.Manifest:
    """Finalize the active compactions whose marker was written at or before `before`."""
    current = store.read_manifest()
    active = set(current.active_compactions())
    for entry in list(store.files.entries(manifest.COMPACTIONS)):
        for write_id in manifest.marker_ids([entry.name], ".json") & active - current.finalized:
            if entry.modified_at <= before:
                content = manifest.to_marker(current.compactions[write_id], SCHEMA)
                store.files.put(manifest.finalized_marker(write_id), content)
    return store.read_manifest()


def _orphans(store: Store, before: float) -> list[str]:
    """Old files that belong to no write and no compaction, and temporary files."""
    current = store.read_manifest()
    known_ids = current.writes | current.compactions.keys() | current.damaged
    orphans = []
    for folder in (*TABLES, manifest.COMMITS, manifest.COMPACTIONS):
        for entry in store.files.entries(folder):
            file = manifest.parse_file_name(entry.name, entry.size)
            is_temporary = entry.name.rpartition("/")[2].startswith(".")
            if entry.modified_at <= before and (
                is_temporary or (file and file.write_id not in known_ids)
            ):
                orphans.append(entry.name)
    return orphans


def _delete(store: Store, names: Collection[str]) -> int:
    for name in names:
        store.files.delete(name)
    return len(names)
