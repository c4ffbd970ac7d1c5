"""What is saved: the parts a user names, as one flat dictionary of tensors and values.

    {"model": model, "optimizer": optimizer, "data": position, "epoch": lambda: epoch}

A part is a module, an optimizer, anything with `state_dict` and `load_state_dict`, a tensor, a
function that gives a value (saved, and handed back by `restore`), or a plain value. DCP's flat
names forget which keys are numbers and drop what is empty: a skeleton of the whole, in which each
thing is but a name, is saved with them. Modules and optimizers need none, so that each rank may
have others: what the names of one entry would not tell is pickled with it.

What an optimizer keeps of a parameter is saved under the name that the parameter has in a module
of the state. A number says nothing where ranks have other parameters.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict, unflatten_state_dict
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from headway.checkpoint.matching import Mismatch, pair_names
from headway.errors import UsageError

SKELETON = "headway"  # among the parts
OPTIMIZER_ENTRIES = ("state", "param_groups")  # of an optimizer
REPLICATED_MAX_BYTES = 1 << 20  # bytes: one rank may save it for all
GROUP_NAME_KEYS = ("params", "param_names")
EXTRA_STATE = "_extra_state"  # at the end of its key in the state of a module
GOLDEN_PART = "golden"  # a part that anchors have besides those of the training
PER_RANK_NAME = re.compile(r"(.+)@(\d+)", re.DOTALL)  # the part that a rank has for itself

INTEGERS = frozenset(
    getattr(torch, name)
    for name in ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
    if hasattr(torch, name)
)

Path = tuple[str | int, ...]


class Name(str):
    """In the place of something that is saved: what it is called."""

    __slots__ = ()


@dataclass(frozen=True)
class Skeleton:
    """The form of a state without what is in it, or one that is small and saved as it is."""

    bare: Any


@dataclass
class Targets:
    """What the tensors of a checkpoint are read into, by their names there."""

    flat: dict[str, Any] = field(default_factory=dict)
    live: dict[str, str] = field(default_factory=dict)  # the training's own memory, and its name
    names: dict[str, dict[str, str]] = field(default_factory=dict)  # by part: saved key, live key
    numbered: set[str] = field(default_factory=set)  # optimizers that were saved by numbers
    mismatch: Mismatch = field(default_factory=Mismatch)


class StateTree:
    """The parts of one training's state."""

    def __init__(self, parts: Mapping[str, Any], own: Mapping[str, Any], rank: int) -> None:
        odd = [name for name in (*parts, *own) if name == SKELETON or "@" in name]
        if odd:
            raise UsageError(
                f"a part of the state cannot be called {odd[0]!r}",
                code="part-name-reserved",
                name=odd[0],
            )
        self.parts = {name: unwrap(part) for name, part in parts.items()}
        self.own = {f"{name}@{rank}": part for name, part in own.items()}
        self._rank = rank

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those among the parts."""
        return [part for part in self.parts.values() if isinstance(part, Optimizer)]

    @property
    def modules(self) -> list[nn.Module]:
        """Those among the parts."""
        return [part for part in self.parts.values() if isinstance(part, nn.Module)]

    @property
    def model(self) -> nn.Module | None:
        """The module among the parts: that called `model`, or the only one."""
        modules = {n: part for n, part in self.parts.items() if isinstance(part, nn.Module)}
        return modules.get("model", next(iter(modules.values())) if len(modules) == 1 else None)

    def collect(self) -> dict[str, Any]:
        """All of it now; tensors are the live ones."""
        names = self._parameter_names()
        state: dict[str, Any] = {}
        others: dict[str, Any] = {}  # of which a skeleton is needed
        for name, part in self.parts.items():
            collected, known = _collect_part(part), parameter_names(part, names)
            if isinstance(part, nn.Module):
                state[name] = {key: pickle_if_needed(value) for key, value in collected.items()}
            elif known is not None and is_numbered_state(collected, known):
                state[name] = by_name(collected, known)
            else:
                state[name] = others[name] = pickle_custom_containers(collected)
        own = {name: Skeleton(_collect_part(part)) for name, part in self.own.items()}
        _, paths = flatten(others)
        return {**state, **own, SKELETON: Skeleton(structure(others, (), paths))}

    def of_first_rank(self, state: Mapping[str, Any]) -> set[str]:
        """Of a state of `collect`, the names of tensors in which ranks may differ.

        They are buffers, and small tensors of parts that are no modules and no optimizers.
        """
        flat, paths = flatten(state)
        found = set()
        for name, value in flat.items():
            part = self.parts.get(str(paths[name][0]))
            plain = type(value) in (Tensor, nn.Parameter) and value.nbytes < REPLICATED_MAX_BYTES
            if plain and not isinstance(part, (nn.Module, Optimizer)):
                found.add(name)
        for name, part in self.parts.items():
            if isinstance(part, nn.Module):
                found |= {f"{name}.{key}" for key, _ in part.named_buffers(remove_duplicate=False)}
        return found

    def value_names(self, metadata: Metadata) -> list[str]:
        """What of a checkpoint is no tensor, but for what other ranks have for themselves."""
        return [
            key
            for key, kept in metadata.state_dict_metadata.items()
            if not isinstance(kept, TensorStorageMetadata)
            and (key in self.own or not is_per_rank(key, metadata))
        ]

    def match(self, metadata: Metadata, values: Mapping[str, Any]) -> Targets:
        """Where each tensor of a checkpoint goes, and what does not fit; nothing is changed.

        `values`: what it has of `value_names`.
        """
        return _StateMatch(self, metadata, values).targets

    def give_back(
        self, targets: Targets, values: Mapping[str, Any], metadata: Metadata
    ) -> dict[str, Any]:
        """Every part gets what was saved of it; returns the parts that are plain values."""
        flat = {**values, **targets.flat}
        found: dict[str, Any] = {}
        for name, part in self.own.items():
            if isinstance(kept := flat.pop(name, None), Skeleton):
                part.load_state_dict(kept.bare)
        names = self._parameter_names()
        for name, saved in _unflatten(flat, metadata, self.parts).items():
            part = self.parts.get(name)
            if isinstance(part, nn.Module):
                self._give_module(name, part, saved, targets)
            elif isinstance(part, Optimizer) and name in targets.names.keys() - targets.numbered:
                live = live_keys(part, names)
                load_optimizer(part, live, unpack_skeletons(saved), targets.names[name])
            elif name in targets.numbered and not targets.names[name]:
                continue  # it does not fit
            elif part is not None and hasattr(part, "load_state_dict"):
                saved = (
                    by_number(saved) if name in targets.numbered else only_local_state(part, saved)
                )
                part.load_state_dict(saved)
                set_saved_types(part, saved)
            elif not isinstance(part, Tensor):
                found[name] = saved
        return found

    def _give_module(
        self, name: str, part: nn.Module, saved: Mapping[str, Any], targets: Targets
    ) -> None:
        """What was not read into its memory: values, and tensors that its state only copies."""
        known, memory = targets.names.get(name, {}), _storage_addresses(part)
        rest = {}
        for key, value in saved.items():
            read = f"{name}.{key}" in targets.live
            if key in known and not (read and _is_at(value, memory)):
                rest[known[key]] = unpack_skeletons(value)
        if rest:
            part.load_state_dict(rest, strict=False)

    def _parameter_names(self) -> dict[int, str]:
        """What the parameters of all modules are called, by their identity."""
        found: dict[int, str] = {}
        for name, part in self.parts.items():
            if isinstance(part, nn.Module):
                for key, parameter in part.named_parameters():
                    found.setdefault(id(parameter), f"{name}.{key}")
            elif isinstance(part, Tensor):
                found.setdefault(id(part), name)
        for name, part in self.own.items():  # which has the rank in it
            if isinstance(part, nn.Module):
                for key, parameter in part.named_parameters():
                    found.setdefault(id(parameter), f"{name}.{key}")
        return found


class _StateMatch:
    """Of one checkpoint with the live state."""

    def __init__(self, parts: StateTree, metadata: Metadata, values: Mapping[str, Any]) -> None:
        self._parts, self._metadata, self._values = parts, metadata, values
        self._paths = {key: item_path(metadata, key) for key in metadata.state_dict_metadata}
        skeleton = values.get(SKELETON)
        bare = skeleton.bare if isinstance(skeleton, Skeleton) else None
        self._bare: Mapping[str, Any] = bare if isinstance(bare, Mapping) else {}
        state = parts.collect()
        self._here, _ = flatten(state)
        planner = DefaultSavePlanner()
        planner.set_up_planner(state)
        self._live: Mapping[str, Any] = planner.state_dict
        self._parameters: dict[str, dict[str, Tensor]] = {}  # by optimizer, by saved key
        self.targets = Targets()
        self._mismatch = self.targets.mismatch
        self._look_at_parts(state)
        self._look_at_own()
        for key, kept in metadata.state_dict_metadata.items():
            if isinstance(kept, TensorStorageMetadata):
                self._place(key, kept)

    def _look_at_parts(self, state: Mapping[str, Any]) -> None:
        names = self._parts._parameter_names()
        saved: dict[Any, list[Path]] = {}
        for path in self._paths.values():
            saved.setdefault(path[0], []).append(path)
        for name, part in self._parts.parts.items():
            paths, live = saved.get(name, []), state[name]
            if isinstance(part, nn.Module):
                self._look_at_module(name, paths, live)
            elif isinstance(part, Optimizer) and is_torch_state(part, live):
                self._look_at_optimizer(name, part, paths, live_keys(part, names))
            elif isinstance(part, Tensor) or hasattr(part, "load_state_dict"):
                there = bool(paths) or name in self._bare
                self._mismatch.missing += [] if there else [name]

    def _look_at_module(self, name: str, paths: Sequence[Path], live: Mapping[str, Any]) -> None:
        keys = dict.fromkeys(str(path[1]) for path in paths if len(path) > 1)
        in_skeleton = self._bare.get(name)  # of older versions
        keys |= dict.fromkeys(in_skeleton if isinstance(in_skeleton, Mapping) else ())
        self._pair(name, keys, live, name)

    def _look_at_optimizer(
        self, name: str, part: Optimizer, paths: Sequence[Path], live: Sequence[str]
    ) -> None:
        lists = {
            path[2]: self._values.get(".".join(map(str, path)), ())
            for path in paths
            if len(path) == 4 and path[1] == "param_groups" and path[3] == "params"
        }
        if not paths or any(isinstance(group, int) for group in lists):
            self.targets.numbered.add(name)
            lengths = [len(one) for one in lists.values()]
            here = [len(group["params"]) for group in part.param_groups]
            if not paths:
                self._mismatch.missing.append(name)
            elif lengths != here:
                self._mismatch.different.append(
                    f"{name} (groups of {lengths} parameters in the checkpoint, of {here} here)"
                )
            fits = bool(paths) and lengths == here
            pairs = {str(number): key for number, key in enumerate(live) if fits}
            self.targets.names[name] = pairs
        else:
            keys = dict.fromkeys(str(key) for one in lists.values() for key in one)
            pairs = self._pair(name, keys, live, f"{name}.state")
            self._compare_groups(name, part, live, lists)
        of = dict(zip(live, optimizer_parameters(part), strict=True))
        self._parameters[name] = {key: of[to] for key, to in pairs.items() if to in of}

    def _compare_groups(
        self, name: str, part: Optimizer, live: Sequence[str], lists: Mapping[Any, Sequence[str]]
    ) -> None:
        """A group has one setting: its parameters must not come from groups with several."""
        pairs = self.targets.names[name]
        group_of = {pairs.get(key): group for group, keys in lists.items() for key in keys}
        settings: dict[Any, list[str]] = {}
        for path in self._paths.values():
            if path[:2] == (name, "param_groups") and path[3] not in GROUP_NAME_KEYS:
                value = self._values.get(".".join(map(str, path)))
                settings.setdefault(path[2], []).append(f"{path[3:]} {value!r}")
        names = iter(live)
        for number, group in enumerate(part.param_groups):
            saved = {group_of.get(next(names)) for _ in group["params"]} - {None}
            if len({tuple(sorted(settings.get(one, ()))) for one in saved}) > 1:
                self._mismatch.different.append(
                    f"{name} (group {number} has parameters of {len(saved)} groups in the "
                    "checkpoint, with other settings)"
                )

    def _pair(
        self, part: str, saved: Iterable[str], live: Iterable[str], prefix: str
    ) -> dict[str, str]:
        pairs = self.targets.names[part] = pair_names(saved, live)
        there = set(pairs.values())
        self._mismatch.missing += [f"{prefix}.{key}" for key in live if key not in there]
        self._mismatch.unexpected += [f"{prefix}.{key}" for key in saved if key not in pairs]
        return pairs

    def _look_at_own(self) -> None:
        saved = {match[1] for key in self._paths if (match := self._own(key))}
        for key in self._parts.own:
            base = key.rpartition("@")[0]
            if base not in saved:
                self._mismatch.missing.append(key)
        mine = {key.rpartition("@")[0] for key in self._parts.own}
        self._mismatch.unexpected += sorted(saved - mine)

    def _own(self, key: str) -> re.Match[str] | None:
        return PER_RANK_NAME.fullmatch(key) if is_per_rank(key, self._metadata) else None

    # -- where a tensor goes --

    def _place(self, key: str, kept: TensorStorageMetadata) -> None:
        path = self._paths[key]
        name = str(path[0])
        part = self._parts.parts.get(name)
        live_key = self._live_key(path)
        if live_key is None:  # that it has no place was noted with its name
            if name in self.targets.numbered and self.targets.names[name]:
                self._mismatch.unexpected.append(key)
            return
        known = self._live.get(live_key)
        if isinstance(known, Tensor) and not _is_extra_state(part, path):
            # Others than torch's optimizers may leave it at what was read into their memory.
            fixed = isinstance(part, (nn.Module, Tensor)) or (
                hasattr(part, "load_state_dict") and name not in self.targets.names
            )
            if why := unreadable_reason(known):
                if fixed:
                    self._mismatch.unreadable.append(f"{live_key} ({why})")
                    return
            elif self._fits(live_key, known, kept, fixed=fixed):
                self.targets.flat[key] = known
                self.targets.live[key] = live_key
                return
            if fixed:
                return
            like = self._like(path)
            if like is not None and like.shape == known.shape != kept.size:
                self._differ(live_key, known, kept)
                return
        elif isinstance(self._here.get(live_key), ShardedTensor) or self._elsewhere(path):
            return  # it has shards, and this rank none of them
        elif name not in (*self._parts.parts, GOLDEN_PART):
            self._mismatch.unexpected.append(key)
            return
        self.targets.flat[key] = self._made_like(path, kept)

    def _live_key(self, path: Path) -> str | None:
        """What the live state calls it; None if it has no such parameter."""
        name = str(path[0])
        if name not in self.targets.names:
            return ".".join(map(str, path))
        at = 1 if isinstance(self._parts.parts[name], nn.Module) else 2
        if at == 2 and (len(path) < 3 or path[1] != "state"):
            return ".".join(map(str, path))
        here = self.targets.names[name].get(str(path[at]))
        return None if here is None else ".".join(map(str, (*path[:at], here, *path[at + 1 :])))

    def _fits(self, name: str, known: Tensor, kept: TensorStorageMetadata, *, fixed: bool) -> bool:
        """Whether it can be read into this memory; what is the training's own has to fit."""
        same = known.size() == kept.size
        if same and known.dtype == kept.properties.dtype:
            return True
        if fixed:
            self._differ(name, known, kept)
        return fixed and same

    def _differ(self, name: str, known: Tensor, kept: TensorStorageMetadata) -> None:
        there, here = (
            f"{str(dtype).removeprefix('torch.')} {list(size)}"
            for dtype, size in ((kept.properties.dtype, kept.size), (known.dtype, known.size()))
        )
        text = f"{name} ({there} in the checkpoint, {here} in the state)"
        same = known.size() == kept.size
        (self._mismatch.converted if same else self._mismatch.different).append(text)

    def _elsewhere(self, path: Path) -> bool:
        """Whether it is kept of a parameter that an optimizer knows by its name, on other ranks."""
        named = named_parameters(optimizer_at(self._parts.parts, path))
        return named is not None and path[2] not in named

    def _made_like(self, path: Path, kept: TensorStorageMetadata) -> Tensor:
        """A tensor that is not there yet, as an optimizer's before its first step.

        What is kept of a parameter is cut into the same shards as the parameter.
        """
        like = self._like(path)
        if like is not None and like.shape == kept.size:
            return torch.empty_like(like, dtype=kept.properties.dtype, requires_grad=False)
        return torch.empty(kept.size, dtype=kept.properties.dtype)

    def _like(self, path: Path) -> Tensor | None:
        """The parameter of which an optimizer keeps it."""
        part = optimizer_at(self._parts.parts, path)
        if part is None:
            return None
        named = named_parameters(part)
        known = self._parameters.get(str(path[0]), {}) if named is None else named
        like = known.get(str(path[2]))
        return like if isinstance(like, Tensor) else None


