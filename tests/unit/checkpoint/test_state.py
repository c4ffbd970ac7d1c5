"""States of any shape, there and back."""

from __future__ import annotations

import collections
import io
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.format.rank_file import BytesItem, TensorItem, write_part
from headway.checkpoint.store.commit import Draft, commit
from headway.errors import CheckpointMismatch, UsageError
from tests.support import has_code, lazy

torch = lazy("torch")
nn = lazy("torch.nn")
plans = lazy("headway.checkpoint.plan")
from_store = lazy("headway.checkpoint.restore:from_store")
StateTree = lazy("headway.checkpoint.state_tree:StateTree")
flatten = lazy("headway.checkpoint.state:flatten")
dcp = lazy("headway.checkpoint.format.dcp")
HostTensors = lazy("headway.checkpoint.engine.dense:HostTensors")
Keyed = lazy("tests.unit.checkpoint.torch_classes:Keyed")

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


def saved(store: Path, parts: StateTree, step: int = 1) -> None:
    """As a writer does it, without one."""
    state = parts.collect()
    plan = plans.make_plan(state)
    share = plan.local_items(state)
    views = [torch.empty(t.shape, dtype=t.dtype) for t in share.tensors]
    HostTensors().begin(dict(enumerate(share.tensors)), views, set())
    items: list[TensorItem | BytesItem] = [
        TensorItem(
            dcp.item_name(item.index),
            dcp.tensor_pickle(view.dtype, view.shape),
            dcp.tensor_bytes(view),
        )
        for item, view in zip(plan.tensors, views, strict=True)
    ]
    items += [
        BytesItem(dcp.item_name(item.index), value)
        for item, value in zip(plan.values, share.values, strict=True)
    ]
    with Draft(store, step, f"save-{step}", 1) as draft:
        write_part(draft.folder, 0, items)
        commit(draft, lambda done: dcp.build_metadata(plan.metadata, done))


def same(one: Any, other: Any) -> bool:
    first, second = io.BytesIO(), io.BytesIO()
    torch.save(one, first)
    torch.save(other, second)
    return first.getvalue() == second.getvalue()


def test_any_structure_comes_back_as_it_was(tmp_path: Path) -> None:
    there, back = Odd(3), Odd(7)
    saved(tmp_path, StateTree({"odd": there, "epoch": lambda: {"n": [1, 2]}}, {}, 0))
    restored = from_store(
        str(tmp_path), StateTree({"odd": back, "epoch": lambda: None}, {}, 0), None
    )
    assert restored is not None and restored.values == {"epoch": {"n": [1, 2]}}
    assert same(back.state, there.state)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_an_optimizer_before_its_first_step_gets_its_state(name: str, tmp_path: Path) -> None:
    optimizer = getattr(torch.optim, name)

    def made() -> tuple[nn.Module, Any]:
        model = nn.Linear(3, 2)
        return model, optimizer(model.parameters(), lr=0.25)

    model, opt = made()
    model(torch.ones(1, 3)).sum().backward()
    opt.step()
    saved(tmp_path, StateTree({"model": model, "opt": opt}, {}, 0))
    fresh, fresh_opt = made()
    fresh_opt.param_groups[0]["lr"] = 1.0
    weight = fresh.weight
    from_store(str(tmp_path), StateTree({"model": fresh, "opt": fresh_opt}, {}, 0), None)
    assert fresh.weight is weight and torch.equal(weight, model.weight)
    assert same(fresh_opt.state_dict(), opt.state_dict())
    assert set(fresh_opt.state) == set(opt.state) or all(
        isinstance(key, torch.Tensor) for key in fresh_opt.state
    )


