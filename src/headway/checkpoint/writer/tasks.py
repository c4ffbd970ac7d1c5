"""Tasks of the writer process: write the part of a rank, then commit or abort the checkpoint."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headway.checkpoint.engine.buffers import map_memory
from headway.checkpoint.format.rank_file import BytesItem, TensorItem, write_part
from headway.checkpoint.store import commit
from headway.checkpoint.store import layout as manifests
from headway.checkpoint.store.cleanup import Policy, pin, retain, sweep
from headway.checkpoint.store.commit import AbortMark, Draft
from headway.checkpoint.store.commit import commit as commit_draft
from headway.checkpoint.store.layout import IDS_SUFFIX, ROWS_SUFFIX, delta_tables
from headway.checkpoint.store.store import Store
from headway.errors import HeadwayError, SaveFailed

ROW_BLOCK_BYTES = 1 << 20  # bytes of rows selected at once
OTHER_ERROR = "save-failed"  # the code of errors of other classes


@dataclass(frozen=True, kw_only=True)
class WriteJob:
    """A buffer to write, with everything that is needed to write it without the rank."""

    step: int
    layout: dict[str, Any]
    values: list[str]  # base64
    changed: list[dict[str, Any]]  # tables of which only the changed rows are written: see `_rows`
    parent: str  # the parent of the delta
    store: str
    save_id: str
    rank: int
    world: int
    extra: dict[str, Any]
    keep: dict[str, Any] | None
    anchor: bool
    rate: float | None
    compress: str | None = None

    def draft(self) -> Draft:
        return Draft(self.store, self.step, self.save_id, self.world)


def write(
    job: WriteJob,
    draft: Draft,
    image: memoryview,
    ids: int,
    on_progress: Callable[[], None] = lambda: None,
) -> int:
    """Write this rank's part from its buffer; return the bytes written.

    `ids` is a descriptor with the ids of the changed rows, one table after another; it is closed.
    """
    items = list(_items(job, image, map_memory(ids)))
    options: dict[str, Any] = {"rate": job.rate, "compress": job.compress is not None}
    options["on_progress"] = on_progress
    return write_part(draft.folder, job.rank, items, **options).file.size


def all_parts_written(job: WriteJob, draft: Draft) -> bool:
    return len(draft.parts()) == job.world


def is_settled(draft: Draft) -> bool:
    """Whether rank 0 has committed or aborted it."""
    files = draft.place.list_names(draft.name)
    return not files or (not draft.place.can_rename and manifests.MANIFEST in files)


def verify_committed(job: WriteJob, draft: Draft) -> None:
    """On the other ranks: raise unless the checkpoint exists."""
    if not any(
        checkpoint.manifest.save_id == job.save_id for checkpoint in Store(job.store).scan()[0]
    ):
        raise aborted_error(job, read_abort_mark(job, draft) or AbortMark(0, ""))


def read_abort_mark(job: WriteJob, draft: Draft) -> AbortMark | None:
    """The abort mark of a rank, if one has aborted it."""
    return commit.find_abort_mark(draft) if job.world > 1 else None


def abort(job: WriteJob, draft: Draft, mark: AbortMark) -> None:
    """Abort a save: leave a mark for the other ranks; rank 0 removes what was written."""
    # another rank wrote the mark
    unneeded = job.world == 1 or (job.rank != 0 and mark.rank != job.rank)
    written = unneeded or commit.write_abort_mark(draft, mark)
    if job.rank == 0:
        with contextlib.suppress(OSError):
            draft.place.delete_folder(draft.name)
    if not written:  # on a full disk there may be space now
        commit.write_abort_mark(draft, mark)


def aborted_error(job: WriteJob, mark: AbortMark) -> SaveFailed:
    """The error that the rank receives."""
    by = f" by rank {mark.rank}" if mark.rank != job.rank else ""
    reason = f": {mark.why}" if mark.why else ""
    sentence = f"the checkpoint of step {job.step} was aborted{by}{reason}"
    return SaveFailed(sentence, code="save-given-up", rank=mark.rank, cause=mark.code)


def error_outcome(error: Exception) -> dict[str, Any]:
    """The fields of an outcome that describe an error."""
    fields = error.fields if isinstance(error, HeadwayError) else {}
    return {"error": str(error) or type(error).__name__, "code": code_of(error), "fields": fields}


def code_of(error: BaseException) -> str:
    """The code of an error of Headway, or a common code for all others."""
    return error.code if isinstance(error, HeadwayError) else OTHER_ERROR


def commit_parts(job: WriteJob, draft: Draft) -> dict[str, Any]:
    """Commit the checkpoint; pin it if it is an anchor."""
    delta = any(delta_tables(part.file) for part in draft.parts())
    kind, parent = ("delta", job.parent) if delta else ("full", None)
    checkpoint = commit_draft(
        draft, _metadata_builder(job), kind=kind, parent=parent, extra=job.extra
    )
    if job.anchor:
        pin(job.store, checkpoint)
    return {"name": checkpoint.name}


def clean_up(job: WriteJob) -> None:
    """Remove what killed processes left, and what no retention rule keeps."""
    sweep(job.store)
    if job.keep is not None:
        retain(job.store, Policy(**job.keep))


def _items(job: WriteJob, view: memoryview, ids: memoryview) -> Iterator[TensorItem | BytesItem]:
    tables = {number: table for table in job.changed for number in table["tensors"]}
    if tables and importlib.util.find_spec("numpy") is None:
        tables = {}  # without numpy, tables are written whole
    for number, (name, record, at, nbytes) in enumerate(job.layout["tensors"]):
        data = view[at : at + nbytes]
        if number in tables:
            yield from _rows(name, data, tables[number], ids)
        else:
            yield TensorItem(name, base64.b64decode(record), data)
    for name, value in zip(job.layout["values"], job.values, strict=True):
        yield BytesItem(name, base64.b64decode(value))


def _rows(
    name: str, data: memoryview, changed: dict[str, Any], ids: memoryview
) -> Iterator[BytesItem]:
    """The ids and the content of the changed rows of a tensor."""
    import numpy

    count, at = changed["ids"], changed["at"]
    yield BytesItem(name + IDS_SUFFIX, ids[at : at + 8 * count])
    which = numpy.frombuffer(ids, numpy.int64, count, at)
    rows = numpy.frombuffer(data, numpy.uint8).reshape(changed["count"], -1)
    yield BytesItem(name + ROWS_SUFFIX, RowSelection(rows, which))


class RowSelection:
    """Some rows of a table, in blocks that fit the cache of a core."""

    def __init__(self, table: Any, ids: Any) -> None:
        self._table, self._ids = table, ids

    def __len__(self) -> int:
        return int(self._ids.size * self._table.shape[1])

    def __iter__(self) -> Iterator[memoryview]:
        count = max(1, ROW_BLOCK_BYTES // max(1, self._table.shape[1]))
        for start in range(0, len(self._ids), count):
            yield self._table[self._ids[start : start + count]].data.cast("B")


def _metadata_builder(job: WriteJob) -> Callable[[Any], bytes]:
    """Builds `.metadata` as DCP does; the only task that needs torch."""
    from headway.checkpoint.format import dcp

    planned = base64.b64decode(job.layout["metadata"])
    return lambda parts: dcp.build_metadata(planned, parts)
