"""Provide a batch of the right form before data is available, and record it for the next run.

The batch comes from a schema, a sample, the last run, or the first rows of the data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from headway.errors import UsageError
from headway.startup.batch_schema import Leaf, Schema, SchemaError, register_namedtuple

__all__ = ["Schema", "SchemaError", "fast_batch", "recording"]

T = TypeVar("T")
LEARNING_BATCHES = 8  # batches of a run from which the schema is learned
SMALLEST_DYNAMIC = 2  # torch specializes on sizes 0 and 1


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
    """Return a batch to compile with; exactly one of the four sources defines its form.

    None if the file `recorded` does not exist yet, as in the first run.
    """
    sources = [schema, sample, recorded, dataset]
    if sum(source is not None for source in sources) != 1:
        raise UsageError(
            "fast_batch() needs exactly one of schema, sample, recorded and dataset",
            code="fast-batch-without-source",
        )
    if recorded is not None:
        schema = _read_schema(Path(recorded))
        if schema is None:
            return None
    if dataset is not None:
        return _first_rows(dataset, batch_size, collate, device)
    return synthetic_batch(schema or Schema.learn(sample), device=device, seed=seed)


def recording(source: Iterable[T], file: str | os.PathLike[str]) -> Iterator[T]:
    """Yield the batches of `source` unchanged; record the form of the first ones for the next run.

    Only sizes, types and value ranges are recorded, no content.
    """
    schema: Schema | None = None
    remaining = LEARNING_BATCHES
    for batch in source:
        if remaining:
            remaining -= 1
            try:
                batch_schema = Schema.learn(batch)
                schema = batch_schema if schema is None else schema.join(batch_schema)
                _write_schema(Path(file), schema)
            except SchemaError:  # the batches differ in kind: keep the schema of the earlier ones
                remaining = 0
        yield batch


def _read_schema(path: Path) -> Schema | None:
    try:
        return Schema.from_json(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"cannot read the recorded batch {path}: {error.strerror}",
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
            "fast_batch() of a dataset needs batch_size and a dataset with __getitem__",
            code="fast-batch-without-rows",
        )
    rows = [dataset[number] for number in range(batch_size)]
    batch = (collate or default_collate)(rows)
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch)


def synthetic_batch(schema: Schema, *, device: torch.device | str = "cpu", seed: int = 0) -> Any:
    """A random batch of that schema; sizes that changed are marked as dynamic."""
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, Any] = {}
    for leaf in schema.leaves:
        if leaf.is_tensor and not leaf.jagged:
            values[leaf.path] = _tensor(leaf, generator)
        elif not leaf.is_tensor:
            values[leaf.path] = leaf.value
    for leaf in schema.leaves:
        if leaf.jagged:
            values[leaf.path] = _jagged_offsets(leaf, values[leaf.of].shape[0], generator)
    for kind in schema.kinds:
        register_namedtuple(kind)
    leaves = [_on_device(leaf, values[leaf.path], device) for leaf in schema.leaves]
    return pytree.tree_unflatten(leaves, pytree.treespec_loads(schema.spec))


def _tensor(leaf: Leaf, generator: torch.Generator) -> torch.Tensor:
    sizes = [_size(dim.usual, dim.fixed) for dim in leaf.dims]
    dtype = getattr(torch, leaf.dtype)
    if dtype == torch.bool:
        flat = torch.rand(sizes, generator=generator) < 0.5
    elif dtype.is_floating_point or dtype.is_complex:
        flat = torch.rand(sizes, generator=generator) * (leaf.high - leaf.low) + leaf.low
    else:
        flat = torch.randint(int(leaf.low), int(leaf.high) + 1, sizes, generator=generator)
    return _with_strides(flat.to(dtype), leaf.order)


def _with_strides(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The tensor with the memory layout of the real one."""
    if list(order) == sorted(order):
        return tensor
    inverse = [order.index(place) for place in range(len(order))]
    return tensor.permute(order).contiguous().permute(inverse)


def _jagged_offsets(leaf: Leaf, rows: int, generator: torch.Generator) -> torch.Tensor:
    """Random values that divide `rows` rows into pieces."""
    count = _size(leaf.dims[0].usual, leaf.dims[0].fixed)
    parts = count - 1 if leaf.jagged == "offsets" else count
    inner = torch.randint(0, rows + 1, (max(parts - 1, 0),), generator=generator).sort().values
    edges = torch.cat([torch.zeros(1, dtype=torch.long), inner, torch.tensor([rows])])
    values = {"offsets": edges, "starts": edges[:-1], "lengths": edges.diff()}[leaf.jagged]
    return values.to(getattr(torch, leaf.dtype))


def _size(usual: int, fixed: bool) -> int:
    return usual if fixed else max(usual, SMALLEST_DYNAMIC)


def _on_device(leaf: Leaf, value: Any, device: torch.device | str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.to(device).requires_grad_(leaf.requires_grad)
    for place, dim in enumerate(leaf.dims):
        if not dim.fixed:
            torch._dynamo.maybe_mark_dynamic(tensor, place)
    return tensor
