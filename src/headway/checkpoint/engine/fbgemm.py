"""FBGEMM tables (TorchRec), which the backward pass updates: the rows of each lookup.

Such a table has no gradient and its version counter does not change. An autograd hook on the result
of the lookup runs right before the update; from there on it is known which rows change.
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
# Those that change no other rows; in their names for FBGEMM.
OPTIMIZERS = ("EXACT_SGD", "EXACT_ADAGRAD", "EXACT_ROWWISE_ADAGRAD", "ADAM", "PARTIAL_ROWWISE_ADAM")
WHOLE_TABLE_UPDATES = (  # what else it may do to every row, at a step
    "_used_rowwise_adagrad_with_counter",
    "_used_rowwise_adagrad_with_global_weight_decay",
)
UNCACHED_LOCATIONS = ("DEVICE", "HOST")  # there is no cache that knows better
COLLECTIVE_MODULE = "DMPCollection"  # TorchRec's, whose ranks change each other's tables
FORWARD_ARGUMENTS = (
    *("indices", "offsets", "per_sample_weights", "feature_requires_grad"),
    "batch_size_per_feature_per_rank",
)

OnRowChange = Callable[
    [dict[Tensor, Tensor]], None
]  # of each table the rows that are about to change
OnTables = Callable[[list[Tensor]], None]  # of all tables of a module


class FbgemmTables:
    """One module with several tables, and what it keeps of each row."""

    def __init__(
        self, module: Any, changing: OnRowChange, resetting: OnTables, lost: OnTables
    ) -> None:
        self._module = module
        self._changing, self._resetting, self._lost = changing, resetting, lost
        self.tables: list[Tensor] = self._module.split_embedding_weights()
        states = self._module.split_optimizer_states() or [[] for _ in self.tables]
        self.kept: dict[Tensor, list[Tensor]] = dict(zip(self.tables, states, strict=True))
        self._of_features = [self.tables[number] for number in self._module.feature_table_map]
        # On a GPU, of each table: the ages of all, and where among them are those of its rows.
        self.shared: dict[Tensor, tuple[RowVersions, int]] = {}
        if on_gpu(self.tables[0]):
            self._share()
        _WATCHED.setdefault(module, []).append(self)
        self._hook = module.register_forward_hook(_on_lookup, with_kwargs=True)
        _hook_resets(type(module))

    def close(self) -> None:
        """It is not looked at any more."""
        self._hook.remove()
        _WATCHED[self._module].remove(self)

    def looked_up(self, given: dict[str, Any], found: Any) -> None:
        """Rows that will be changed if the gradient of what was found comes back."""
        if is_capturing():
            self._lost(self.tables)  # what is replayed tells nobody
        else:
            found.register_hook(partial(self._will_change, given))

    def resetting(self) -> None:
        """As when rows are given to other ids: they are changed, and nobody has looked them up."""
        self._resetting(self.tables)

    def _will_change(self, given: dict[str, Any], _: Tensor) -> None:
        ids, offsets = given["indices"].detach(), given["offsets"].detach()
        if not ids.numel():
            return
        batches = given.get("batch_size_per_feature_per_rank")
        sizes = None if batches is None else [sum(of_ranks) for of_ranks in batches]
        ends = _feature_ends(offsets, len(self._of_features), sizes)
        if self.shared:
            try:
                self._changing(dict.fromkeys(self.tables, self._among_all(ids, ends)))
            except torch.OutOfMemoryError:
                self._resetting(self.tables)
            return
        found: dict[Tensor, list[Tensor]] = {}
        for table, (begin, end) in zip(
            self._of_features, itertools.pairwise([0, *ends.tolist()]), strict=True
        ):
            found.setdefault(table, []).append(_valid_ids(ids[begin:end].long(), len(table)))
        self._changing({table: torch.cat(lists) for table, lists in found.items()})

    def _share(self) -> None:
        *starts, count = itertools.accumulate(map(len, self.tables), initial=0)
        device = self.tables[0].device
        ages = RowVersions(count, device)
        self.shared = {at: (ages, start) for at, start in zip(self.tables, starts, strict=True)}
        about = [[self.shared[table][1], len(table)] for table in self._of_features]
        self._about = torch.tensor(about, device=device)

    def _among_all(self, ids: Tensor, ends: Tensor) -> Tensor:
        """As numbers among the rows of all tables: which is whose is known to the GPU alone."""
        place = torch.arange(len(ids), device=ids.device, dtype=ends.dtype)
        feature = torch.searchsorted(ends.contiguous(), place, right=True)
        start, count = self._about[feature.clamp_(max=len(self._about) - 1)].unbind(1)
        return start + _valid_ids(ids.long(), count)


# By module, and not in it: a copy of a module, or one that comes from a file, is nobody's.
_WATCHED: WeakKeyDictionary[nn.Module, list[FbgemmTables]] = WeakKeyDictionary()
_HOOKED_CLASSES: set[type] = set()  # whose resets are told


def _on_lookup(module: nn.Module, args: tuple[Any, ...], named: Any, found: Any) -> None:
    if found.requires_grad:
        given = dict(zip(FORWARD_ARGUMENTS, args, strict=False)) | named
        for one in tuple(_WATCHED.get(module, ())):
            one.looked_up(given, found)


def _hook_resets(kind: Any) -> None:
    """Once for all modules of a kind."""
    reset = getattr(kind, RESET_METHOD, None)
    if reset is None or kind in _HOOKED_CLASSES:
        return
    _HOOKED_CLASSES.add(kind)

    @wraps(reset)
    def resetting(module: nn.Module, *args: Any, **named: Any) -> Any:
        for one in tuple(_WATCHED.get(module, ())):
            one.resetting()
        return reset(module, *args, **named)

    setattr(kind, RESET_METHOD, resetting)


def trackable_modules(roots: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Those whose tables can be tracked, each once."""
    if _has_compiled():  # what is compiled does not ask for new hooks
        return
    seen: set[nn.Module] = set()
    for root in roots:
        if any(_is_a(module, COLLECTIVE_MODULE) for module in root.modules()):
            continue
        for module in _all_modules(root):
            if module not in seen and _is_trackable(module):
                seen.add(module)
                yield module


def _all_modules(root: nn.Module) -> Iterator[nn.Module]:
    """TorchRec keeps some of them out of the sight of `modules`."""
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
    """Of each feature, where its ids end; `sizes`: of the batch of each, should they differ."""
    if sizes is None:
        size = (len(offsets) - 1) // features
        return offsets[size::size]
    at = torch.tensor(list(itertools.accumulate(sizes)))
    return offsets[at.to(offsets.device)]


def _valid_ids(ids: Tensor, rows: Tensor | int) -> Tensor:
    """FBGEMM takes the first row for one that is not there."""
    return torch.where((ids >= 0) & (ids < rows), ids, 0)
