"""Random training states, for properties that hold for all states that torch allows.

`states()` draws a `StateSpec`, which is plain data: it can be printed, and sent to other processes.
`build(spec, seed, rank, world)` creates the modules, optimizers and values that it describes; two
seeds give different contents of the same form. `contents(state)` returns their state as a nested
dictionary for `torch.save` or DCP, and `difference(saved, loaded)` the first position at which two
such dictionaries are not equal bit for bit.
"""

from __future__ import annotations

import copy
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

DTYPES = tuple(
    name
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"),
    )
    if hasattr(torch, name)
)
TRAINED = ("float32", "float64", "bfloat16", "float16")  # of parameters of an optimizer
ODD_NAMES = (
    *("@", "a@0", "user@v2", "w#ids", "w#rows", "w", "w[0]", "w[2, 0]", "w[]", "0", "00", "1"),
    *(
        "headway",
        "module",
        "_orig_mod",
        "state",
        "param_groups",
        "params",
        "golden",
        "ß",
        " ",
        "\n",
    ),
)
VIEWS = ("transposed", "spread", "turned")  # "turned": with the conjugate or negative bit
OPTIMIZERS = (
    *("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Odd", "ASGD", "Adadelta", "Adafactor"),
    *("Adamax", "LBFGS", "NAdam", "RAdam", "Rprop"),
)
CONTAINERS = {
    "OrderedDict": OrderedDict,
    "defaultdict": partial(defaultdict, list),
    "Counter": Counter,
    "Attributes": lambda pairs: Attributes(pairs),
}


# -- specifications -------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorSpec:
    """A tensor with random bits."""

    shape: tuple[int, ...]
    dtype: str
    view: str = ""  # of VIEWS


@dataclass(frozen=True)
class ContainerSpec:
    """A dictionary of another class."""

    kind: str  # of CONTAINERS
    pairs: tuple[tuple[str, Any], ...]


class Attributes(dict[str, Any]):
    """An enum, as in settings of trainers."""


@dataclass(frozen=True)
class ModuleSpec:
    """A module and its children."""

    parameters: tuple[tuple[str, TensorSpec], ...] = ()
    buffers: tuple[tuple[str, TensorSpec, bool], ...] = ()  # and whether it is saved
    children: tuple[tuple[str, ModuleSpec], ...] = ()
    shared: str = ""  # a second name for the first parameter of the tree
    extra: Any = None  # its extra state


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer of all trainable parameters of a module."""

    kind: str
    module: str
    groups: int
    steps: int
    skipped: int  # every n-th parameter has no gradient; 0: all have one


@dataclass(frozen=True)
class StateSpec:
    """The parts of a training state; values may contain a `TensorSpec` at any depth."""

    modules: dict[str, ModuleSpec] = field(default_factory=dict)
    optimizers: dict[str, OptimizerSpec] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    per_rank: dict[str, Any] = field(default_factory=dict)
    split: bool = False  # each rank has some children of each module, like pipeline stages


# -- drawing a state ------------------------------------------------------------------------


def _names(reserved: type[nn.Module] | None = nn.Module) -> st.SearchStrategy[str]:
    """Any name of a parameter, a buffer or a child."""
    text = st.one_of(st.sampled_from(ODD_NAMES), st.text(min_size=1, max_size=6))
    return text.filter(lambda name: "." not in name and not hasattr(reserved, name))


shapes = st.one_of(
    st.just(()), st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple), st.just((5, 3))
)
tensors = st.builds(TensorSpec, shapes, st.sampled_from(DTYPES), st.sampled_from(["", *VIEWS]))
trained = st.builds(TensorSpec, shapes, st.sampled_from(TRAINED))
plain_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
)
keys = st.one_of(st.sampled_from(ODD_NAMES), st.text(max_size=3), st.integers(0, 3))
values = st.recursive(
    st.one_of(plain_values, tensors),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=2).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.builds(
            ContainerSpec,
            st.sampled_from(sorted(CONTAINERS)),
            st.dictionaries(st.text(max_size=3), inner, max_size=2).map(lambda d: (*d.items(),)),
        ),
    ),
    max_leaves=5,
)


@st.composite
def modules(draw: st.DrawFn, depth: int = 2) -> ModuleSpec:
    """A tree with at most `depth` levels below its root."""
    names = draw(st.lists(_names(), max_size=5, unique=True))
    parameters, buffers, children = [], [], []
    for name in names:
        kind = draw(st.sampled_from(["parameter", "buffer", "child"] if depth else ["parameter"]))
        if kind == "parameter":
            parameters.append((name, draw(st.one_of(trained, trained, tensors))))
        elif kind == "buffer":
            buffers.append((name, draw(tensors), draw(st.booleans())))
        else:
            children.append((name, draw(modules(depth=depth - 1))))
    shared = draw(st.sampled_from(["", "", "tied"]))
    return ModuleSpec(
        parameters=tuple(parameters),
        buffers=tuple(buffers),
        children=tuple(children),
        shared="" if shared in names else shared,
        extra=draw(st.one_of(st.none(), st.none(), values)),
    )


@st.composite
def states(draw: st.DrawFn, *, per_rank: bool = True) -> StateSpec:
    """Modules, their optimizers, values, and values per rank."""
    words = draw(st.lists(_parts, min_size=1, max_size=6, unique=True))
    modules_drawn: dict[str, ModuleSpec] = {}
    optimizers: dict[str, OptimizerSpec] = {}
    others: dict[str, Any] = {}
    per_rank_values: dict[str, Any] = {}
    for word in words:
        kind = draw(st.sampled_from(["module", "module", "optimizer", "value", "per_rank"]))
        if kind == "module" or not modules_drawn:
            modules_drawn[word] = draw(modules())
        elif kind == "optimizer":
            optimizers[word] = OptimizerSpec(
                kind=draw(st.sampled_from(OPTIMIZERS)),
                module=draw(st.sampled_from(sorted(modules_drawn))),
                groups=draw(st.integers(1, 3)),
                steps=draw(st.integers(0, 2)),
                skipped=draw(st.sampled_from([0, 0, 2])),
            )
        elif kind == "value":
            others[word] = draw(values)
        elif per_rank:
            per_rank_values[word] = draw(st.dictionaries(keys, values, max_size=3))
    return StateSpec(
        modules=modules_drawn,
        optimizers=optimizers,
        values=others,
        per_rank=per_rank_values,
        split=draw(st.booleans()),
    )


_parts = st.one_of(st.sampled_from(["model", "a", "b", "a.b"]), _names()).filter(
    lambda name: "@" not in name and name != "headway"
)


# -- building it ----------------------------------------------------------------------------


class Tree(nn.Module):
    """A module with an extra state; it is not called."""

    extra: Any = None

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


class Bare(nn.Module):
    """A module without an extra state."""


class Odd(torch.optim.Optimizer):
    """An optimizer whose state has more than tensors of the type and shape of a parameter."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "words": ["a", None]})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state["mean"] = parameter.grad.double()
                state["past"] = [*state.get("past", []), parameter.grad.float().sum()]
                state["empty"] = {}


