"""The state to save: named parts, collected into one dictionary and loaded back.

    {"model": model, "optimizer": optimizer, "data": position, "epoch": lambda: epoch}

A part is a module, an optimizer, any object with `state_dict` and `load_state_dict`, a tensor, a
function that returns a value (saved, and returned by `restore`), or a plain value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from headway.checkpoint.matching import Mismatch, pair_names
from headway.checkpoint.optimizer_state import (
    GROUP_NAME_KEYS,
    by_name,
    by_number,
    is_numbered_state,
    is_torch_state,
    live_keys,
    load_optimizer,
    named_parameters,
    only_local_state,
    optimizer_at,
    optimizer_parameters,
    parameter_names,
    set_saved_types,
)
from headway.checkpoint.state import (
    GOLDEN_PART,
    PER_RANK_NAME,
    SKELETON,
    Path,
    Skeleton,
    fill_structure,
    flatten,
    is_per_rank,
    item_path,
    pickle_custom_containers,
    pickle_if_needed,
    structure,
    unpack_skeletons,
    unreadable_reason,
)
from headway.errors import UsageError

REPLICATED_MAX_BYTES = 1 << 20  # bytes; smaller tensors may be saved by one rank for all


EXTRA_STATE = "_extra_state"  # the last component of its key in the state of a module


@dataclass
class Targets:
    """What the tensors of a checkpoint are read into, by their names in the checkpoint."""

    flat: dict[str, Any] = field(default_factory=dict)
    # tensors read into live memory, by their live names
    live: dict[str, str] = field(default_factory=dict)
    # by part: live key of each saved key
    names: dict[str, dict[str, str]] = field(default_factory=dict)
    numbered: set[str] = field(default_factory=set)  # optimizers saved with numbered parameters
    mismatch: Mismatch = field(default_factory=Mismatch)


class StateTree:
    """The parts of a training job's state."""

    def __init__(self, parts: Mapping[str, Any], per_rank: Mapping[str, Any], rank: int) -> None:
        reserved = [name for name in (*parts, *per_rank) if name == SKELETON or "@" in name]
        if reserved:
            raise UsageError(
                f"{reserved[0]!r} is reserved and cannot be the name of a part of the state",
                code="part-name-reserved",
                name=reserved[0],
            )
        self.parts = {name: unwrap(part) for name, part in parts.items()}
        self.per_rank = {f"{name}@{rank}": part for name, part in per_rank.items()}
        self._rank = rank

    @property
    def optimizers(self) -> list[Optimizer]:
        return [part for part in self.parts.values() if isinstance(part, Optimizer)]

    @property
    def modules(self) -> list[nn.Module]:
        return [part for part in self.parts.values() if isinstance(part, nn.Module)]

    @property
    def model(self) -> nn.Module | None:
        """The module named `model`, or the only module."""
        modules = {n: part for n, part in self.parts.items() if isinstance(part, nn.Module)}
        return modules.get("model", next(iter(modules.values())) if len(modules) == 1 else None)

    def collect(self) -> dict[str, Any]:
        """The whole state as it is now, with live tensors."""
        names = self._parameter_names()
        state: dict[str, Any] = {}
        with_structure: dict[str, Any] = {}  # parts that need a skeleton
        for name, part in self.parts.items():
            collected, keys = _collect_part(part), parameter_names(part, names)
            if isinstance(part, nn.Module):
                state[name] = {key: pickle_if_needed(value) for key, value in collected.items()}
            elif keys is not None and is_numbered_state(collected, keys):
                state[name] = by_name(collected, keys)
            else:
                state[name] = with_structure[name] = pickle_custom_containers(collected)
        per_rank = {name: Skeleton(_collect_part(part)) for name, part in self.per_rank.items()}
        _, paths = flatten(with_structure)
        return {**state, **per_rank, SKELETON: Skeleton(structure(with_structure, (), paths))}

    def first_rank_names(self, state: Mapping[str, Any]) -> set[str]:
        """Names of tensors in which ranks may differ, in a state of `collect`.

        These are buffers, and small tensors of parts that are neither modules nor optimizers.
        """
        flat, paths = flatten(state)
        names = set()
        for name, value in flat.items():
            part = self.parts.get(str(paths[name][0]))
            replicated = (
                type(value) in (Tensor, nn.Parameter) and value.nbytes < REPLICATED_MAX_BYTES
            )
            if replicated and not isinstance(part, (nn.Module, Optimizer)):
                names.add(name)
        for name, part in self.parts.items():
            if isinstance(part, nn.Module):
                names |= {f"{name}.{key}" for key, _ in part.named_buffers(remove_duplicate=False)}
        return names

    def value_names(self, metadata: Metadata) -> list[str]:
        """Names of a checkpoint that are not tensors, without the private state of other ranks."""
        return [
            key
            for key, item in metadata.state_dict_metadata.items()
            if not isinstance(item, TensorStorageMetadata)
            and (key in self.per_rank or not is_per_rank(key, metadata))
        ]

    def match(self, metadata: Metadata, values: Mapping[str, Any]) -> Targets:
        """Where each tensor of a checkpoint goes, and what does not fit; nothing is changed.

        `values` are the values of `value_names`.
        """
        return _StateMatch(self, metadata, values).targets

    def load(
        self, targets: Targets, values: Mapping[str, Any], metadata: Metadata
    ) -> dict[str, Any]:
        """Load every part; return the parts that are plain values."""
        flat = {**values, **targets.flat}
        plain_values: dict[str, Any] = {}
        for name, part in self.per_rank.items():
            if isinstance(item := flat.pop(name, None), Skeleton):
                part.load_state_dict(item.bare)
        names = self._parameter_names()
        for name, saved in _unflatten(flat, metadata, self.parts).items():
            part = self.parts.get(name)
            if isinstance(part, nn.Module):
                self._load_module(name, part, saved, targets)
            elif isinstance(part, Optimizer) and name in targets.names.keys() - targets.numbered:
                live = live_keys(part, names)
                load_optimizer(part, live, unpack_skeletons(saved), targets.names[name])
            elif name in targets.numbered and not targets.names[name]:
                continue  # the group sizes differ
            elif part is not None and hasattr(part, "load_state_dict"):
                saved = (
                    by_number(saved) if name in targets.numbered else only_local_state(part, saved)
                )
                part.load_state_dict(saved)
                set_saved_types(part, saved)
            elif not isinstance(part, Tensor):
                plain_values[name] = saved
        return plain_values

    def _load_module(
        self, name: str, part: nn.Module, saved: Mapping[str, Any], targets: Targets
    ) -> None:
        """Load values, and tensors that its state copies, which were not read into live memory."""
        pairs, addresses = targets.names.get(name, {}), _storage_addresses(part)
        values = {}
        for key, value in saved.items():
            read = f"{name}.{key}" in targets.live
            if key in pairs and not (read and _is_at(value, addresses)):
                values[pairs[key]] = unpack_skeletons(value)
        if values:
            part.load_state_dict(values, strict=False)

    def _parameter_names(self) -> dict[int, str]:
        """Names of the parameters of all modules, by the id of the parameter."""
        names: dict[int, str] = {}
        for name, part in self.parts.items():
            if isinstance(part, nn.Module):
                for key, parameter in part.named_parameters():
                    names.setdefault(id(parameter), f"{name}.{key}")
            elif isinstance(part, Tensor):
                names.setdefault(id(part), name)
        for name, part in self.per_rank.items():  # these names include the rank
            if isinstance(part, nn.Module):
                for key, parameter in part.named_parameters():
                    names.setdefault(id(parameter), f"{name}.{key}")
        return names