def test_an_optimizer_gets_what_is_kept_of_its_own_parameters(tmp_path: Path) -> None:
    kept = {name: {"sum": torch.full((3,), float(at))} for at, name in enumerate("ab")}
    saved(tmp_path, StateTree({"opt": Keyed({**kept, "plain": {}})}, {}, 0))
    mine = torch.zeros(3)
    opt = Keyed({"b": {"sum": mine}, "plain": {}, "other": {}})
    from_store(str(tmp_path), StateTree({"opt": opt}, {}, 0), None)
    assert set(opt.given) == {"b", "plain", "other"} and not opt.given["other"]
    assert opt.given["b"]["sum"] is mine and mine.tolist() == [1, 1, 1]
    late = Keyed({"a": {}})  # it has made no step: nothing of it may be lost
    from_store(str(tmp_path), StateTree({"opt": late}, {}, 0), None)
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
    saved(tmp_path, StateTree({"norm": there}, {}, 0))
    from_store(str(tmp_path), StateTree({"norm": back}, {}, 0), None)
    assert back.seen == 5 and torch.equal(back.running_mean, there.running_mean)


def test_each_rank_has_its_own(tmp_path: Path) -> None:
    saved(tmp_path, StateTree({"x": torch.ones(2)}, {"data": Odd(4)}, 0))
    other, mine = Odd(1), Odd(1)
    from_store(str(tmp_path), StateTree({"x": torch.zeros(2)}, {"data": other}, 1), None)
    assert same(other.state, Odd(1).state)  # rank 1 has saved nothing
    x = torch.zeros(2)
    from_store(str(tmp_path), StateTree({"x": x}, {"data": mine}, 0), None)
    assert same(mine.state, Odd(4).state) and x.tolist() == [1, 1]


def test_a_state_that_has_changed_is_refused() -> None:
    parts: dict[str, Any] = {"x": torch.ones(2)}
    plan = plans.make_plan(StateTree(parts, {}, 0).collect())
    with pytest.raises(plans.StateChanged, check=has_code("state-changed")):
        plan.local_items(StateTree({"x": torch.ones(3)}, {}, 0).collect())


@pytest.mark.parametrize("name", ["headway", "a@1"])
def test_names_that_are_taken(name: str) -> None:
    with pytest.raises(UsageError, check=has_code("part-name-reserved")) as raised:
        StateTree({name: 1}, {}, 0)
    assert raised.value.fields["name"] == name


def test_compiled_and_parallel_modules_are_looked_through() -> None:
    model = nn.Linear(1, 1)
    assert StateTree({"m": torch.compile(model)}, {}, 0).parts["m"] is model


def both(first: dict[str, Any], second: dict[str, Any], store: Path, **options: Any) -> Any:
    """Save the one, restore into the other."""
    saved(store, StateTree(first, {}, 0))
    return from_store(str(store), StateTree(second, {}, 0), None, **options)


@pytest.mark.parametrize("name", ["@", "user@v2", "a@0", "w#ids", "w#rows", "w[0]", "w[2, 0]"])
def test_a_name_may_look_like_those_of_the_store(name: str, tmp_path: Path) -> None:
    there, back = (nn.ParameterDict({name: torch.rand(3), "w": torch.rand(4)}) for _ in range(2))
    both({"model": there}, {"model": back}, tmp_path)
    assert same(back.state_dict(), there.state_dict())


def trained(*names: str) -> tuple[Any, Any]:
    """A model of layers with these names, of which Adam has made a step."""
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(2, 2))
    adam = torch.optim.Adam(model.parameters())
    sum(one(torch.rand(1, 2)).sum() for one in model).backward()
    adam.step()
    return model, adam


def test_what_an_optimizer_keeps_goes_by_the_names_of_parameters(tmp_path: Path) -> None:
    model, adam = trained("a", "b")
    other, its = trained("b", "a")  # in another order
    both({"model": model, "adam": adam}, {"model": other, "adam": its}, tmp_path)
    for name, parameter in model.named_parameters():
        kept = its.state[dict(other.named_parameters())[name]]
        assert torch.equal(kept["exp_avg"], adam.state[parameter]["exp_avg"])


def test_a_state_of_another_type_than_its_parameter_keeps_it(tmp_path: Path) -> None:
    def made(value: float) -> tuple[Any, Any]:
        model = nn.Linear(2, 2).bfloat16()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        for parameter in model.parameters():  # as optimizers with master weights have it
            sgd.state[parameter]["master"] = torch.full_like(parameter, value, dtype=torch.float32)
        return model, sgd

    (model, sgd), (other, its) = made(1 / 3), made(0.0)
    both({"model": model, "sgd": sgd}, {"model": other, "sgd": its}, tmp_path)
    assert same(its.state_dict(), sgd.state_dict())


