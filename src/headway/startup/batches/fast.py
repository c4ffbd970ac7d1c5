"""Where a fast batch comes from: a schema, a sample, the last run, or the data's first rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from headway.errors import UsageError
from headway.startup.batches.schema import Schema, SchemaError
from headway.startup.batches.synthetic import synthetic_batch

T = TypeVar("T")
LEARNING_BATCHES = 8  # batches of a run that its schema is learned from


def fast_batch(
    *,
    schema: Schema | None = None,
    sample: Any = None,
    recorded: str | os.PathLike[str] | None = None,
    dataset: Any = None,
    batch_size: int | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Any:
    """A batch to compile with, now: one of the four says what it looks like.

    None if `recorded` names a file that is not there yet: the first run has nothing to go by.
    """
    chosen = [schema, sample, recorded, dataset]
    if sum(one is not None for one in chosen) != 1:
        raise UsageError(
            "a fast batch comes from one of schema, sample, recorded and dataset",
            code="fast-batch-without-source",
        )
    if recorded is not None:
        schema = _read_schema(Path(recorded))
        if schema is None:
            return None
    if dataset is not None:
        return _first_rows(dataset, batch_size, collate, device)
    return synthetic_batch(schema or Schema.of(sample), device=device, seed=seed)


def recording(source: Iterable[T], file: str | os.PathLike[str]) -> Iterator[T]:
    """The batches of `source` as they are; what the first of them look like is kept for next time.

    Sizes, types and ranges only, nothing that is in them.
    """
    learned: Schema | None = None
    left = LEARNING_BATCHES
    for batch in source:
        if left:
            left -= 1
            try:
                found = Schema.of(batch)
                learned = found if learned is None else learned.joined(found)
                _write_schema(Path(file), learned)
            except SchemaError:  # its batches are of several kinds: the first one's is kept
                left = 0
        yield batch


def _read_schema(path: Path) -> Schema | None:
    try:
        return Schema.from_json(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"the recorded batch {path} cannot be read: {error.strerror}",
            code="recorded-batch-not-readable",
        ) from None


def _write_schema(path: Path, schema: Schema) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(schema.to_json())
    os.replace(draft, path)


def _first_rows(
    dataset: Any,
    batch_size: int | None,
    collate: Callable[[list[Any]], Any] | None,
    device: torch.device | str,
) -> Any:
    from torch.utils import _pytree as pytree
    from torch.utils.data import default_collate

    if not batch_size or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            "a fast batch of a dataset needs batch_size, and rows that have numbers",
            code="fast-batch-without-rows",
        )
    rows = [dataset[number] for number in range(batch_size)]
    batch = (collate or default_collate)(rows)
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch)
