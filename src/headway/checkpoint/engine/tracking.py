"""Which rows of which tables a step changes, by the gradients right before the step.

Only tables with known changes are tracked: those with a sparse gradient under an optimizer that
changes no other row, and those that FBGEMM changes by lookup. All others are copied whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from headway.checkpoint.engine import fbgemm
from headway.checkpoint.engine.gpu_transfer import is_capturing, on_gpu
from headway.checkpoint.engine.rows import DeviceRows, HostRows

Table = HostRows | DeviceRows


class RowTracker:
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
        # That step, and the rows are known afterwards at the earliest: whether they are then.
        self._unsure: dict[Optimizer, bool] = {}
        self._spoilt: set[Tensor] = set()  # they were changed past it while an image was made
        self._hooks: dict[Optimizer, list[Any]] = {}
        for optimizer in optimizers:
            if _changes_gradient_rows_only(optimizer):
                self._hook(optimizer)
        self._fused = [
            fbgemm.FbgemmTables(module, self._fused_change, self._fused_reset, self._fused_lost)
            for module in fbgemm.trackable_modules(modules)
        ]
        self._shared = {table: at for one in self._fused for table, at in one.shared.items()}
        for one in self._fused:
            for table, kept in one.kept.items():
                self._kept[table] = partial(list, kept)

    def close(self) -> None:
        """Nothing is tracked any more."""
        for hooks in self._hooks.values():
            for hook in hooks:
                hook.remove()
        for one in self._fused:
            one.close()
        self.tables.clear()

    def find(self, live: dict[int, Tensor]) -> dict[int, Table]:
        """The tracked ones among the tensors of a state, by their number in it.

        A tensor is known by its memory, as a state_dict gives others than the parameters.
        """
        for optimizer in self._hooks:
            if not self._is_next_to_step(optimizer):
                self._hook(optimizer)
        places = {_memory_key(tensor): number for number, tensor in live.items()}
        found: dict[int, Table] = {}
        for table, kept in list(self._kept.items()):
            known = [table, *kept()]
            parts = [
                part for part in known if _memory_key(part) in places
            ]  # others save the others
            if not parts:
                continue
            rows = self.tables.get(table)
            if rows is None or [_memory_key(t) for t in rows.tensors] != [
                _memory_key(t) for t in parts
            ]:
                rows = self.tables[table] = self._made(table, parts)
                self._versions[table] = _versions(rows)
            elif _versions(rows) != self._versions[table] and self._changed_past(table, rows):
                continue
            found.update({places[_memory_key(part)]: rows for part in parts})
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

    def _hook(self, optimizer: Optimizer) -> None:
        """Hooks right before and right after the step: others may change what it steps with."""
        for hook in self._hooks.get(optimizer, ()):
            hook.remove()
        after = optimizer.register_step_post_hook(self._after)
        self._hooks[optimizer] = [optimizer.register_step_pre_hook(self._before), after]
        with contextlib.suppress(AttributeError, KeyError):
            optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)  # type: ignore[attr-defined]

    def _is_next_to_step(self, optimizer: Optimizer) -> bool:
        """Whether no hook of others comes between those of `_hook` and the step."""
        before, after = (
            list(getattr(optimizer, f"_optimizer_step_{when}_hooks", {}).values())
            for when in ("pre", "post")
        )
        if self._before not in before or self._after not in after:
            return True  # this torch keeps them elsewhere
        between = before[before.index(self._before) + 1 :] + after[: after.index(self._after)]
        return all(getattr(hook, "__module__", "").startswith("headway.") for hook in between)

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._stepping = True
        # What is replayed tells nobody which rows it changes; a momentum may have been set.
        lost = is_capturing() or not _changes_gradient_rows_only(optimizer)
        closure = named.get("closure", args[1] if len(args) > 1 else None)
        next_to_step = self._is_next_to_step(optimizer)
        unsure = closure is not None or not next_to_step  # a closure makes the gradients
        if unsure:
            self._unsure[optimizer] = next_to_step
        for parameter in _parameters(optimizer):
            grad = parameter.grad
            if lost:
                self._lost(parameter)
            elif unsure:
                self._will_change_any(parameter)
            elif grad is None:
                self._will_change(parameter)
            elif not grad.is_sparse:
                self._lost(parameter)
            elif parameter not in self._dense:
                self._kept.setdefault(parameter, partial(_row_state, optimizer, parameter))
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

    def _will_change_any(self, table: Tensor) -> None:
        self._will_change(table)
        if (rows := self.tables.get(table)) is not None:
            rows.release()

    def _has_changed(self, optimizer: Optimizer, table: Tensor, *, known: bool) -> None:
        """`known`: by the gradient that is there after the step."""
        rows, grad = self.tables.get(table), table.grad
        if grad is not None and not grad.is_sparse:
            self._lost(table)
        elif grad is not None and table not in self._dense:
            self._kept.setdefault(table, partial(_row_state, optimizer, table))
        if rows is None or _versions(rows) == self._versions.get(table):
            return
        if known and grad is not None and grad.is_sparse:
            rows.changed(grad._indices()[0])
        else:
            rows.all_changed()

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        known = self._unsure.pop(optimizer, None)
        for parameter in _parameters(optimizer):
            if known is not None:
                self._has_changed(optimizer, parameter, known=known)
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
        return HostRows(parts, self.images)

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


def _changes_gradient_rows_only(optimizer: Optimizer) -> bool:
    """Whether, of a table with a sparse gradient, it changes the rows of that gradient only."""
    if type(optimizer) is SGD:
        return not any(group["momentum"] for group in optimizer.param_groups)
    return type(optimizer) in (Adagrad, SparseAdam)


def _row_state(optimizer: Optimizer, table: Tensor) -> list[Tensor]:
    state = optimizer.state.get(table, {})
    kept = [state[name] for name in sorted(state) if isinstance(state[name], Tensor)]
    return [tensor for tensor in kept if tensor.dim() and len(tensor) == len(table)]


def _memory_key(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()