def test_a_renamed_layer_is_an_error_that_lists_both_sides(tmp_path: Path) -> None:
    model, other = nn.Sequential(), nn.Sequential()
    for one, name in ((model, "fc"), (other, "head")):
        one.add_module("body", nn.Linear(2, 2))
        one.add_module(name, nn.Linear(2, 2))
    before = {name: one.clone() for name, one in other.state_dict().items()}
    with pytest.raises(CheckpointMismatch, check=has_code("checkpoint-mismatch")) as raised:
        both({"model": model}, {"model": other}, tmp_path)
    assert raised.value.fields == {
        "missing": ["model.head.weight", "model.head.bias"],
        "unexpected": ["model.fc.weight", "model.fc.bias"],
        "different": [],
    }
    assert "model.head.weight (the checkpoint has model.fc.weight)" in str(raised.value)
    assert same(dict(other.state_dict()), before), "nothing was changed"
    restored = from_store(str(tmp_path), StateTree({"model": other}, {}, 0), None, strict=False)
    assert restored is not None and len(restored.notes) == 2
    assert torch.equal(other.body.weight, model.body.weight)
    assert torch.equal(other.head.weight, before["head.weight"])


@pytest.mark.parametrize("strict", [True, False])
def test_shapes_are_compared_before_anything_is_read(strict: bool, tmp_path: Path) -> None:
    state = {"a": torch.ones(3), "b": torch.ones(3), "c": torch.ones(2)}
    back = {"a": torch.zeros(3), "b": torch.zeros(4), "c": torch.zeros(2, dtype=torch.float64)}
    if not strict:
        restored = both(state, back, tmp_path, strict=False)
        assert back["a"].tolist() == [1, 1, 1] and back["c"].tolist() == [1, 1]
        assert back["b"].tolist() == [0] * 4 and len(restored.notes) == 2
        return
    with pytest.raises(Exception, check=has_code("checkpoint-mismatch")) as raised:
        both(state, back, tmp_path)
    assert [text.partition(" ")[0] for text in raised.value.fields["different"]] == ["b", "c"]
    assert not any(one.any() for one in back.values())


def test_more_or_fewer_parts_are_an_error(tmp_path: Path) -> None:
    model, adam = trained("a")
    saved(tmp_path, StateTree({"model": model, "adam": adam}, {}, 0))
    for parts, missing, unexpected in (
        ({"model": model}, [], "adam.state.model.a.weight.step"),
        ({"net": model, "adam": adam}, ["net.a.weight"], "model.a.weight"),
        ({"model": model, "adam": adam, "more": Odd(1)}, ["more"], ""),
    ):
        with pytest.raises(CheckpointMismatch) as raised:
            from_store(str(tmp_path), StateTree(parts, {}, 0), None)
        assert set(missing) <= set(raised.value.fields["missing"])
        assert {unexpected} - {""} <= set(raised.value.fields["unexpected"])


def test_wrappers_inside_a_model_are_looked_through(tmp_path: Path) -> None:
    model, adam = trained("a", "b")
    other, its = trained("a", "b")
    wrapped = nn.ModuleDict({"module": other})  # as DDP names it
    wrapped["module"].a = torch.compile(other.a)
    both({"model": model, "adam": adam}, {"model": wrapped, "adam": its}, tmp_path)
    assert same(list(other.state_dict().values()), list(model.state_dict().values()))
    assert same(its.state_dict()["state"], adam.state_dict()["state"])


def test_a_compiled_module_is_known_by_its_class() -> None:
    model = nn.ParameterDict({"_orig_mod": torch.ones(1)})
    assert StateTree({"m": model}, {}, 0).parts["m"] is model