class _StateMatch:
    """A checkpoint matched with the live state."""

    def __init__(self, tree: StateTree, metadata: Metadata, values: Mapping[str, Any]) -> None:
        self._tree, self._metadata, self._values = tree, metadata, values
        self._paths = {key: item_path(metadata, key) for key in metadata.state_dict_metadata}
        skeleton = values.get(SKELETON)
        saved_structure = skeleton.bare if isinstance(skeleton, Skeleton) else None
        self._structure: Mapping[str, Any] = (
            saved_structure if isinstance(saved_structure, Mapping) else {}
        )
        state = tree.collect()
        self._flat, _ = flatten(state)
        planner = DefaultSavePlanner()
        planner.set_up_planner(state)
        self._live: Mapping[str, Any] = planner.state_dict
        self._parameters: dict[str, dict[str, Tensor]] = {}  # by optimizer, by saved key
        self.targets = Targets()
        self._mismatch = self.targets.mismatch
        self._match_parts(state)
        self._match_per_rank()
        for key, item in metadata.state_dict_metadata.items():
            if isinstance(item, TensorStorageMetadata):
                self._match_tensor(key, item)

    def _match_parts(self, state: Mapping[str, Any]) -> None:
        names = self._tree._parameter_names()
        saved: dict[Any, list[Path]] = {}
        for path in self._paths.values():
            saved.setdefault(path[0], []).append(path)
        for name, part in self._tree.parts.items():
            paths, live = saved.get(name, []), state[name]
            if isinstance(part, nn.Module):
                self._match_module(name, paths, live)
            elif isinstance(part, Optimizer) and is_torch_state(part, live):
                self._match_optimizer(name, part, paths, live_keys(part, names))
            elif isinstance(part, Tensor) or hasattr(part, "load_state_dict"):
                in_checkpoint = bool(paths) or name in self._structure
                self._mismatch.missing += [] if in_checkpoint else [name]

    def _match_module(self, name: str, paths: Sequence[Path], live: Mapping[str, Any]) -> None:
        keys = dict.fromkeys(str(path[1]) for path in paths if len(path) > 1)
        in_skeleton = self._structure.get(name)  # written by older versions
        keys |= dict.fromkeys(in_skeleton if isinstance(in_skeleton, Mapping) else ())
        self._pair(name, keys, live, name)

    def _match_optimizer(
        self, name: str, part: Optimizer, paths: Sequence[Path], live: Sequence[str]
    ) -> None:
        lists = {
            path[2]: self._values.get(".".join(map(str, path)), ())
            for path in paths
            if len(path) == 4 and path[1] == "param_groups" and path[3] == "params"
        }
        if not paths or any(isinstance(group, int) for group in lists):
            self.targets.numbered.add(name)
            lengths = [len(group) for group in lists.values()]
            lengths_here = [len(group["params"]) for group in part.param_groups]
            if not paths:
                self._mismatch.missing.append(name)
            elif lengths != lengths_here:
                self._mismatch.different.append(
                    f"{name} (groups of {lengths} parameters in the checkpoint, "
                    f"of {lengths_here} here)"
                )
            fits = bool(paths) and lengths == lengths_here
            pairs = {str(number): key for number, key in enumerate(live) if fits}
            self.targets.names[name] = pairs
        else:
            keys = dict.fromkeys(str(key) for group in lists.values() for key in group)
            pairs = self._pair(name, keys, live, f"{name}.state")
            self._compare_groups(name, part, live, lists)
        parameters = dict(zip(live, optimizer_parameters(part), strict=True))
        self._parameters[name] = {
            key: parameters[live_key] for key, live_key in pairs.items() if live_key in parameters
        }

    def _compare_groups(
        self, name: str, part: Optimizer, live: Sequence[str], lists: Mapping[Any, Sequence[str]]
    ) -> None:
        """Report a live group whose parameters come from groups with different settings."""
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
            if len({tuple(sorted(settings.get(group_key, ()))) for group_key in saved}) > 1:
                self._mismatch.different.append(
                    f"{name} (group {number} has parameters of {len(saved)} groups of the "
                    "checkpoint, which have different settings)"
                )

    def _pair(
        self, part: str, saved: Iterable[str], live: Iterable[str], prefix: str
    ) -> dict[str, str]:
        pairs = self.targets.names[part] = pair_names(saved, live)
        paired = set(pairs.values())
        self._mismatch.missing += [f"{prefix}.{key}" for key in live if key not in paired]
        self._mismatch.unexpected += [f"{prefix}.{key}" for key in saved if key not in pairs]
        return pairs

    def _match_per_rank(self) -> None:
        saved = {match[1] for key in self._paths if (match := self._per_rank_match(key))}
        for key in self._tree.per_rank:
            base = key.rpartition("@")[0]
            if base not in saved:
                self._mismatch.missing.append(key)
        names = {key.rpartition("@")[0] for key in self._tree.per_rank}
        self._mismatch.unexpected += sorted(saved - names)

    def _per_rank_match(self, key: str) -> re.Match[str] | None:
        return PER_RANK_NAME.fullmatch(key) if is_per_rank(key, self._metadata) else None

    def _match_tensor(self, key: str, item: TensorStorageMetadata) -> None:
        path = self._paths[key]
        name = str(path[0])
        part = self._tree.parts.get(name)
        live_key = self._live_key(path)
        if live_key is None:  # its missing place was reported by name
            if name in self.targets.numbered and self.targets.names[name]:
                self._mismatch.unexpected.append(key)
            return
        live = self._live.get(live_key)
        if isinstance(live, Tensor) and not _is_extra_state(part, path):
            # Other optimizers than torch's may rely on what was read into their memory.
            in_place = isinstance(part, (nn.Module, Tensor)) or (
                hasattr(part, "load_state_dict") and name not in self.targets.names
            )
            if reason := unreadable_reason(live):
                if in_place:
                    self._mismatch.unreadable.append(f"{live_key} ({reason})")
                    return
            elif self._fits(live_key, live, item, in_place=in_place):
                self.targets.flat[key] = live
                self.targets.live[key] = live_key
                return
            if in_place:
                return
            like = self._parameter_like(path)
            if like is not None and like.shape == live.shape != item.size:
                self._note_difference(live_key, live, item)
                return
        elif isinstance(self._flat.get(live_key), ShardedTensor) or self._is_on_other_rank(path):
            return  # it is sharded, and this rank has no shard of it
        elif name not in (*self._tree.parts, GOLDEN_PART):
            self._mismatch.unexpected.append(key)
            return
        self.targets.flat[key] = self._new_like(path, item)

    def _live_key(self, path: Path) -> str | None:
        """Its name in the live state; None if the live state has no such parameter."""
        name = str(path[0])
        if name not in self.targets.names:
            return ".".join(map(str, path))
        at = 1 if isinstance(self._tree.parts[name], nn.Module) else 2
        if at == 2 and (len(path) < 3 or path[1] != "state"):
            return ".".join(map(str, path))
        live = self.targets.names[name].get(str(path[at]))
        return None if live is None else ".".join(map(str, (*path[:at], live, *path[at + 1 :])))

    def _fits(
        self, name: str, live: Tensor, item: TensorStorageMetadata, *, in_place: bool
    ) -> bool:
        """Whether it can be read into this memory; live memory must match."""
        same_size = live.size() == item.size
        if same_size and live.dtype == item.properties.dtype:
            return True
        if in_place:
            self._note_difference(name, live, item)
        return in_place and same_size

    def _note_difference(self, name: str, live: Tensor, item: TensorStorageMetadata) -> None:
        saved, current = (
            f"{str(dtype).removeprefix('torch.')} {list(size)}"
            for dtype, size in ((item.properties.dtype, item.size), (live.dtype, live.size()))
        )
        text = f"{name} ({saved} in the checkpoint, {current} in the state)"
        same_size = live.size() == item.size
        (self._mismatch.converted if same_size else self._mismatch.different).append(text)

    def _is_on_other_rank(self, path: Path) -> bool:
        """Whether it belongs to a named optimizer parameter of another rank."""
        parameters = named_parameters(optimizer_at(self._tree.parts, path))
        return parameters is not None and path[2] not in parameters

    def _new_like(self, path: Path, item: TensorStorageMetadata) -> Tensor:
        """A tensor that does not exist yet, such as optimizer state before the first step.

        The state of a parameter is sharded like the parameter.
        """
        like = self._parameter_like(path)
        if like is not None and like.shape == item.size:
            return torch.empty_like(like, dtype=item.properties.dtype, requires_grad=False)
        return torch.empty(item.size, dtype=item.properties.dtype)

    def _parameter_like(self, path: Path) -> Tensor | None:
        """The parameter whose optimizer state it is."""
        part = optimizer_at(self._tree.parts, path)
        if part is None:
            return None
        named = named_parameters(part)
        parameters = self._parameters.get(str(path[0]), {}) if named is None else named
        like = parameters.get(str(path[2]))
        return like if isinstance(like, Tensor) else None


