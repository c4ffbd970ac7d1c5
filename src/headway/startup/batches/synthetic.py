"""Batches made up from a schema: the same kind, no user's data."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from headway.startup.batches.schema import Leaf, Schema, register_namedtuple

SMALLEST_DYNAMIC = 2  # torch makes a graph of its own for the sizes 0 and 1


def synthetic_batch(
    schema: Schema, *, device: torch.device | str = "cpu", seed: int = 0, mark: bool = True
) -> Any:
    """A batch of that schema. Sizes that changed are marked, so that others of them hit."""
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Any] = {}
    for leaf in schema.leaves:
        if leaf.is_tensor and not leaf.jagged:
            made[leaf.path] = _tensor(leaf, generator)
        elif not leaf.is_tensor:
            made[leaf.path] = leaf.value
    for leaf in schema.leaves:
        if leaf.jagged:
            made[leaf.path] = _jagged_offsets(leaf, made[leaf.of].shape[0], generator)
    for kind in schema.kinds:
        register_namedtuple(kind)
    leaves = [_on_device(leaf, made[leaf.path], device, mark) for leaf in schema.leaves]
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
    """In memory as the real one lies."""
    if list(order) == sorted(order):
        return tensor
    back = [order.index(place) for place in range(len(order))]
    return tensor.permute(order).contiguous().permute(back)


def _jagged_offsets(leaf: Leaf, rows: int, generator: torch.Generator) -> torch.Tensor:
    """Numbers that cut `rows` rows into pieces."""
    count = _size(leaf.dims[0].usual, leaf.dims[0].fixed)
    parts = count - 1 if leaf.jagged == "offsets" else count
    inner = torch.randint(0, rows + 1, (max(parts - 1, 0),), generator=generator).sort().values
    edges = torch.cat([torch.zeros(1, dtype=torch.long), inner, torch.tensor([rows])])
    found = {"offsets": edges, "starts": edges[:-1], "lengths": edges.diff()}[leaf.jagged]
    return found.to(getattr(torch, leaf.dtype))


def _size(usual: int, fixed: bool) -> int:
    return usual if fixed else max(usual, SMALLEST_DYNAMIC)


def _on_device(leaf: Leaf, value: Any, device: torch.device | str, mark: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    placed = value.to(device).requires_grad_(leaf.requires_grad)
    for place, dim in enumerate(leaf.dims):
        if mark and not dim.fixed:
            torch._dynamo.maybe_mark_dynamic(placed, place)
    return placed
