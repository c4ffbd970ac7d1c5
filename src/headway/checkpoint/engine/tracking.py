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
    """The tables of some optimizers, and tables in modules that need no optimizer."""

    def __init__(
        self,
        optimizers: Iterable[Optimizer],
        buffers: int,
        modules: Iterable[nn.Module] = (),
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        """`fence` is called before a fused table changes."""
        self.buffers = buffers
        self._fence = fence
        self.tables: dict[Tensor, Table] = {}
        self.invalidated = False  # a table was modified outside its optimizer during a capture
        # State per row, for parameters with sparse gradients only and for fused tables.
        self._row_states: dict[Tensor, Callable[[], list[Tensor]]] = {}
        self._dense: set[Tensor] = set()
        self._versions: dict[Tensor, list[int]] = {}  # of a table and its state per row
        self._stepping = False
        # Optimizers whose changed rows are known only after the step: whether they are then.
        self._unsure: dict[Optimizer, bool] = {}
        self._invalid_tables: set[Tensor] = set()  # modified outside the optimizer during a capture
        self._hooks: dict[Optimizer, list[Any]] = {}
        for optimizer in optimizers:
            if _changes_gradient_rows_only(optimizer):
                self._hook(optimizer)
        self._fused = [
            fbgemm.FbgemmTables(
                module, self._on_fused_change, self._on_fused_reset, self._on_fused_lost
            )
            for module in fbgemm.trackable_modules(modules)
        ]
        self._shared = {
            table: at for module_tables in self._fused for table, at in module_tables.shared.items()
        }
        for module_tables in self._fused:
            for table, row_state in module_tables.row_state.items():
                self._row_states[table] = partial(list, row_state)

    def close(self) -> None:
        """Stop tracking."""
        for hooks in self._hooks.values():
            for hook in hooks:
                hook.remove()
        for module_tables in self._fused:
            module_tables.close()
        self.tables.clear()

    def find(self, live: dict[int, Tensor]) -> dict[int, Table]:
        """The tracked tables among the tensors of a state, by tensor index.

        Tensors are identified by memory, as a state_dict returns other objects than the parameters.
        """
        for optimizer in self._hooks:
            if not self._is_next_to_step(optimizer):
                self._hook(optimizer)
        numbers = {_memory_key(tensor): number for number, tensor in live.items()}
        rows_by_number: dict[int, Table] = {}
        for table, row_state in list(self._row_states.items()):
            table_tensors = [table, *row_state()]
            parts = [
                part for part in table_tensors if _memory_key(part) in numbers
            ]  # other ranks save the others
            if not parts:
                continue
            rows = self.tables.get(table)
            if rows is None or [_memory_key(t) for t in rows.tensors] != [
                _memory_key(t) for t in parts
            ]:
                rows = self.tables[table] = self._make_rows(table, parts)
                self._versions[table] = _versions(rows)
            elif _versions(rows) != self._versions[table] and self._modified_outside_optimizer(
                table, rows
            ):
                continue
            rows_by_number.update({numbers[_memory_key(part)]: rows for part in parts})
        return rows_by_number

    def is_consistent(self) -> bool:
        """In another thread: whether nothing was modified outside its optimizer so far."""
        for table, versions in list(self._versions.items()):
            rows = self.tables.get(table)
            changed = rows is not None and _versions(rows) != versions
            stepped = self._stepping or self._versions.get(table) != versions
            if changed and not stepped:
                self._invalid_tables.add(table)
        return self._invalid_tables.isdisjoint(self.tables)

    def _hook(self, optimizer: Optimizer) -> None:
        """Put hooks directly before and after the step: others may change gradients."""
        for hook in self._hooks.get(optimizer, ()):
            hook.remove()
        after = optimizer.register_step_post_hook(self._after)
        self._hooks[optimizer] = [optimizer.register_step_pre_hook(self._before), after]
        with contextlib.suppress(AttributeError, KeyError):
            optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)  # type: ignore[attr-defined]

    def _is_next_to_step(self, optimizer: Optimizer) -> bool:
        """Whether no foreign hook runs between those of `_hook` and the step."""
        before, after = (
            list(getattr(optimizer, f"_optimizer_step_{when}_hooks", {}).values())
            for when in ("pre", "post")
        )
        if self._before not in before or self._after not in after:
            return True  # this torch stores them elsewhere
        between = before[before.index(self._before) + 1 :] + after[: after.index(self._after)]
        return all(getattr(hook, "__module__", "").startswith("headway.") for hook in between)

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._stepping = True
        # Graph replays do not report changed rows; a momentum may have been set.
        untrackable = is_capturing() or not _changes_gradient_rows_only(optimizer)
        closure = named.get("closure", args[1] if len(args) > 1 else None)
        next_to_step = self._is_next_to_step(optimizer)
        ids_unknown = closure is not None or not next_to_step  # a closure computes the gradients
        if ids_unknown:
            self._unsure[optimizer] = next_to_step
        for parameter in _parameters(optimizer):
            grad = parameter.grad
            if untrackable:
                self._stop_tracking(parameter)
            elif ids_unknown:
                self._before_any_change(parameter)
            elif grad is None:
                self._before_change(parameter)
            elif not grad.is_sparse:
                self._stop_tracking(parameter)
            elif parameter not in self._dense:
                self._row_states.setdefault(parameter, partial(_row_state, optimizer, parameter))
                self._before_change(parameter, grad._indices()[0])

    def _on_fused_change(self, changes: dict[Tensor, Tensor]) -> None:
        self._fence()
        for table, ids in changes.items():
            self._before_change(table, ids)

    def _on_fused_reset(self, tables: Iterable[Tensor]) -> None:
        """Any of their rows may change now."""
        self._fence()
        for table in tables:
            rows = self.tables.get(table)
            if rows is not None:
                rows.allow_any_change()
                rows.mark_all_changed()

    def _on_fused_lost(self, tables: Iterable[Tensor]) -> None:
        """From now on their rows may change unobserved."""
        self._fence()
        for table in tables:
            rows = self._forget(table)
            self.invalidated = (rows is not None and rows.abandon()) or self.invalidated

    def _before_change(self, table: Tensor, ids: Tensor | None = None) -> None:
        """These rows are about to change.

        Changes made before must be detected now; later they could not be told apart.
        """
        rows = self.tables.get(table)
        if rows is None:
            return
        if _versions(rows) != self._versions[table] and self._modified_outside_optimizer(
            table, rows
        ):
            return
        if ids is not None:
            rows.copy_before_update(ids)
            rows.mark_changed(ids)

    def _before_any_change(self, table: Tensor) -> None:
        self._before_change(table)
        if (rows := self.tables.get(table)) is not None:
            rows.allow_any_change()

    def _has_changed(self, optimizer: Optimizer, table: Tensor, *, known: bool) -> None:
        """`known`: the rows are those of the gradient after the step."""
        rows, grad = self.tables.get(table), table.grad
        if grad is not None and not grad.is_sparse:
            self._stop_tracking(table)
        elif grad is not None and table not in self._dense:
            self._row_states.setdefault(table, partial(_row_state, optimizer, table))
        if rows is None or _versions(rows) == self._versions.get(table):
            return
        if known and grad is not None and grad.is_sparse:
            rows.mark_changed(grad._indices()[0])
        else:
            rows.mark_all_changed()

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        known = self._unsure.pop(optimizer, None)
        for parameter in _parameters(optimizer):
            if known is not None:
                self._has_changed(optimizer, parameter, known=known)
            if parameter in self.tables:
                self._versions[parameter] = _versions(self.tables[parameter])
        self._stepping = False

    def _stop_tracking(self, parameter: Tensor) -> None:
        """From now on any row may change."""
        if parameter not in self._dense and (rows := self._forget(parameter)) is not None:
            rows.allow_any_change()

    def _forget(self, table: Tensor) -> Table | None:
        """Stop tracking; return what was known."""
        self._dense.add(table)
        self._row_states.pop(table, None)
        self._versions.pop(table, None)
        return self.tables.pop(table, None)

    def _make_rows(self, table: Tensor, parts: list[Tensor]) -> Table:
        parts = [part.detach() for part in parts]
        if on_gpu(table):
            return DeviceRows(parts, self.buffers, *self._shared.get(table, ()))
        return HostRows(parts, self.buffers)

    def _modified_outside_optimizer(self, table: Tensor, rows: Table) -> bool:
        """Whether the change has invalidated a capture; if so, stop tracking the table."""
        invalid = rows.abandon() or table in self._invalid_tables
        rows.mark_all_changed()
        self._versions[table] = _versions(rows)
        if invalid:
            self.invalidated = True
            self._stop_tracking(table)
        return invalid


def _versions(rows: Table) -> list[int]:
    return [tensor._version for tensor in rows.tensors]


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _changes_gradient_rows_only(optimizer: Optimizer) -> bool:
    """Whether it changes only the rows of a sparse gradient."""
    if type(optimizer) is SGD:
        return not any(group["momentum"] for group in optimizer.param_groups)
    return type(optimizer) in (Adagrad, SparseAdam)


def _row_state(optimizer: Optimizer, table: Tensor) -> list[Tensor]:
    state = optimizer.state.get(table, {})
    tensors = [state[name] for name in sorted(state) if isinstance(state[name], Tensor)]
    return [tensor for tensor in tensors if tensor.dim() and len(tensor) == len(table)]


def _memory_key(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()