class Holder:
    """A part whose `state_dict` is any value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return self.value

    def load_state_dict(self, value: Any) -> None:
        self.value = value


@dataclass
class State:
    """The parts of one rank."""

    modules: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    values: dict[str, Holder]
    per_rank: dict[str, Holder]

    @property
    def parts(self) -> dict[str, Any]:
        """The parts that all ranks share."""
        return {**self.modules, **self.optimizers, **self.values}


def build(spec: StateSpec, seed: int, rank: int = 0, world: int = 1) -> State:
    """The state of a rank; shared parts are equal on all ranks."""
    chance = torch.Generator().manual_seed(seed)
    modules = {name: _module(part, chance) for name, part in spec.modules.items()}
    numbered = {name: _trained(module) for name, module in modules.items()}
    if spec.split and world > 1:
        for module in modules.values():
            for number, name in enumerate([name for name, _ in module.named_children()]):
                if number % world != rank:
                    del module._modules[name]
    optimizers = {}
    for name, part in spec.optimizers.items():
        local_ids = {id(p) for p in modules[part.module].parameters()}
        owned = {number: p for number, p in enumerate(numbered[part.module]) if id(p) in local_ids}
        if spec.split and part.kind == "LBFGS":  # its state is of all parameters together
            part = replace(part, kind="SGD")
        if owned:
            optimizers[name] = _optimizer(part, owned, seed)
    others = {name: Holder(filled({"it": part}, chance)) for name, part in spec.values.items()}
    alone = torch.Generator().manual_seed(1000 * seed + rank)
    per_rank_parts = {name: Holder(filled(part, alone)) for name, part in spec.per_rank.items()}
    return State(modules, optimizers, others, per_rank_parts)


def _module(spec: ModuleSpec, chance: torch.Generator, root: nn.Module | None = None) -> nn.Module:
    module = Bare() if spec.extra is None else Tree()
    top = module if root is None else root
    if spec.extra is not None:
        module.extra = filled(spec.extra, chance)
    for name, tensor in spec.parameters:
        data = fill(tensor, chance)
        module.register_parameter(name, nn.Parameter(data, tensor.dtype in TRAINED))
    for name, tensor, persistent in spec.buffers:
        module.register_buffer(name, fill(tensor, chance), persistent)
    for name, child in spec.children:
        module.add_module(name, _module(child, chance, top))
    first = next(top.parameters(), None)
    if spec.shared and first is not None:
        module.register_parameter(spec.shared, first)
    return module


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def _optimizer(
    spec: OptimizerSpec, owned: Mapping[int, nn.Parameter], seed: int
) -> torch.optim.Optimizer:
    """Groups and gradients depend on the number of a parameter in the whole model."""
    count = 1 if spec.kind == "LBFGS" else spec.groups
    groups = [
        {"params": [p for number, p in owned.items() if number % count == group]}
        | {"lr": 0.25 / (1 + group)}
        for group in range(count)
    ]
    groups = [group for group in groups if group["params"]]
    kind = Odd if spec.kind == "Odd" else getattr(torch.optim, spec.kind)
    more = {"momentum": 0.5} if spec.kind == "SGD" else {}
    more |= {"amsgrad": True} if spec.kind == "AdamW" else {}
    optimizer: torch.optim.Optimizer = kind(groups, **more)
    # These fail on a gradient without elements.
    needs_elements = spec.kind in ("Adafactor", "LBFGS")
    can_step = not needs_elements or any(parameter.numel() for parameter in owned.values())
    for step in range(spec.steps if can_step else 0):
        for number, parameter in owned.items():
            skipped = spec.skipped and number % spec.skipped == 0
            if skipped or (needs_elements and not parameter.numel()):
                parameter.grad = None
                continue
            noise = torch.Generator().manual_seed(seed + 100 * number + step)
            parameter.grad = torch.randn(parameter.shape, generator=noise).to(parameter.dtype)
        optimizer.step(lambda: torch.tensor(1.0))
    for parameter in owned.values():
        parameter.grad = None
    return optimizer


def filled(value: Any, chance: torch.Generator) -> Any:
    """Replace each `TensorSpec` by a tensor."""
    if isinstance(value, TensorSpec):
        return fill(value, chance)
    if isinstance(value, ContainerSpec):
        kind: Any = CONTAINERS[value.kind]
        return kind({key: filled(item, chance) for key, item in value.pairs})
    if isinstance(value, dict):
        return {key: filled(item, chance) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(filled(item, chance) for item in value)
    return value


def fill(spec: TensorSpec, chance: torch.Generator) -> Tensor:
    """Random bits; whole numbers for tensors that an optimizer may update."""
    dtype = getattr(torch, spec.dtype)
    count = torch.Size(spec.shape).numel()
    if spec.dtype in TRAINED or spec.dtype == "bool":
        flat = torch.randint(0, 2 if dtype is torch.bool else 100, (count,), generator=chance)
        data = flat.to(dtype)
    else:
        size = (count * dtype.itemsize,)
        bits = torch.randint(0, 256, size, generator=chance, dtype=torch.uint8)
        data = bits.view(dtype) if count else torch.empty(0, dtype=dtype)
    if spec.view == "transposed" and len(spec.shape) > 1:
        return data.view(spec.shape[::-1]).permute(*reversed(range(len(spec.shape))))
    if spec.view == "spread" and count:
        return torch.stack([data, data], 1)[:, 1].view(spec.shape)
    if spec.view == "turned" and dtype.is_complex:
        return data.view(spec.shape).conj()
    if spec.view == "turned" and spec.dtype in TRAINED:
        return torch._neg_view(data.view(spec.shape))
    return data.view(spec.shape)


# -- comparing ------------------------------------------------------------------------------


def contents(state: State, *, per_rank: bool = False) -> dict[str, Any]:
    """The state of all parts, which `torch.save` and DCP can save."""
    result = {name: part.state_dict() for name, part in state.parts.items()}
    return result | (
        {name: part.state_dict() for name, part in state.per_rank.items()} if per_rank else {}
    )


def copied(value: Any) -> Any:
    """A copy, with copies of the tensors."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        result = copy.copy(value)
        for key, item in value.items():
            result[key] = copied(item)  # type: ignore[index]
        return result
    if isinstance(value, (list, tuple)):
        return type(value)(copied(item) for item in value)
    return value