def test_ranks_that_have_another_tensor_of_one_name_are_refused() -> None:
    def plan(value: Any) -> Any:
        planner = plans._planner({"w": value})
        return planner.create_local_plan()

    plans._check_replicas([plan(torch.ones(2)), plan(torch.zeros(2))])
    for other in (torch.ones(3), torch.ones(2, dtype=torch.int32), torch.ones(1, 2), "text"):
        with pytest.raises(UsageError, check=has_code("ranks-disagree")):
            plans._check_replicas([plan(torch.ones(2)), plan(other)])


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"a": {"b": 1}, "a.b": 2}, "names-collide"),
        ({"a": {1: None, "1": [{"b": 2}]}}, "keys-equal-as-text"),
    ],
)
def test_names_that_are_the_same_in_the_store_are_refused(state: Any, code: str) -> None:
    with pytest.raises(UsageError, check=has_code(code)):
        plans.make_plan(StateTree(state, {}, 0).collect())


def grouped(*groups: list[str], lr: list[float]) -> tuple[Any, Any]:
    """A model, and SGD with these groups of its layers."""
    model, _ = trained("a", "b")
    layers = dict(model.named_children())
    told = [
        {"params": [p for name in group for p in layers[name].parameters()], "lr": rate}
        for group, rate in zip(groups, lr, strict=True)
    ]
    return model, torch.optim.SGD(told, momentum=0.5)


@pytest.mark.parametrize(("second", "fits"), [(0.25, True), (0.5, False)])
def test_groups_that_become_one_need_the_same_settings(
    second: float, fits: bool, tmp_path: Path
) -> None:
    model, sgd = grouped(["a"], ["b"], lr=[0.25, second])
    other, its = grouped(["b", "a"], lr=[9.0])
    parts = {"model": other, "sgd": its}
    saved(tmp_path, StateTree({"model": model, "sgd": sgd}, {}, 0))
    if not fits:
        with pytest.raises(CheckpointMismatch) as raised:
            from_store(str(tmp_path), StateTree(parts, {}, 0), None)
        assert len(raised.value.fields["different"]) == 1
        return
    from_store(str(tmp_path), StateTree(parts, {}, 0), None)
    assert its.param_groups[0]["lr"] == 0.25


def test_what_was_saved_by_number_is_compared_by_the_sizes_of_groups(tmp_path: Path) -> None:
    """No module of the state has the parameters, so that they have no names."""
    _, sgd = grouped(["a"], ["b"], lr=[0.25, 0.5])
    saved(tmp_path, StateTree({"sgd": sgd}, {}, 0))
    _, same_groups = grouped(["a"], ["b"], lr=[1.0, 1.0])
    from_store(str(tmp_path), StateTree({"sgd": same_groups}, {}, 0), None)
    assert [group["lr"] for group in same_groups.param_groups] == [0.25, 0.5]
    _, other = grouped(["a", "b"], lr=[1.0])
    with pytest.raises(CheckpointMismatch):
        from_store(str(tmp_path), StateTree({"sgd": other}, {}, 0), None)
    restored = from_store(str(tmp_path), StateTree({"sgd": other}, {}, 0), None, strict=False)
    assert restored is not None and len(restored.notes) == 1
    assert other.param_groups[0]["lr"] == 1.0


def test_what_a_state_dict_only_copies_is_handed_back(tmp_path: Path) -> None:
    class Copies(nn.Linear):
        """As modules do that keep their weights in another form."""

        def __init__(self) -> None:
            super().__init__(2, 2)
            self._register_state_dict_hook(self._copied)

        @staticmethod
        def _copied(module: Any, state: Any, prefix: str, _: Any) -> None:
            for name in list(state):
                state[name] = state[name].clone()

    there, back = Copies(), Copies()
    both({"model": there}, {"model": back}, tmp_path)
    assert torch.equal(back.weight, there.weight) and torch.equal(back.bias, there.bias)


@pytest.mark.parametrize("other", ["shape", "type"])
def test_a_part_that_is_read_in_place_has_to_fit(other: str, tmp_path: Path) -> None:
    class Live:
        """Leaves nothing to do for `load_state_dict`."""

        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def state_dict(self) -> Any:
            return {"w": self.tensor}

        def load_state_dict(self, _: Any) -> None:
            """It was read into the tensor."""

    back = torch.zeros(3) if other == "shape" else torch.zeros(2, dtype=torch.float64)
    with pytest.raises(CheckpointMismatch):
        both({"live": Live(torch.ones(2))}, {"live": Live(back)}, tmp_path)
    fits = Live(torch.zeros(2))
    from_store(str(tmp_path), StateTree({"live": fits}, {}, 0), None)
    assert fits.tensor.tolist() == [1, 1]