def flatten(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
    """By its flat names, and the path of each; UsageError if two things have the same one."""
    try:
        flat, paths = flatten_state_dict(dict(state))
    except ValueError as error:
        raise UsageError(
            f"two things in the state have the same name: {error}", code="names-collide"
        ) from None
    return flat, paths


def unwrap(part: Any) -> Any:
    """A module without what DDP and `torch.compile` have put around it."""
    while True:
        if isinstance(part, nn.parallel.DistributedDataParallel):
            part = part.module
        elif isinstance(part, nn.Module) and _is_compiled(part):
            part = part._orig_mod
        else:
            return part


def _is_compiled(module: nn.Module) -> bool:
    """By its class, which only those import who compile; any module may have such an attribute."""
    return any(base.__name__ == "OptimizedModule" for base in type(module).__mro__)


def _collect_part(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.detach()
    if hasattr(part, "state_dict"):
        return part.state_dict()
    return part() if callable(part) else part


def item_path(metadata: Metadata, key: str) -> Path:
    return tuple((metadata.planner_data or {}).get(key, (key,)))


def is_per_rank(key: str, metadata: Metadata) -> bool:
    """Whether it is what one rank has for itself: no other part has an @ in its name."""
    if isinstance(metadata.state_dict_metadata[key], TensorStorageMetadata):
        return False
    return len(item_path(metadata, key)) == 1 and PER_RANK_NAME.fullmatch(key) is not None


# -- tensors --------------------------------------------------------------------------------


def unsupported_reason(value: Any) -> str:
    """Why the bytes of a tensor are not all that it is, or not there; empty if they are."""
    if not isinstance(value, Tensor) or isinstance(value, ShardedTensor):
        return ""
    tensor: Any = getattr(value, "_local_tensor", value)
    if type(tensor).__name__ == "AsyncCollectiveTensor":
        tensor = tensor.elem
    if nn.parameter.is_lazy(tensor):
        return "it has no shape yet, as its module is lazy"
    if tensor.is_quantized or tensor.is_nested or tensor.layout is not torch.strided:
        kind = "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else ""
        return f"it is {kind}" if kind else f"its layout is {tensor.layout}"
    if tensor.is_meta:
        return "it is on the meta device, without data"
    dtype = tensor.dtype
    if not (dtype.is_floating_point or dtype.is_complex or dtype in INTEGERS):
        return f"its type is {dtype}"
    in_reach = tensor.device.type not in ("cpu", "cuda") or tensor.data_ptr() or not tensor.numel()
    return "" if in_reach else f"its class {type(tensor).__qualname__} has the data elsewhere"


def unreadable_reason(tensor: Tensor) -> str:
    """Why nothing can be read into it in place; empty if it can."""
    if why := unsupported_reason(tensor):
        return why
    plain = type(tensor) in (Tensor, nn.Parameter)
    overlaps = plain and torch._debug_has_internal_overlap(tensor) == 1
    return "several of its elements share memory, as after expand(); clone it" if overlaps else ""


# -- modules --------------------------------------------------------------------------------


def _is_extra_state(part: Any, path: Path) -> bool:
    """Whether it is in the extra state of a module, which takes what it once gave."""
    words = str(path[1]).rpartition(".") if isinstance(part, nn.Module) and len(path) > 1 else [""]
    return words[-1] == EXTRA_STATE


def _storage_addresses(module: nn.Module) -> set[int]:
    """Where its own parameters and buffers are."""
    tensors = (*module.parameters(), *module.buffers())
    return {_address(tensor) for tensor in tensors if type(tensor) in (Tensor, nn.Parameter)}


def _is_at(value: Any, memory: set[int]) -> bool:
    """Whether it is a tensor there; tensors in shards are taken to be."""
    if not isinstance(value, Tensor):
        return False
    return type(value) not in (Tensor, nn.Parameter) or _address(value) in memory


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # it has no storage
        return 0


# -- optimizers -----------------------------------------------------------------------------


def is_torch_state(part: Optimizer, collected: Any) -> bool:
    """Whether its state is as torch has it, by numbers or with names in their place."""
    if not isinstance(collected, Mapping) or named_parameters(part) is not None:
        return False
    groups, state = collected.get("param_groups"), collected.get("state", {})
    return isinstance(groups, Mapping) or (
        isinstance(groups, list) and all(isinstance(key, int) for key in state)
    )


def parameter_names(part: Any, names: Mapping[int, str]) -> list[str] | None:
    """What the parameters of an optimizer are called, by its numbers; None if one has no name."""
    if not isinstance(part, Optimizer) or named_parameters(part) is not None:
        return None
    found = [
        name
        for group in part.param_groups
        for parameter, given in zip(
            group["params"],
            group.get("param_names") or [""] * len(group["params"]),
            strict=True,
        )
        if (name := names.get(id(parameter), given))
    ]
    return (
        found
        if len(set(found)) == len(optimizer_parameters(part)) and not any(map(str.isdecimal, found))
        else None
    )


def live_keys(part: Optimizer, names: Mapping[int, str]) -> list[str]:
    """The keys under which the live state has its parameters."""
    return parameter_names(part, names) or [
        str(number) for number in range(len(optimizer_parameters(part)))
    ]


def optimizer_parameters(part: Optimizer) -> list[Tensor]:
    return [parameter for group in part.param_groups for parameter in group["params"]]


def is_numbered_state(saved: Any, names: Sequence[str]) -> bool:
    """Whether it is the state of an optimizer as torch has it."""
    if not isinstance(saved, Mapping):
        return False
    state, groups = saved.get("state"), saved.get("param_groups")
    return (
        isinstance(state, Mapping)
        and isinstance(groups, list)
        and all(isinstance(key, int) and key < len(names) for key in state)
        and all(isinstance(group, Mapping) and "params" in group for group in groups)
    )


def by_name(saved: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The same with names instead of numbers; a group is known by those in it."""
    groups = {}
    for number, group in enumerate(saved["param_groups"]):
        here = [names[one] for one in group["params"]]
        groups[_group_key(number, here)] = {
            **{key: pickle_if_needed(value) for key, value in group.items()},
            "params": here,
        }
    return {
        **{
            key: pickle_if_needed(value)
            for key, value in saved.items()
            if key not in OPTIMIZER_ENTRIES
        },
        "state": {names[number]: pickle_if_needed(kept) for number, kept in saved["state"].items()},
        "param_groups": groups,
    }


def _group_key(number: int, names: Sequence[str]) -> str:
    if not names:
        return f"empty-{number}"
    return hashlib.sha256("\n".join(names).encode(errors="surrogatepass")).hexdigest()[:16]


def by_number(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What was saved by numbers, which DCP has made text of."""
    state = {
        int(key) if str(key).isdecimal() else key: kept
        for key, kept in saved.get("state", {}).items()
    }
    return {**saved, "state": state}


def load_optimizer(
    part: Optimizer, names: Sequence[str], saved: Mapping[str, Any], pairs: Mapping[str, str]
) -> None:
    """What was saved by names; a group takes over what was saved of the one its parameters had."""
    numbers = {name: number for number, name in enumerate(names)}
    here = part.state_dict()
    saved_groups = saved.get("param_groups", {})
    group_of = {
        pairs[key]: group
        for group in saved_groups.values()
        for key in group["params"]
        if key in pairs
    }
    groups = []
    for number, group in enumerate(here["param_groups"]):
        first = names[group["params"][0]] if group["params"] else None
        taken = saved_groups.get(_group_key(number, ())) if first is None else group_of.get(first)
        groups.append(_load_group(part.param_groups[number], group, taken))
    state = {
        numbers[pairs[key]]: kept
        for key, kept in saved.get("state", {}).items()
        if pairs.get(key) in numbers
    }
    state = dict(sorted(state.items()))
    part.load_state_dict({**here, **saved, "state": state, "param_groups": groups})
    set_saved_types(part, {"state": state})


def _load_group(
    live: Mapping[str, Any], here: Mapping[str, Any], saved: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A group as it was saved; a tensor in it, such as a learning rate, stays the same one."""
    group = dict(here)
    for key, value in (saved or {}).items():
        if key in GROUP_NAME_KEYS:
            continue
        mine = live.get(key)
        group[key] = value
        if isinstance(value, Tensor) and _is_like(mine, value):
            group[key] = mine.detach().copy_(value)
    return group


def _is_like(tensor: Any, other: Tensor) -> TypeGuard[Tensor]:
    return isinstance(tensor, Tensor) and (tensor.shape, tensor.dtype) == (other.shape, other.dtype)


def set_saved_types(part: Any, saved: Mapping[str, Any]) -> None:
    """torch gives what it loads the type of the parameter: it gets the type that was saved."""
    if not isinstance(part, Optimizer) or named_parameters(part) is not None:
        return
    parameters = optimizer_parameters(part)
    for number, kept in saved.get("state", {}).items():
        if isinstance(number, int) and number < len(parameters):
            loaded = part.state.get(parameters[number])
            if isinstance(loaded, dict) and isinstance(kept, Mapping):
                for key, value in kept.items():
                    if key in loaded:
                        loaded[key] = _with_saved_type(loaded[key], value)


def _with_saved_type(loaded: Any, saved: Any) -> Any:
    if isinstance(loaded, Tensor) and isinstance(saved, Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(loaded, dict) and isinstance(saved, Mapping) and loaded.keys() == saved.keys():
        return {key: _with_saved_type(one, saved[key]) for key, one in loaded.items()}
    if isinstance(loaded, (list, tuple)) and type(loaded) is type(saved):
        return type(loaded)(_with_saved_type(*pair) for pair in zip(loaded, saved, strict=True))
    return loaded


def optimizer_at(parts: Mapping[str, Any], path: Sequence[Any]) -> Optimizer | None:
    """The one that keeps what lies at that path, of a parameter."""
    part = parts.get(path[0]) if len(path) >= 4 and path[1] == "state" else None
    return part if isinstance(part, Optimizer) else None


def named_parameters(part: Any) -> Mapping[str, Any] | None:
    """The parameters of an optimizer that knows them by name, as TorchRec's do."""
    named = getattr(part, "params", None)
    return named if isinstance(part, Optimizer) and isinstance(named, Mapping) else None


def only_local_state(part: Any, saved: Any) -> Any:
    """With what is kept of the parameters that are here, be it nothing, and of no others."""
    named = named_parameters(part)
    if named is None:
        return saved
    kept = saved.get("state", {})
    here = dict.fromkeys([*part.state_dict()["state"], *(name for name in kept if name in named)])
    return {**saved, "state": {name: kept.get(name, {}) for name in here}}


# -- structures -----------------------------------------------------------------------------


def pickle_if_needed(value: Any) -> Any:
    """A value of which the flat names tell the form, or else one that is pickled as a whole."""
    plain = (
        isinstance(value, Mapping)
        and not isinstance(value, OrderedDict)
        and not _is_custom_container(value)
    )
    if plain and value and all(isinstance(key, str) for key in value):
        return {key: pickle_if_needed(one) for key, one in value.items()}
    return value if _survives_flattening(value) else Skeleton(value)


def _survives_flattening(value: Any) -> bool:
    """Whether DCP makes the same of it again: it drops what is empty, and numbers become text."""
    if _is_custom_container(value) or type(value) is OrderedDict:
        return False
    if isinstance(value, Mapping):
        return bool(value) and all(
            isinstance(key, str) and _survives_flattening(one) for key, one in value.items()
        )
    return not isinstance(value, list) or all(map(_survives_flattening, value))


def _is_custom_container(value: Any) -> bool:
    """Whether it is a dictionary or a list of another class, such as a Counter."""
    return isinstance(value, (dict, list)) and type(value) not in (dict, OrderedDict, list)


def pickle_custom_containers(value: Any) -> Any:
    """With what is odd pickled as a whole: DCP would make a plain one of it."""
    if _is_custom_container(value):
        return Skeleton(value)
    if isinstance(value, dict):
        return type(value)((key, pickle_custom_containers(one)) for key, one in value.items())
    return [pickle_custom_containers(one) for one in value] if isinstance(value, list) else value


def unpack_skeletons(value: Any) -> Any:
    if isinstance(value, Skeleton):
        return value.bare
    if type(value) in (dict, OrderedDict):
        return type(value)((key, unpack_skeletons(one)) for key, one in value.items())
    return [unpack_skeletons(one) for one in value] if type(value) is list else value


def structure(value: Any, path: Path, paths: Mapping[str, Path]) -> Any:
    name = ".".join(map(str, path))
    if paths.get(name) == path and path:
        return Name(name)
    if isinstance(value, Mapping):
        if len({str(key) for key in value}) < len(value):
            raise UsageError(
                f"{name or 'the state'} has keys that are equal as text: {list(value)}",
                code="keys-equal-as-text",
                name=name,
            )
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind((key, structure(one, (*path, str(key)), paths)) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        found = [structure(one, (*path, at), paths) for at, one in enumerate(value)]
        return tuple(found) if isinstance(value, tuple) else found
    return value


def _unflatten(
    flat: Mapping[str, Any], metadata: Metadata, parts: Mapping[str, Any]
) -> dict[str, Any]:
    """As it was collected; what the skeleton does not name is as its flat names say.

    The skeleton is one rank's: an optimizer may have stepped other parameters on other ranks.
    """
    skeleton = flat.get(SKELETON)
    if not isinstance(skeleton, Skeleton):
        return dict(unflatten_state_dict(dict(flat), {k: item_path(metadata, k) for k in flat}))
    missing = {key: value for key, value in flat.items() if key != SKELETON}
    found: dict[str, Any] = fill_structure(skeleton.bare, missing)
    for key, value in missing.items():
        path = item_path(metadata, key)
        part = optimizer_at(parts, path)
        if str(path[0]) not in skeleton.bare:
            set_element(found, path, value)
        elif part is not None and len(path) == 4:
            numbered = named_parameters(part) is None and str(path[2]).isdecimal()
            name = int(path[2]) if numbered else path[2]
            found[str(path[0])]["state"].setdefault(name, {})[path[3]] = value
    return found


def fill_structure(bare: Any, flat: dict[str, Any]) -> Any:
    """With what is there of it, which is taken out."""
    if isinstance(bare, Name):
        return unpack_skeletons(flat.pop(bare, None))
    if isinstance(bare, dict):
        there = {k: one for k, one in bare.items() if not isinstance(one, Name) or one in flat}
        return type(bare)((key, fill_structure(one, flat)) for key, one in there.items())
    if isinstance(bare, (list, tuple)):
        return type(bare)(fill_structure(one, flat) for one in bare)
    return bare
