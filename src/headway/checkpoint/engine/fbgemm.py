"""FBGEMM tables (TorchRec), which the backward pass updates: track the rows of each lookup.

Such a table has no gradient and its version counter does not change. An autograd hook on the result
of the lookup runs right before the update; from then on the changed rows are known.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from headway.checkpoint.engine.gpu_transfer import is_capturing, on_gpu
from headway.checkpoint.engine.rows import RowVersions

TABLE_MODULE = "SplitTableBatchedEmbeddingBagsCodegen"
RESET_METHOD = "reset_embedding_weight_momentum"
# Optimizers that change looked-up rows only, by FBGEMM's names.
OPTIMIZERS = ("EXACT_SGD", "EXACT_ADAGRAD", "EXACT_ROWWISE_ADAGRAD", "ADAM", "PARTIAL_ROWWISE_ADAM")
WHOLE_TABLE_UPDATES = (  # settings that change every row at a step
    "_used_rowwise_adagrad_with_counter",
    "_used_rowwise_adagrad_with_global_weight_decay",
)
UNCACHED_LOCATIONS = ("DEVICE", "HOST")  # without a cache that holds newer rows
COLLECTIVE_MODULE = "DMPCollection"  # TorchRec's; its ranks change each other's tables
FORWARD_ARGUMENTS = (
    *("indices", "offsets", "per_sample_weights", "feature_requires_grad"),
    "batch_size_per_feature_per_rank",
)

OnRowChange = Callable[[dict[Tensor, Tensor]], None]  # by table: the rows that are about to change
OnTables = Callable[[list[Tensor]], None]  # all tables of a module


class FbgemmTables:
    """A module with several tables, and its optimizer state per row."""

    def __init__(
        self, module: Any, on_change: OnRowChange, on_reset: OnTables, on_lost: OnTables
    ) -> None:
        self._module = module
        self._on_change, self._on_reset, self._on_lost = on_change, on_reset, on_lost
        self.tables: list[Tensor] = self._module.split_embedding_weights()
        states = self._module.split_optimizer_states() or [[] for _ in self.tables]
        self.row_state: dict[Tensor, list[Tensor]] = dict(zip(self.tables, states, strict=True))
        self._feature_tables = [self.tables[number] for number in self._module.feature_table_map]
        # On a GPU, by table: the versions of all tables, and the offset of its rows.
        self.shared: dict[Tensor, tuple[RowVersions, int]] = {}
        if on_gpu(self.tables[0]):
            self._share_versions()
        _INSTANCES.setdefault(module, []).append(self)
        self._hook = module.register_forward_hook(_on_lookup, with_kwargs=True)
        _hook_resets(type(module))

    def close(self) -> None:
        """Stop tracking."""
        self._hook.remove()
        _INSTANCES[self._module].remove(self)

    def on_lookup(self, arguments: dict[str, Any], result: Any) -> None:
        """Watch the result: the looked-up rows change when its gradient arrives."""
        if is_capturing():
            self._on_lost(self.tables)  # graph replays report nothing
        else:
            result.register_hook(partial(self._will_change, arguments))

    def on_reset(self) -> None:
        """Rows are reassigned to other ids: they change without a lookup."""
        self._on_reset(self.tables)

    def _will_change(self, arguments: dict[str, Any], _: Tensor) -> None:
        ids, offsets = arguments["indices"].detach(), arguments["offsets"].detach()
        if not ids.numel():
            return
        batches = arguments.get("batch_size_per_feature_per_rank")
        sizes = None if batches is None else [sum(sizes_of_ranks) for sizes_of_ranks in batches]
        ends = _feature_ends(offsets, len(self._feature_tables), sizes)
        if self.shared:
            try:
                self._on_change(dict.fromkeys(self.tables, self._global_ids(ids, ends)))
            except torch.OutOfMemoryError:
                self._on_reset(self.tables)
            return
        table_ids: dict[Tensor, list[Tensor]] = {}
        for table, (begin, end) in zip(
            self._feature_tables, itertools.pairwise([0, *ends.tolist()]), strict=True
        ):
            table_ids.setdefault(table, []).append(_valid_ids(ids[begin:end].long(), len(table)))
        self._on_change({table: torch.cat(lists) for table, lists in table_ids.items()})

    def _share_versions(self) -> None:
        *starts, count = itertools.accumulate(map(len, self.tables), initial=0)
        device = self.tables[0].device
        versions = RowVersions(count, device)
        self.shared = {
            table: (versions, start) for table, start in zip(self.tables, starts, strict=True)
        }
        rows = [[self.shared[table][1], len(table)] for table in self._feature_tables]
        self._feature_rows = torch.tensor(rows, device=device)

    def _global_ids(self, ids: Tensor, ends: Tensor) -> Tensor:
        """Ids among the rows of all tables: only the GPU knows which table each belongs to."""
        position = torch.arange(len(ids), device=ids.device, dtype=ends.dtype)
        feature = torch.searchsorted(ends.contiguous(), position, right=True)
        start, count = self._feature_rows[feature.clamp_(max=len(self._feature_rows) - 1)].unbind(1)
        return start + _valid_ids(ids.long(), count)


# Stored outside the modules: copies and loaded modules are not tracked.
_INSTANCES: WeakKeyDictionary[nn.Module, list[FbgemmTables]] = WeakKeyDictionary()
_HOOKED_CLASSES: set[type] = set()  # classes with a hook on resets


def _on_lookup(module: nn.Module, args: tuple[Any, ...], named: Any, result: Any) -> None:
    if result.requires_grad:
        arguments = dict(zip(FORWARD_ARGUMENTS, args, strict=False)) | named
        for instance in tuple(_INSTANCES.get(module, ())):
            instance.on_lookup(arguments, result)


def _hook_resets(kind: Any) -> None:
    """Once per class."""
    reset = getattr(kind, RESET_METHOD, None)
    if reset is None or kind in _HOOKED_CLASSES:
        return
    _HOOKED_CLASSES.add(kind)

    @wraps(reset)
    def resetting(module: nn.Module, *args: Any, **named: Any) -> Any:
        for instance in tuple(_INSTANCES.get(module, ())):
            instance.on_reset()
        return reset(module, *args, **named)

    setattr(kind, RESET_METHOD, resetting)


def trackable_modules(roots: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Modules whose tables can be tracked, each once."""
    if _has_compiled():  # compiled code ignores new hooks
        return
    yielded: set[nn.Module] = set()
    for root in roots:
        if any(_is_a(module, COLLECTIVE_MODULE) for module in root.modules()):
            continue
        for module in _all_modules(root):
            if module not in yielded and _is_trackable(module):
                yielded.add(module)
                yield module