class Buffers(nn.Module):
    """With these buffers."""

    def __init__(self, **buffers: Any) -> None:
        super().__init__()
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)


def test_views_that_turn_signs_keep_them(tmp_path: Path) -> None:
    def made(value: float) -> Any:
        numbers = torch.complex(torch.full((3,), value), torch.full((3,), 1 - value))
        return Buffers(
            negated=torch._neg_view(torch.full((3,), value)),
            one=numbers[:1].conj().imag,
            conjugated=numbers.conj(),
            both=torch._neg_view(numbers.conj()),
        )

    there, back = made(5.0), made(9.0)
    both({"model": there}, {"model": back}, tmp_path)
    for name, tensor in there.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


class Extra(nn.Linear):
    """A layer with an extra state."""

    def __init__(self, extra: Any) -> None:
        super().__init__(2, 2)
        self.extra = extra

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


@pytest.mark.parametrize("form", ["tensor", "dictionary", "list"])
def test_an_extra_state_may_have_tensors_of_another_size(form: str, tmp_path: Path) -> None:
    """As that of a quantized layer, which is empty at first."""

    def made(size: int, dtype: Any) -> Any:
        tensor = torch.full((size,), size, dtype=dtype)
        return {"tensor": tensor, "dictionary": {"a": tensor}, "list": [tensor, 1]}[form]

    before = made(0, torch.float32)
    there, back = Extra(made(3, torch.uint8)), Extra(before)
    both({"model": nn.Sequential(there)}, {"model": nn.Sequential(back)}, tmp_path)
    assert same(back.extra, there.extra)
    assert same(before, made(0, torch.float32)), "it is replaced, not read into"


def kinds(kind: str) -> Any:
    """A tensor whose memory is not all that it is, or that has none."""
    match kind:
        case "sparse":
            return torch.eye(3).to_sparse()
        case "rows":
            return torch.eye(3).to_sparse_csr()
        case "quantized":
            return torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8)
        case "nested":
            return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        case "meta":
            return torch.ones(3, device="meta")
        case "bits":
            return torch.ones(3, dtype=torch.uint8).view(torch.bits8)
        case "wrapper":
            return lazy("torch.testing._internal.two_tensor:TwoTensor")(
                torch.ones(3), torch.ones(3)
            )
    raise AssertionError(kind)


KINDS = ("sparse", "rows", "quantized", "nested", "meta", "bits", "wrapper")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_that_is_more_than_its_bytes_is_refused_by_its_name(kind: str) -> None:
    state = {"first": torch.ones(2), "model": Buffers(odd=kinds(kind))}
    with pytest.raises(UsageError, check=has_code("tensor-not-supported")) as raised:
        plans.make_plan(StateTree(state, {}, 0).collect())
    assert raised.value.fields["name"] == "model.odd"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [*KINDS, "expanded"])
def test_a_tensor_that_nothing_can_be_read_into_is_told_before_anything_is(
    kind: str, tmp_path: Path
) -> None:
    live = torch.zeros(1).expand(3) if kind == "expanded" else kinds(kind)
    other = torch.zeros(3)
    there = {"model": Buffers(a=torch.ones(3), odd=torch.ones(3))}
    back = {"model": Buffers(a=other, odd=live)}
    with pytest.raises(CheckpointMismatch) as raised:
        both(there, back, tmp_path)
    assert [text.partition(" ")[0] for text in raised.value.fields["different"]] == ["model.odd"]
    assert not other.any(), "nothing was changed"
    restored = from_store(str(tmp_path), StateTree(back, {}, 0), None, strict=False)
    assert restored is not None and len(restored.notes) == 1 and other.all()