def unwrap(part: Any) -> Any:
    """The module inside DDP and `torch.compile` wrappers."""
    while True:
        if isinstance(part, nn.parallel.DistributedDataParallel):
            part = part.module
        elif isinstance(part, nn.Module) and _is_compiled(part):
            part = part._orig_mod
        else:
            return part


def _is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile wraps it: by class name, as any module may have `_orig_mod`."""
    return any(base.__name__ == "OptimizedModule" for base in type(module).__mro__)


def _collect_part(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.detach()
    if hasattr(part, "state_dict"):
        return part.state_dict()
    return part() if callable(part) else part


def _is_extra_state(part: Any, path: Path) -> bool:
    """Whether it belongs to the extra state of a module, which the module itself returned."""
    words = str(path[1]).rpartition(".") if isinstance(part, nn.Module) and len(path) > 1 else [""]
    return words[-1] == EXTRA_STATE


def _storage_addresses(module: nn.Module) -> set[int]:
    """Addresses of its parameters and buffers."""
    tensors = (*module.parameters(), *module.buffers())
    return {_address(tensor) for tensor in tensors if type(tensor) in (Tensor, nn.Parameter)}


def _is_at(value: Any, memory: set[int]) -> bool:
    """Whether the tensor is at one of these addresses; sharded tensors are assumed to be."""
    if not isinstance(value, Tensor):
        return False
    return type(value) not in (Tensor, nn.Parameter) or _address(value) in memory


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # no storage
        return 0


def _unflatten(
    flat: Mapping[str, Any], metadata: Metadata, parts: Mapping[str, Any]
) -> dict[str, Any]:
    """Rebuild the collected structure; names missing in the skeleton are split as DCP does.

    The skeleton is that of one rank: on other ranks an optimizer may have stepped other parameters.
    """
    skeleton = flat.get(SKELETON)
    if not isinstance(skeleton, Skeleton):
        return dict(unflatten_state_dict(dict(flat), {k: item_path(metadata, k) for k in flat}))
    missing = {key: value for key, value in flat.items() if key != SKELETON}
    state: dict[str, Any] = fill_structure(skeleton.bare, missing)
    for key, value in missing.items():
        path = item_path(metadata, key)
        part = optimizer_at(parts, path)
        if str(path[0]) not in skeleton.bare:
            set_element(state, path, value)
        elif part is not None and len(path) == 4:
            numbered = named_parameters(part) is None and str(path[2]).isdecimal()
            name = int(path[2]) if numbered else path[2]
            state[str(path[0])]["state"].setdefault(name, {})[path[3]] = value
    return state