def _all_modules(root: nn.Module) -> Iterator[nn.Module]:
    """Including those that TorchRec hides from `modules`."""
    for module in root.modules():
        yield module
        for hidden in getattr(module, "_lookups", ()):
            yield from hidden.modules()


def _is_trackable(module: Any) -> bool:
    return (
        _is_a(module, TABLE_MODULE)
        and module.optimizer.name in OPTIMIZERS
        and not any(getattr(module, name, False) for name in WHOLE_TABLE_UPDATES)
        and all(where.name in UNCACHED_LOCATIONS for _, _, where, _ in module.embedding_specs)
    )


def _is_a(module: nn.Module, name: str) -> bool:
    return any(base.__name__ == name for base in type(module).__mro__)


def _has_compiled() -> bool:
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"]["ok"])


def _feature_ends(offsets: Tensor, features: int, sizes: Sequence[int] | None) -> Tensor:
    """Where the ids of each feature end; `sizes` are batch sizes per feature, if they differ."""
    if sizes is None:
        size = (len(offsets) - 1) // features
        return offsets[size::size]
    at = torch.tensor(list(itertools.accumulate(sizes)))
    return offsets[at.to(offsets.device)]


def _valid_ids(ids: Tensor, rows: Tensor | int) -> Tensor:
    """FBGEMM uses the first row for invalid ids."""
    return torch.where((ids >= 0) & (ids < rows), ids, 0)
