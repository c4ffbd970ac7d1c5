"""What is saved: the parts a user names, as one flat dictionary of tensors and values.

    {"model": model, "optimizer": optimizer, "data": position, "epoch": lambda: epoch}

A part is a module, an optimizer, anything with `state_dict` and `load_state_dict`, a tensor, a
function that gives a value (saved, and handed back by `restore`), or a plain value. DCP's flat
names forget which keys are numbers and drop what is empty: a skeleton of the whole, in which each
thing is but a name, is saved with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict, unflatten_state_dict
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from headway.errors import UsageError

SKELETON = "headway"  # among the parts


class Name(str):
    """In the place of something that is saved: what it is called."""

    __slots__ = ()


@dataclass(frozen=True)
class Skeleton:
    """The form of a state without what is in it, or one that is small and saved as it is."""

    bare: Any


@dataclass(frozen=True)
class Targets:
    """What a checkpoint is read into, by its flat names; `live` is the training's own memory."""

    flat: dict[str, Any]
    live: set[str]


class Parts:
    """The parts of one training's state."""

    def __init__(self, parts: Mapping[str, Any], own: Mapping[str, Any], rank: int) -> None:
        odd = [name for name in (*parts, *own) if name == SKELETON or "@" in name]
        if odd:
            raise UsageError(f"a part of the state cannot be called {odd[0]!r}")
        self.parts = {name: unwrapped(part) for name, part in parts.items()}
        self.own = {f"{name}@{rank}": part for name, part in own.items()}

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
        state = {name: _collected(part) for name, part in self.parts.items()}
        own = {name: Skeleton(_collected(part)) for name, part in self.own.items()}
        flat, _ = flatten_state_dict(state)
        return {**state, **own, SKELETON: Skeleton(_bare(state, (), flat))}

    def targets(self, metadata: Metadata) -> Targets:
        """For each thing that was saved, what it is read into; None for a value."""
        planner = DefaultSavePlanner()
        state = self.collect()
        planner.set_up_planner(state)
        here, _ = flatten_state_dict(state)
        found: dict[str, Any] = {}
        live: set[str] = set()
        for key, kept in metadata.state_dict_metadata.items():
            if "@" in key and key not in self.own:  # of another rank
                continue
            known = planner.state_dict.get(key)
            if isinstance(kept, TensorStorageMetadata):
                path = metadata.planner_data.get(key, ())
                if isinstance(known, Tensor):
                    live.add(key)
                elif isinstance(here.get(key), ShardedTensor) or self._elsewhere(path):
                    continue  # it has shards, and this rank none of them
                else:
                    known = self._made_like(path, kept)
            found[key] = known
        return Targets(found, live)

    def give_back(self, targets: Targets, metadata: Metadata) -> dict[str, Any]:
        """Every part gets what was saved of it; returns the parts that are plain values."""
        values: dict[str, Any] = {}
        for name, part in self.own.items():
            if isinstance(kept := targets.flat.get(name), Skeleton):
                part.load_state_dict(kept.bare)
        for name, saved in _nested(targets.flat, metadata, self.parts).items():
            part = self.parts.get(name)
            if isinstance(part, nn.Module):
                rest = {k: value for k, value in saved.items() if f"{name}.{k}" not in targets.live}
                if rest:
                    part.load_state_dict(rest, strict=False)
            elif part is not None and hasattr(part, "load_state_dict"):
                part.load_state_dict(_own(part, saved))
            elif not isinstance(part, Tensor):
                values[name] = saved
        return values

    def _elsewhere(self, path: tuple[Any, ...]) -> bool:
        """Whether it is kept of a parameter that an optimizer knows by its name, on other ranks."""
        named = _named(_optimizer(self.parts, path))
        return named is not None and path[2] not in named

    def _made_like(self, path: tuple[Any, ...], kept: TensorStorageMetadata) -> Tensor:
        """A tensor that is not there yet, as an optimizer's before its first step.

        What is kept of a parameter is cut into the same shards as the parameter.
        """
        part = _optimizer(self.parts, path)
        like = None if part is None else _parameter(part, path[2])
        if like is not None and like.shape == kept.size:
            return torch.empty_like(like, dtype=kept.properties.dtype, requires_grad=False)
        return torch.empty(kept.size, dtype=kept.properties.dtype)


def unwrapped(part: Any) -> Any:
    """A module without what DDP and `torch.compile` have put around it."""
    while isinstance(part, nn.Module):
        inner = getattr(part, "_orig_mod", None)
        if isinstance(part, nn.parallel.DistributedDataParallel):
            inner = part.module
        if inner is None:
            return part
        part = inner
    return part


def _collected(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.detach()
    if hasattr(part, "state_dict"):
        return part.state_dict()
    return part() if callable(part) else part


def _parameter(optimizer: Optimizer, number: Any) -> Tensor | None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    known = str(number).isdecimal() and int(number) < len(parameters)
    return parameters[int(number)] if known else None


def _optimizer(parts: Mapping[str, Any], path: Sequence[Any]) -> Optimizer | None:
    """The one that keeps what lies at that path, of a parameter."""
    part = parts.get(path[0]) if len(path) == 4 and path[1] == "state" else None
    return part if isinstance(part, Optimizer) else None


def _named(part: Any) -> Mapping[str, Any] | None:
    """The parameters of an optimizer that knows them by name, as TorchRec's do."""
    named = getattr(part, "params", None)
    return named if isinstance(part, Optimizer) and isinstance(named, Mapping) else None


def _own(part: Any, saved: Any) -> Any:
    """With what is kept of the parameters that are here, be it nothing, and of no others."""
    named = _named(part)
    if named is None:
        return saved
    kept = saved.get("state", {})
    here = dict.fromkeys([*part.state_dict()["state"], *(name for name in kept if name in named)])
    return {**saved, "state": {name: kept.get(name, {}) for name in here}}


def _bare(value: Any, path: tuple[str, ...], flat: Mapping[str, Any]) -> Any:
    name = ".".join(path)
    if name in flat:
        return Name(name)
    if isinstance(value, Mapping):
        return {key: _bare(one, (*path, str(key)), flat) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        found = [_bare(one, (*path, str(at)), flat) for at, one in enumerate(value)]
        return tuple(found) if isinstance(value, tuple) else found
    return value


def _nested(
    flat: Mapping[str, Any], metadata: Metadata, parts: Mapping[str, Any]
) -> dict[str, Any]:
    """As it was collected; a checkpoint that others have made is as DCP has it.

    The skeleton is one rank's: an optimizer may have stepped other parameters on other ranks.
    """
    skeleton = flat.get(SKELETON)
    if not isinstance(skeleton, Skeleton):
        return dict(unflatten_state_dict(dict(flat), metadata.planner_data))
    missing = dict(flat)
    found: dict[str, Any] = _filled(skeleton.bare, missing)
    for key, value in missing.items():
        path = metadata.planner_data.get(key, ())
        part = _optimizer(parts, path)
        if part is not None:
            numbered = _named(part) is None and str(path[2]).isdecimal()
            name = int(path[2]) if numbered else path[2]
            found[path[0]]["state"].setdefault(name, {})[path[3]] = value
    return found


def _filled(bare: Any, flat: dict[str, Any]) -> Any:
    """With what is there of it, which is taken out."""
    if isinstance(bare, Name):
        return flat.pop(bare, None)
    if isinstance(bare, dict):
        there = {k: one for k, one in bare.items() if not isinstance(one, Name) or one in flat}
        return {key: _filled(one, flat) for key, one in there.items()}
    if isinstance(bare, (list, tuple)):
        return type(bare)(_filled(one, flat) for one in bare)
    return bare