def difference(saved: Any, loaded: Any, path: str = "state") -> str | None:
    """The first difference; None if they are equal bit for bit."""
    return next(_differences(saved, loaded, path), None)


def _differences(saved: Any, loaded: Any, path: str) -> Iterator[str]:
    if isinstance(saved, Tensor) and isinstance(loaded, Tensor):
        if (saved.dtype, saved.shape) != (loaded.dtype, loaded.shape):
            yield f"{path}: {saved.dtype} {saved.shape} is {loaded.dtype} {loaded.shape}"
        elif not torch.equal(_bits(saved), _bits(loaded)):
            yield f"{path}: other bits"
    elif isinstance(saved, Mapping) and isinstance(loaded, Mapping):
        if type(saved) is not type(loaded) or set(saved) != set(loaded):
            yield f"{path}: {type(saved)} {list(saved)} is {type(loaded)} {list(loaded)}"
            return
        for key, item in saved.items():
            yield from _differences(item, loaded[key], f"{path}[{key!r}]")
    elif isinstance(saved, (list, tuple)) and type(saved) is type(loaded):
        if len(saved) != len(loaded):
            yield f"{path}: {len(saved)} entries are {len(loaded)}"
            return
        for index, (item, other) in enumerate(zip(saved, loaded, strict=True)):
            yield from _differences(item, other, f"{path}[{index}]")
    elif isinstance(saved, float) and isinstance(loaded, float):
        if struct.pack("d", saved) != struct.pack("d", loaded):
            yield f"{path}: {saved!r} is {loaded!r}"
    elif type(saved) is not type(loaded) or saved != loaded:
        yield f"{path}: {saved!r} is {loaded!r}"


def _bits(tensor: Tensor) -> Tensor:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.view(tensor.shape).copy_(tensor.detach())
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)
