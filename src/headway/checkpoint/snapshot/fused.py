"""Tables that FBGEMM changes in the backward pass, as TorchRec has them: which rows that are.

They are the rows that the forward pass has looked up. Nobody is told of the change itself: there is
no gradient of the table, and no version of it. But right before it, autograd tells what the lookup
has given, and from there on it is known which rows come next.
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

from headway.checkpoint.snapshot.ages import Ages
from headway.checkpoint.snapshot.gpu import is_capturing, on_gpu

MODULE = "SplitTableBatchedEmbeddingBagsCodegen"
RESET = "reset_embedding_weight_momentum"
# Those that change no other rows; in their names for FBGEMM.
OPTIMIZERS = ("EXACT_SGD", "EXACT_ADAGRAD", "EXACT_ROWWISE_ADAGRAD", "ADAM", "PARTIAL_ROWWISE_ADAM")
EVERYWHERE = (  # what else it may do to every row, at a step
    "_used_rowwise_adagrad_with_counter",
    "_used_rowwise_adagrad_with_global_weight_decay",
)
IN_PLACE = ("DEVICE", "HOST")  # there is no cache that knows better
COLLECTIVE = "DMPCollection"  # TorchRec's, whose ranks change each other's tables
ARGUMENTS = (
    *("indices", "offsets", "per_sample_weights", "feature_requires_grad"),
    "batch_size_per_feature_per_rank",
)

Changing = Callable[[dict[Tensor, Tensor]], None]  # of each table the rows that are about to change
Announced = Callable[[list[Tensor]], None]  # of all tables of a module


class Fused:
    """One module with several tables, and what it keeps of each row."""

    def __init__(
        self, module: Any, changing: Changing, resetting: Announced, lost: Announced
    ) -> None:
        self._module = module
        self._changing, self._resetting, self._lost = changing, resetting, lost
        self.tables: list[Tensor] = self._module.split_embedding_weights()
        states = self._module.split_optimizer_states() or [[] for _ in self.tables]
        self.kept: dict[Tensor, list[Tensor]] = dict(zip(self.tables, states, strict=True))
        self._of_features = [self.tables[number] for number in self._module.feature_table_map]
        # On a GPU, of each table: the ages of all, and where among them are those of its rows.
        self.shared: dict[Tensor, tuple[Ages, int]] = {}
        if on_gpu(self.tables[0]):
            self._share()
        _WATCHED.setdefault(module, []).append(self)
        self._hook = module.register_forward_hook(_looked_up, with_kwargs=True)
        _watch_resets(type(module))

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
        ends = _ends(offsets, len(self._of_features), sizes)
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
            found.setdefault(table, []).append(_known(ids[begin:end].long(), len(table)))
        self._changing({table: torch.cat(lists) for table, lists in found.items()})

    def _share(self) -> None:
        *starts, count = itertools.accumulate(map(len, self.tables), initial=0)
        device = self.tables[0].device
        ages = Ages(count, device)
        self.shared = {at: (ages, start) for at, start in zip(self.tables, starts, strict=True)}
        about = [[self.shared[table][1], len(table)] for table in self._of_features]
        self._about = torch.tensor(about, device=device)

    def _among_all(self, ids: Tensor, ends: Tensor) -> Tensor:
        """As numbers among the rows of all tables: which is whose is known to the GPU alone."""
        place = torch.arange(len(ids), device=ids.device, dtype=ends.dtype)
        feature = torch.searchsorted(ends.contiguous(), place, right=True)
        start, count = self._about[feature.clamp_(max=len(self._about) - 1)].unbind(1)
        return start + _known(ids.long(), count)


# By module, and not in it: a copy of a module, or one that comes from a file, is nobody's.
_WATCHED: WeakKeyDictionary[nn.Module, list[Fused]] = WeakKeyDictionary()
_KINDS: set[type] = set()  # whose resets are told


def _looked_up(module: nn.Module, args: tuple[Any, ...], named: Any, found: Any) -> None:
    if found.requires_grad:
        given = dict(zip(ARGUMENTS, args, strict=False)) | named
        for one in tuple(_WATCHED.get(module, ())):
            one.looked_up(given, found)


def _watch_resets(kind: Any) -> None:
    """Once for all modules of a kind."""
    reset = getattr(kind, RESET, None)
    if reset is None or kind in _KINDS:
        return
    _KINDS.add(kind)

    @wraps(reset)
    def resetting(module: nn.Module, *args: Any, **named: Any) -> Any:
        for one in tuple(_WATCHED.get(module, ())):
            one.resetting()
        return reset(module, *args, **named)

    setattr(kind, RESET, resetting)


def modules(roots: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Those whose tables can be tracked, each once."""
    if _has_compiled():  # what is compiled does not ask for new hooks
        return
    seen: set[nn.Module] = set()
    for root in roots:
        if any(_is_a(module, COLLECTIVE) for module in root.modules()):
            continue
        for module in _all(root):
            if module not in seen and _by_rows(module):
                seen.add(module)
                yield module


def _all(root: nn.Module) -> Iterator[nn.Module]:
    """TorchRec keeps some of them out of the sight of `modules`."""
    for module in root.modules():
        yield module
        for hidden in getattr(module, "_lookups", ()):
            yield from hidden.modules()


def _by_rows(module: Any) -> bool:
    return (
        _is_a(module, MODULE)
        and module.optimizer.name in OPTIMIZERS
        and not any(getattr(module, name, False) for name in EVERYWHERE)
        and all(where.name in IN_PLACE for _, _, where, _ in module.embedding_specs)
    )


def _is_a(module: nn.Module, name: str) -> bool:
    return any(base.__name__ == name for base in type(module).__mro__)


def _has_compiled() -> bool:
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"]["ok"])


def _ends(offsets: Tensor, features: int, sizes: Sequence[int] | None) -> Tensor:
    """Of each feature, where its ids end; `sizes`: of the batch of each, should they differ."""
    if sizes is None:
        size = (len(offsets) - 1) // features
        return offsets[size::size]
    at = torch.tensor(list(itertools.accumulate(sizes)))
    return offsets[at.to(offsets.device)]


def _known(ids: Tensor, rows: Tensor | int) -> Tensor:
    """FBGEMM takes the first row for one that is not there."""
    return torch.where((ids >= 0) & (ids < rows), ids, 0)
