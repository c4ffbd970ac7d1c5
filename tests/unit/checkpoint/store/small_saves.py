"""Small saves, made without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headway.checkpoint.format.rank_file import BytesItem, TensorItem, write_part
from headway.checkpoint.store.commit import Draft, commit
from headway.checkpoint.store.layout import RankPart
from headway.checkpoint.store.store import Checkpoint
from headway.errors import CheckpointDamaged


def content(save_id: str, rank: int, size: int = 3000) -> bytes:
    """What a rank saves: it tells one save from another."""
    return (f"{save_id}/{rank} ".encode() * (size // 4))[:size]


def items(save_id: str, rank: int, size: int = 3000) -> list[TensorItem | BytesItem]:
    return [
        BytesItem("step", save_id.encode()),
        TensorItem("weight", b"a record", memoryview(content(save_id, rank, size))),
    ]


def metadata(parts: Sequence[RankPart]) -> bytes:
    return repr([part.file.items for part in parts]).encode()


def damaged(load: Callable[[], object]) -> CheckpointDamaged:
    """The error that a load by DCP fails with."""
    import pytest
    from torch.distributed.checkpoint.api import CheckpointException

    with pytest.raises(CheckpointException) as raised:
        load()
    ((error, _),) = raised.value.failures.values()
    assert isinstance(error, CheckpointDamaged)
    return error


def save(
    store: str | os.PathLike[str],
    step: int,
    save_id: str,
    *,
    world: int = 1,
    size: int = 3000,
    parent: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """A whole save, by one process."""
    with Draft(store, step, save_id, world) as draft:
        for rank in range(world):
            write_part(draft.folder, rank, items(save_id, rank, size))
        kind = "full" if parent is None else "delta"
        return commit(draft, metadata, kind=kind, parent=parent, extra=extra, clock=lambda: 0.0)
