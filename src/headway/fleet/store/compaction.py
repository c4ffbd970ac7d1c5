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
        with_code(f"left as it is: {reason}", code="file-damaged")
        for reason in (*damaged.values(), *damaged_markers(store, live_files))
    )
    return CompactionResult(len(inputs) if files else 0, files, rows, deleted, notes)


def _select_inputs(live_files: LiveFiles, damaged: Collection[str]) -> set[str]:
    """All plain writes, and those settled compactions that are not much larger than them."""
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
    """The rows of the chosen stems that count, one file for each table and day."""
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
    """Settle compactions and delete what they replace, and what dead writers left."""
    now = time.time()
    current = _finalize(store, now - grace_s)
    files = store.data_files()
    deleted = 0
    undecided = set(current.damaged)  # what they replace is not known for sure, and they hide it
    for write_id in sorted(current.finalized):  # in this order: one may replace an earlier one
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
        if current.missing(write_id):  # it lost, and can never count again
            store.files.delete(manifest.compaction_marker(write_id))
    return deleted + _delete(store, _orphans(store, now - DEAD_S))


def _finalize(store: Store, before: float) -> manifest.Manifest:
    """Those that were complete by then, and count, count from now on whatever comes."""
    current = store.read_manifest()
    active = set(current.active_compactions())
    for entry in list(store.files.entries(manifest.COMPACTIONS)):
        for write_id in manifest.marker_ids([entry.name], ".json") & active - current.finalized:
            if entry.modified_at <= before:
                content = manifest.to_marker(current.compactions[write_id], SCHEMA)
                store.files.put(manifest.finalized_marker(write_id), content)
    return store.read_manifest()


def _orphans(store: Store, before: float) -> list[str]:
    """Old files of no write and no compaction, and what was never renamed."""
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
