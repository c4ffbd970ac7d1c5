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
from headway.checkpoint.store.commit import commit as commit_commit
from headway.checkpoint.store.layout import IDS_SUFFIX, ROWS_SUFFIX, delta_tables
from headway.checkpoint.store.store import Store
from headway.errors import HeadwayError, SaveFailed

ROW_BLOCK_BYTES = 1 << 20  # bytes of rows that are picked at once
OTHER_ERROR = "save-failed"  # the code of what is no error of Headway


@dataclass(frozen=True, kw_only=True)
class WriteJob:
    """One image that is to be written, with all that is needed to do it without the rank."""

    step: int
    layout: dict[str, Any]
    values: list[str]  # in base64
    changed: list[dict[str, Any]]  # tables of which only these rows are written: see `_rows`
    parent: str  # the save that they build on
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
        """Where it is written."""
        return Draft(self.store, self.step, self.save_id, self.world)


def write(
    job: WriteJob,
    draft: Draft,
    image: memoryview,
    ids: int,
    moved: Callable[[], None] = lambda: None,
) -> int:
    """This rank's part, from its image; its bytes.

    `ids`: a descriptor, which is closed: of the rows that have changed, one table after the other.
    """
    items = list(_items(job, image, map_memory(ids)))
    how: dict[str, Any] = {"rate": job.rate, "compress": job.compress is not None}
    how["moved"] = moved
    return write_part(draft.folder, job.rank, items, **how).file.size


def all_parts_written(job: WriteJob, draft: Draft) -> bool:
    """Whether every rank has written its part."""
    return len(draft.parts()) == job.world


def is_settled(draft: Draft) -> bool:
    """Whether rank 0 has made a checkpoint of it, or has given it up."""
    left = draft.place.list_names(draft.name)
    return not left or (not draft.place.can_rename and manifests.MANIFEST in left)


def verify_committed(job: WriteJob, draft: Draft) -> None:
    """By the other ranks: the checkpoint is there."""
    if not any(one.manifest.save_id == job.save_id for one in Store(job.store).scan()[0]):
        raise aborted_error(job, read_abort_mark(job, draft) or AbortMark(0, ""))


def read_abort_mark(job: WriteJob, draft: Draft) -> AbortMark | None:
    """Which rank has given it up, if one has."""
    return commit.find_abort_mark(draft) if job.world > 1 else None


def abort(job: WriteJob, draft: Draft, given: AbortMark) -> None:
    """No rank need wait for it: a mark says so, and rank 0 takes away what was written."""
    known = job.world == 1 or (job.rank != 0 and given.rank != job.rank)  # the mark is another's
    said = known or commit.write_abort_mark(draft, given)
    if job.rank == 0:
        with contextlib.suppress(OSError):
            draft.place.delete_folder(draft.name)
    if not said:  # on a disk that was full there may be room now
        commit.write_abort_mark(draft, given)


def aborted_error(job: WriteJob, given: AbortMark) -> SaveFailed:
    """What the rank hears of it."""
    by = f" by rank {given.rank}" if given.rank != job.rank else ""
    why = f": {given.why}" if given.why else ""
    sentence = f"the checkpoint of step {job.step} was given up{by}{why}"
    return SaveFailed(sentence, code="save-given-up", rank=given.rank, cause=given.code)


def error_outcome(error: Exception) -> dict[str, Any]:
    """What an outcome says of it."""
    fields = error.fields if isinstance(error, HeadwayError) else {}
    return {"error": str(error) or type(error).__name__, "code": code_of(error), "fields": fields}


def code_of(error: BaseException) -> str:
    """That of an error of Headway, else one for all others."""
    return error.code if isinstance(error, HeadwayError) else OTHER_ERROR


def commit_parts(job: WriteJob, draft: Draft) -> dict[str, Any]:
    """Make a checkpoint of all parts; older ones go where the rules say so."""
    delta = any(delta_tables(part.file) for part in draft.parts())
    kind, parent = ("delta", job.parent) if delta else ("full", None)
    made = commit_commit(draft, _metadata_builder(job), kind=kind, parent=parent, extra=job.extra)
    if job.anchor:
        pin(job.store, made)
    return {"name": made.name}


def clean_up(job: WriteJob) -> None:
    """What was left by those who were killed, and what no rule keeps."""
    sweep(job.store)
    if job.keep is not None:
        retain(job.store, Policy(**job.keep))


def _items(job: WriteJob, view: memoryview, ids: memoryview) -> Iterator[TensorItem | BytesItem]:
    tables = {number: one for one in job.changed for number in one["tensors"]}
    if tables and importlib.util.find_spec("numpy") is None:
        tables = {}  # then they are written as a whole
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
    """Of a tensor of a changed table: which rows, and what is in them."""
    import numpy

    count, at = changed["ids"], changed["at"]
    yield BytesItem(name + IDS_SUFFIX, ids[at : at + 8 * count])
    which = numpy.frombuffer(ids, numpy.int64, count, at)
    whole = numpy.frombuffer(data, numpy.uint8).reshape(changed["count"], -1)
    yield BytesItem(name + ROWS_SUFFIX, RowSelection(whole, which))


class RowSelection:
    """Some rows of a table, one after the other: in pieces that a core's cache holds."""

    def __init__(self, whole: Any, which: Any) -> None:
        self._whole, self._which = whole, which

    def __len__(self) -> int:
        return int(self._which.size * self._whole.shape[1])

    def __iter__(self) -> Iterator[memoryview]:
        count = max(1, ROW_BLOCK_BYTES // max(1, self._whole.shape[1]))
        for start in range(0, len(self._which), count):
            yield self._whole[self._which[start : start + count]].data.cast("B")


def _metadata_builder(job: WriteJob) -> Callable[[Any], bytes]:
    """The list of what the checkpoint holds, as DCP writes it: the one thing that needs torch."""
    from headway.checkpoint.format import dcp

    planned = base64.b64decode(job.layout["metadata"])
    return lambda parts: dcp.build_metadata(planned, parts)
