"""Shrink embedding tables for serving: fewer rows, and smaller types.

An int8 table has the format of `quantized.embedding_bag_byte_prepack`: each row is its bytes, a
scale and an offset. Rows are converted to float when they are looked up, and pooled as float.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import PublishFailed, UsageError
from headway.publish.recipe import TableOptions
from headway.publish.source import TensorSource, read_tensor

AnyTable = nn.Embedding | nn.EmbeddingBag


class ServingTable(nn.Module):
    """Replacement for an Embedding or EmbeddingBag with the same call signature."""

    rows: Tensor
    places: Tensor  # index of each row; omitted rows map to a row of zeros at the end

    def __init__(
        self,
        rows: Tensor,
        form: str,
        *,
        places: Tensor | None = None,
        mode: str | None = None,  # of an EmbeddingBag
        padding: int | None = None,
        last_offset: bool = False,
    ) -> None:
        super().__init__()
        self.form, self.mode, self.padding, self.last_offset = form, mode, padding, last_offset
        self.pruned = places is not None
        self.register_buffer("rows", rows)
        if places is not None:
            self.register_buffer("places", places)

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Look up rows, and pool them for an EmbeddingBag."""
        rows = self._looked_up(input)
        if self.mode is None:
            return rows
        used = torch.ones_like(rows[..., 0])
        if self.padding is not None:
            used = (input != self.padding).to(rows.dtype)
        weighted = (
            rows * (used if per_sample_weights is None else used * per_sample_weights)[..., None]
        )
        if input.dim() == 2:
            total, count = weighted.sum(1), used.sum(1)
        else:
            assert offsets is not None
            bags = offsets[:-1] if self.last_offset else offsets
            at = torch.arange(input.shape[0], device=input.device, dtype=offsets.dtype)
            bag = torch.bucketize(at, bags, right=True) - 1
            total = weighted.new_zeros(bags.shape[0], rows.shape[-1]).index_add(0, bag, weighted)
            count = used.new_zeros(bags.shape[0]).index_add(0, bag, used)
        return total / count.clamp(min=1)[:, None] if self.mode == "mean" else total

    def _looked_up(self, input: Tensor) -> Tensor:
        indexes = self.places[input] if self.pruned else input
        rows = self.rows[indexes]
        if self.form != "int8":
            return rows.float()
        flat = rows.reshape(-1, rows.shape[-1])
        floats: Tensor = torch.ops.quantized.embedding_bag_byte_unpack(flat)
        return floats.reshape(*input.shape, floats.shape[-1])


def process(
    model: nn.Module, tables: TableOptions, source: TensorSource
) -> dict[str, dict[str, Any]]:
    """Replace the tables of a model one at a time; returns the configuration of each."""
    tables_by_name = {
        n: m for n, m in model.named_modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))
    }
    pruned = _match_tables(tables_by_name, tables.prune.tables, "prune") if tables.prune else []
    int8, fp16 = (
        _match_tables(tables_by_name, tables.int8, "int8"),
        _match_tables(tables_by_name, tables.fp16, "fp16"),
    )
    both = set(int8) & set(fp16)
    if both:
        raise UsageError(
            f"the table {min(both)} cannot be both int8 and fp16", code="table-in-two-forms"
        )
    newest = _newest_use(source, tables, pruned)
    configs = {}
    for name in dict.fromkeys([*pruned, *int8, *fp16]):
        form = "int8" if name in int8 else "fp16" if name in fp16 else "float"
        _check(name, tables_by_name[name])
        keep = None
        if tables.prune and name in pruned:
            used = read_tensor(source, _last_use_key(tables.prune.last_use, name))
            keep = used >= newest - tables.prune.within
        table = _make_table(tables_by_name.pop(name), form, keep)
        configs[name] = about(table)
        _replace_module(model, name, table)
    return configs


def _match_tables(names_of_tables: Iterable[str], patterns: Iterable[str], key: str) -> list[str]:
    names: list[str] = []
    for pattern in patterns:
        matching = fnmatch.filter(names_of_tables, pattern)
        if not matching:
            raise UsageError(
                f"[tables] {key} has the pattern {pattern!r}, which matches no table",
                code="table-not-found",
            )
        names += matching
    return names


def _check(name: str, table: AnyTable) -> None:
    """Raise UsageError for tables that cannot be converted."""
    if table.max_norm is not None:
        raise UsageError(
            f"the table {name} has max_norm and cannot be converted", code="table-has-max-norm"
        )
    if getattr(table, "mode", "sum") == "max":
        raise UsageError(
            f"the table {name} pools by max and cannot be converted", code="table-pools-by-max"
        )
    if table.weight.dtype != torch.float32:
        raise UsageError(
            f"the table {name} has type {table.weight.dtype}, not torch.float32",
            code="table-not-float32",
        )


def _last_use_key(part: str, table: str) -> str:
    return f"{part}.{table}"


def _newest_use(source: TensorSource, tables: TableOptions, pruned: list[str]) -> float:
    """The most recent use of any row of any table."""
    newest = 0.0
    for name in pruned:
        assert tables.prune is not None
        key = _last_use_key(tables.prune.last_use, name)
        if key not in source.shapes:
            raise PublishFailed(
                f"the anchor has no {key}, which contains the last use of each row",
                code="last-use-missing",
            )
        newest = max(newest, float(read_tensor(source, key).max()))
    return newest


def _make_table(table: AnyTable, form: str, keep: Tensor | None) -> ServingTable:
    weight, places = table.weight.detach(), None
    if keep is not None:
        if keep.shape != weight.shape[:1]:
            reason = f"it has {keep.shape[0]} last uses for {weight.shape[0]} rows"
            raise PublishFailed(
                f"a table cannot be pruned: {reason}", code="last-use-size-mismatch"
            )
        count = int(keep.sum())
        places = torch.where(keep, keep.cumsum(0) - 1, count).to(torch.int32)
        weight = torch.cat([weight[keep], weight.new_zeros(1, weight.shape[1])])
    rows = weight
    if form == "int8":
        rows = torch.ops.quantized.embedding_bag_byte_prepack(weight)
    elif form == "fp16":
        rows = weight.half()
        if not bool(rows.isfinite().all()):
            raise PublishFailed(
                "a table has weights outside the range of fp16", code="table-exceeds-fp16"
            )
    if isinstance(table, nn.Embedding):
        return ServingTable(rows, form, places=places)
    return ServingTable(
        rows,
        form,
        places=places,
        mode=table.mode,
        padding=table.padding_idx,
        last_offset=bool(table.include_last_offset),
    )


def about(table: ServingTable) -> dict[str, Any]:
    """Configuration to rebuild a table."""
    names = ("form", "mode", "padding", "last_offset", "pruned")
    return {name: getattr(table, name) for name in names}


def rebuild(
    model: nn.Module, configs: Mapping[str, Mapping[str, Any]], tensors: Mapping[str, Tensor]
) -> None:
    """Replace the tables of a newly built model by configuration and tensors."""
    for name, config in configs.items():
        arguments = dict(config)
        places = tensors[f"{name}.places"] if arguments.pop("pruned") else None
        _replace_module(
            model,
            name,
            ServingTable(
                tensors[f"{name}.rows"], arguments.pop("form"), places=places, **arguments
            ),
        )


def _replace_module(model: nn.Module, name: str, table: nn.Module) -> None:
    above, _, last = name.rpartition(".")
    setattr(model.get_submodule(above), last, table)
