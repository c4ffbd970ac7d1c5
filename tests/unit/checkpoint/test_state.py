"""States of any shape, there and back."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headway.checkpoint import plan as plans
from headway.checkpoint.restore import from_store
from headway.checkpoint.state import Parts
from headway.checkpoint.store import dcp
from headway.checkpoint.store.commit import Draft, commit
from headway.checkpoint.store.part import BytesItem, TensorItem, write_part
from headway.errors import UsageError

pytestmark = pytest.mark.timeout(60)


class Odd:
    """Keys that are numbers, lists, tuples, what is empty, tensors at any depth."""

    def __init__(self, value: int) -> None:
        self.state: Any = {
            1: {"x": torch.full((2,), float(value)), "none": None, "empty": {}},
            "list": [torch.tensor(value), [], (value, torch.ones(0))],
            "text": "a" * value,
        }

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def saved(store: Path, parts: Parts, step: int = 1) -> None:
    """As a writer does it, without one."""
    state = parts.collect()
    plan = plans.make(state)
    share = plan.share(state)
    items: list[TensorItem | BytesItem] = [
        TensorItem(dcp.item_name(item.index), dcp.record(t.dtype, t.shape), dcp.raw(t.contiguous()))
        for item, t in zip(plan.tensors, share.tensors, strict=True)
    ]
    items += [
        BytesItem(dcp.item_name(item.index), value)
        for item, value in zip(plan.values, share.values, strict=True)
    ]
    with Draft(store, step, f"save-{step}", 1) as draft:
        write_part(draft.folder, 0, items)
        commit(draft, lambda done: dcp.metadata(plan.metadata, done))


def same(one: Any, other: Any) -> bool:
    first, second = io.BytesIO(), io.BytesIO()
    torch.save(one, first)
    torch.save(other, second)
    return first.getvalue() == second.getvalue()


def test_any_structure_comes_back_as_it_was(tmp_path: Path) -> None:
    there, back = Odd(3), Odd(7)
    saved(tmp_path, Parts({"odd": there, "epoch": lambda: {"n": [1, 2]}}, {}, 0))
    restored = from_store(str(tmp_path), Parts({"odd": back, "epoch": lambda: None}, {}, 0), None)
    assert restored is not None and restored.values == {"epoch": {"n": [1, 2]}}
    assert same(back.state, there.state)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimizer_before_its_first_step_gets_its_state(optimizer: Any, tmp_path: Path) -> None:
    def made() -> tuple[nn.Module, Any]:
        model = nn.Linear(3, 2)
        return model, optimizer(model.parameters(), lr=0.25)

    model, opt = made()
    model(torch.ones(1, 3)).sum().backward()
    opt.step()
    saved(tmp_path, Parts({"model": model, "opt": opt}, {}, 0))
    fresh, fresh_opt = made()
    fresh_opt.param_groups[0]["lr"] = 1.0
    weight = fresh.weight
    from_store(str(tmp_path), Parts({"model": fresh, "opt": fresh_opt}, {}, 0), None)
    assert fresh.weight is weight and torch.equal(weight, model.weight)
    assert same(fresh_opt.state_dict(), opt.state_dict())
    assert set(fresh_opt.state) == set(opt.state) or all(
        isinstance(key, torch.Tensor) for key in fresh_opt.state
    )


class Keyed(torch.optim.Optimizer):
    """As TorchRec's: parameters have names, and each rank knows those of its own tables."""

    def __init__(self, kept: dict[str, dict[str, Any]]) -> None:
        self.params = {name: nn.Parameter(torch.zeros(1)) for name in kept}
        super().__init__(list(self.params.values()), {})
        self.kept = kept
        self.given: Any = None

    def state_dict(self) -> Any:
        return {"state": self.kept}

    def load_state_dict(self, state: Any) -> None:
        self.given = state["state"]


def test_an_optimizer_gets_what_is_kept_of_its_own_parameters(tmp_path: Path) -> None:
    kept = {name: {"sum": torch.full((3,), at)} for at, name in enumerate("ab")}
    saved(tmp_path, Parts({"opt": Keyed({**kept, "plain": {}})}, {}, 0))
    mine = torch.zeros(3)
    opt = Keyed({"b": {"sum": mine}, "plain": {}, "other": {}})
    from_store(str(tmp_path), Parts({"opt": opt}, {}, 0), None)
    assert set(opt.given) == {"b", "plain", "other"} and not opt.given["other"]
    assert opt.given["b"]["sum"] is mine and mine.tolist() == [1, 1, 1]
    late = Keyed({"a": {}})  # it has made no step: nothing of it may be lost
    from_store(str(tmp_path), Parts({"opt": late}, {}, 0), None)
    assert late.given["a"]["sum"].tolist() == [0, 0, 0]


def test_buffers_and_extra_state_of_a_module(tmp_path: Path) -> None:
    class Counted(nn.BatchNorm1d):
        seen = 0

        def get_extra_state(self) -> dict[str, int]:
            return {"seen": self.seen}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.seen = state["seen"]

    there, back = Counted(2), Counted(2)
    there(torch.randn(8, 2))
    there.seen = 5
    saved(tmp_path, Parts({"norm": there}, {}, 0))
    from_store(str(tmp_path), Parts({"norm": back}, {}, 0), None)
    assert back.seen == 5 and torch.equal(back.running_mean, there.running_mean)


def test_each_rank_has_its_own(tmp_path: Path) -> None:
    saved(tmp_path, Parts({"x": torch.ones(2)}, {"data": Odd(4)}, 0))
    other, mine = Odd(1), Odd(1)
    from_store(str(tmp_path), Parts({"x": torch.zeros(2)}, {"data": other}, 1), None)
    assert same(other.state, Odd(1).state)  # rank 1 has saved nothing
    x = torch.zeros(2)
    from_store(str(tmp_path), Parts({"x": x}, {"data": mine}, 0), None)
    assert same(mine.state, Odd(4).state) and x.tolist() == [1, 1]


def test_a_state_that_has_changed_is_refused() -> None:
    parts: dict[str, Any] = {"x": torch.ones(2)}
    plan = plans.make(Parts(parts, {}, 0).collect())
    with pytest.raises(plans.StateChanged, match="replan"):
        plan.share(Parts({"x": torch.ones(3)}, {}, 0).collect())


@pytest.mark.parametrize("name", ["headway", "a@1"])
def test_names_that_are_taken(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        Parts({name: 1}, {}, 0)


def test_compiled_and_parallel_modules_are_looked_through() -> None:
    model = nn.Linear(1, 1)
    assert Parts({"m": torch.compile(model)}, {}, 0).parts["m"] is model