def test_what_an_optimizer_keeps_may_share_memory(tmp_path: Path) -> None:
    (model, adam), (other, its) = trained("a"), trained("a")
    weight = other.a.weight
    its.state[weight]["exp_avg"] = torch.zeros(1).expand(2, 2)
    both({"model": model, "adam": adam}, {"model": other, "adam": its}, tmp_path)
    assert same(its.state_dict(), adam.state_dict())


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_module_needs_its_shape_first(tmp_path: Path) -> None:
    fresh, model = nn.LazyLinear(2), nn.LazyLinear(2)
    with pytest.raises(UsageError, check=has_code("tensor-not-supported")):
        plans.make_plan(StateTree({"model": fresh}, {}, 0).collect())
    model(torch.ones(1, 3))
    with pytest.raises(CheckpointMismatch):
        both({"model": model}, {"model": fresh}, tmp_path)
    fresh(torch.ones(1, 3))
    from_store(str(tmp_path), StateTree({"model": fresh}, {}, 0), None)
    assert same(fresh.state_dict(), model.state_dict())


class Settings(dict[str, Any]):
    """As trainers have them."""


@pytest.mark.parametrize("where", ["part", "list", "value", "extra", "own"])
@pytest.mark.parametrize(
    "kept",
    [
        collections.Counter("aab"),
        collections.OrderedDict(a=1),
        collections.defaultdict(list, a=[1]),
        Settings(a={"b": [Settings()]}),
    ],
    ids=lambda kept: type(kept).__name__,
)
def test_dictionaries_keep_their_class(where: str, kept: Any, tmp_path: Path) -> None:
    def made(value: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
        odd, extra = Odd(1), Extra([value])
        odd.state = {"kept": value, "alone": [[value]], "tensor": torch.ones(1)}
        parts = {"part": odd, "model": extra, "value": lambda: [{"kept": value}]}
        return (
            parts,
            {"own": odd},
            lambda: {
                "part": odd.state["kept"],
                "list": odd.state["alone"][0][0],
                "own": odd.state["kept"],
                "extra": extra.extra[0],
            },
        )

    parts, own, _ = made(kept)
    other, its, contents = made(None)
    saved(tmp_path, StateTree(parts, own, 0))
    restored = from_store(str(tmp_path), StateTree(other, its, 0), None)
    back = restored.values["value"][0]["kept"] if where == "value" else contents()[where]
    assert type(back) is type(kept) and back == kept


def test_milestones_of_a_schedule_come_back(tmp_path: Path) -> None:
    def made(*milestones: int) -> Any:
        _, sgd = grouped(["a"], ["b"], lr=[0.5, 0.5])
        return torch.optim.lr_scheduler.MultiStepLR(sgd, list(milestones))

    there, back = made(2, 2, 5), made(1)
    both({"schedule": there}, {"schedule": back}, tmp_path)
    assert sorted(back.milestones.elements()) == [2, 2, 5]


def test_ranks_with_modules_of_their_own_keep_their_optimizer_state(tmp_path: Path) -> None:
    """By numbers all of them would get what one rank has."""
    names = []
    for rank in range(2):
        model, adam = trained("a")
        flat, _ = flatten(StateTree({"adam": adam}, {"stage": model}, rank).collect())
        names.append({name for name, value in flat.items() if torch.is_tensor(value)})
    assert not names[0] & names[1]
    other, its = trained("a")
    saved(tmp_path, StateTree({"adam": adam}, {"stage": model}, 1))
    from_store(str(tmp_path), StateTree({"adam": its}, {"stage": other}, 1), None)
    assert same(its.state_dict(), adam.state_dict())
    assert same(other.state_dict(), model.state_dict())


def test_what_ranks_may_have_otherwise_is_saved_by_the_first_of_them() -> None:
    """Statistics of two ranks would be no moment of any training."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    parts = StateTree({"model": model, "ema": Odd(3), "epoch": lambda: 1}, {}, 0)
    state = parts.collect()
    first = parts.first_rank_names(state)
    planner = plans._planner(state)
    everyone = []
    for _ in range(2):
        plan = planner.create_local_plan()
        told = {item.index.fqn for item in plan.items if plans._is_saved_by_first(item, first)}
        everyone.append((plan, told))
    shares, metadata = planner.create_global_plan(plans._drop_replicas(everyone))
    names = [{item.index.fqn for item in share.items} for share in shares]
    assert names[0] | names[1] == set(metadata.state_dict_metadata) == set(planner.state_dict)
    assert names[1] and names[1] <= {f"model.{name}" for name, _ in model.named_parameters()}
