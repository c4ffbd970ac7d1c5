"""Which rows of which tables a step changes: asked of the gradients, right before the step.

Only what is known for sure is tracked: a table whose gradient is sparse, under an optimizer that
touches no other row of it, or one that FBGEMM changes by its lookups. Everything else is copied as
a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from headway.checkpoint.snapshot import fused
from headway.checkpoint.snapshot.device_rows import DeviceRows
from headway.checkpoint.snapshot.gpu import on_gpu
from headway.checkpoint.snapshot.rows import Rows

Table = Rows | DeviceRows


class Tracker:
    """The tables of some optimizers, and those in modules that need none."""

    def __init__(
        self,
        optimizers: Iterable[Optimizer],
        images: int,
        modules: Iterable[nn.Module] = (),
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        """`fence`: before a fused table changes."""
        self.images = images
        self._fence = fence
        self.tables: dict[Tensor, Table] = {}
        self.torn = False  # a table was changed past its optimizer while an image was made of it
        # Of parameters with sparse gradients only, and of fused tables: what is kept of each row.
        self._kept: dict[Tensor, Callable[[], list[Tensor]]] = {}
        self._dense: set[Tensor] = set()
        self._versions: dict[Tensor, list[int]] = {}  # of a table and what is kept of its rows
        self._stepping = False
        self._spoilt: set[Tensor] = set()  # they were changed past it while an image was made
        self._hooks = []
        for optimizer in optimizers:
            if _by_rows(optimizer):
                self._hooks += [
                    optimizer.register_step_pre_hook(self._before),
                    optimizer.register_step_post_hook(self._after),
                ]
        self._fused = [
            fused.Fused(module, self._fused_change, self._fused_reset, self._fused_lost)
            for module in fused.modules(modules)
        ]
        self._shared = {table: at for one in self._fused for table, at in one.shared.items()}
        for one in self._fused:
            for table, kept in one.kept.items():
                self._kept[table] = partial(list, kept)

    def close(self) -> None:
        """Nothing is tracked any more."""
        for hook in self._hooks:
            hook.remove()
        for one in self._fused:
            one.close()
        self.tables.clear()

    def find(self, live: dict[int, Tensor]) -> dict[int, Table]:
        """The tracked ones among the tensors of a state, by their number in it.

        A tensor is known by its memory, as a state_dict gives others than the parameters.
        """
        places = {_place(tensor): number for number, tensor in live.items()}
        found: dict[int, Table] = {}
        for table, kept in list(self._kept.items()):
            known = [table, *kept()]
            parts = [part for part in known if _place(part) in places]  # others save the others
            if not parts:
                continue
            rows = self.tables.get(table)
            if rows is None or [_place(t) for t in rows.tensors] != [_place(t) for t in parts]:
                rows = self.tables[table] = self._made(table, parts)
                self._versions[table] = _versions(rows)
            elif _versions(rows) != self._versions[table] and self._changed_past(table, rows):
                continue
            found.update({places[_place(part)]: rows for part in parts})
        return found

    def settled(self) -> bool:
        """By another thread: whether nothing was changed past its optimizer, up to now."""
        for table, noted in list(self._versions.items()):
            rows = self.tables.get(table)
            changed = rows is not None and _versions(rows) != noted
            stepped = self._stepping or self._versions.get(table) != noted
            if changed and not stepped:
                self._spoilt.add(table)
        return self._spoilt.isdisjoint(self.tables)

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        self._stepping = True
        for parameter in _parameters(optimizer):
            grad = parameter.grad
            if grad is None:
                self._will_change(parameter)
            elif not grad.is_sparse:
                self._lost(parameter)
            elif parameter not in self._dense:
                self._kept.setdefault(parameter, partial(_kept_by_row, optimizer, parameter))
                self._will_change(parameter, grad._indices()[0])

    def _fused_change(self, found: dict[Tensor, Tensor]) -> None:
        self._fence()
        for table, ids in found.items():
            self._will_change(table, ids)

    def _fused_reset(self, tables: Iterable[Tensor]) -> None:
        """Any of their rows may change now."""
        self._fence()
        for table in tables:
            rows = self.tables.get(table)
            if rows is not None:
                rows.release()
                rows.all_changed()

    def _fused_lost(self, tables: Iterable[Tensor]) -> None:
        """From now on their rows may change unseen."""
        self._fence()
        for table in tables:
            rows = self._forgotten(table)
            self.torn = (rows is not None and rows.give_up()) or self.torn

    def _will_change(self, table: Tensor, ids: Tensor | None = None) -> None:
        """These rows of it; whether others were before, nobody could tell afterwards."""
        rows = self.tables.get(table)
        if rows is None:
            return
        if _versions(rows) != self._versions[table] and self._changed_past(table, rows):
            return
        if ids is not None:
            rows.before(ids)
            rows.changed(ids)

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        for parameter in _parameters(optimizer):
            if parameter in self.tables:
                self._versions[parameter] = _versions(self.tables[parameter])
        self._stepping = False

    def _lost(self, parameter: Tensor) -> None:
        """From now on any row of it may change."""
        if parameter not in self._dense and (rows := self._forgotten(parameter)) is not None:
            rows.release()

    def _forgotten(self, table: Tensor) -> Table | None:
        """It is tracked no more; what was known of it."""
        self._dense.add(table)
        self._kept.pop(table, None)
        self._versions.pop(table, None)
        return self.tables.pop(table, None)

    def _made(self, table: Tensor, parts: list[Tensor]) -> Table:
        parts = [part.detach() for part in parts]
        if on_gpu(table):
            return DeviceRows(parts, self.images, *self._shared.get(table, ()))
        return Rows(parts, self.images)

    def _changed_past(self, table: Tensor, rows: Table) -> bool:
        """Whether it has spoilt an image: then it may again, and the table is tracked no more."""
        spoilt = rows.give_up() or table in self._spoilt
        rows.all_changed()
        self._versions[table] = _versions(rows)
        if spoilt:
            self.torn = True
            self._lost(table)
        return spoilt


def _versions(rows: Table) -> list[int]:
    return [tensor._version for tensor in rows.tensors]


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _by_rows(optimizer: Optimizer) -> bool:
    """Whether, of a table with a sparse gradient, it changes the rows of that gradient only."""
    if type(optimizer) is SGD:
        return not any(group["momentum"] for group in optimizer.param_groups)
    return type(optimizer) in (Adagrad, SparseAdam)


def _kept_by_row(optimizer: Optimizer, table: Tensor) -> list[Tensor]:
    state = optimizer.state.get(table, {})
    kept = [state[name] for name in sorted(state) if isinstance(state[name], Tensor)]
    return [tensor for tensor in kept if tensor.dim() and len(tensor) == len(table)]


def _place(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()
