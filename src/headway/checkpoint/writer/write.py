"""From an image to a checkpoint on disk, by the writer: first a rank's part, then the whole."""

from __future__ import annotations

import base64
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headway.checkpoint.store.commit import Draft, commit
from headway.checkpoint.store.part import BytesItem, TensorItem, write_part
from headway.checkpoint.store.retain import Policy, pin, retain
from headway.checkpoint.store.sweep import sweep


@dataclass(frozen=True, kw_only=True)
class Job:
    """One image that is to be written, with all that is needed to do it without the rank."""

    step: int
    layout: dict[str, Any]
    values: list[str]  # in base64
    store: str
    save_id: str
    rank: int
    world: int
    extra: dict[str, Any]
    keep: dict[str, Any] | None
    anchor: bool
    rate: float | None

    def draft(self) -> Draft:
        """Where it is written."""
        return Draft(self.store, self.step, self.save_id, self.world)


def write(job: Job, draft: Draft, descriptor: int) -> int:
    """This rank's part, from the image behind the descriptor, which is closed; its bytes."""
    with open(descriptor, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    items = list(_items(job, memoryview(memory)))
    try:
        return write_part(draft.folder, job.rank, items, rate=job.rate).file.size
    finally:
        del items
        memory.close()


def all_there(job: Job, draft: Draft) -> bool:
    """Whether every rank has written its part."""
    return len(draft.parts()) == job.world


def finish(job: Job, draft: Draft) -> dict[str, Any]:
    """Make a checkpoint of all parts; older ones go where the rules say so."""
    made = commit(draft, _described(job), extra=job.extra)
    if job.anchor:
        pin(job.store, made)
    return {"name": made.name}


def clear_up(job: Job) -> None:
    """What was left by those who were killed, and what no rule keeps."""
    sweep(job.store)
    if job.keep is not None:
        retain(job.store, Policy(**job.keep))


def _items(job: Job, view: memoryview) -> Iterator[TensorItem | BytesItem]:
    for name, record, at, nbytes in job.layout["tensors"]:
        yield TensorItem(name, base64.b64decode(record), view[at : at + nbytes])
    for name, value in zip(job.layout["values"], job.values, strict=True):
        yield BytesItem(name, base64.b64decode(value))


def _described(job: Job) -> Callable[[Any], bytes]:
    """The list of what the checkpoint holds, as DCP writes it: the one thing that needs torch."""
    from headway.checkpoint.store import dcp

    planned = base64.b64decode(job.layout["metadata"])
    return lambda parts: dcp.metadata(planned, parts)
