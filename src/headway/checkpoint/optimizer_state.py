"""Optimizer state by parameter name.

torch keys the state of an optimizer by number, which means nothing where ranks have different
parameters. It is saved under the name that the parameter has in a module of the state; checkpoints
that were saved by number are still read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from torch import Tensor
from torch.optim import Optimizer

from headway.checkpoint.state import pickle_if_needed

OPTIMIZER_ENTRIES = ("state", "param_groups")  # keys of the state of an optimizer


GROUP_NAME_KEYS = ("params", "param_names")


def is_torch_state(part: Optimizer, collected: Any) -> bool:
    """Whether its state has torch's structure, with numbers or names as keys."""
    if not isinstance(collected, Mapping) or named_parameters(part) is not None:
        return False
    groups, state = collected.get("param_groups"), collected.get("state", {})
    return isinstance(groups, Mapping) or (
        isinstance(groups, list) and all(isinstance(key, int) for key in state)
    )


def parameter_names(part: Any, names: Mapping[int, str]) -> list[str] | None:
    """The names of an optimizer's parameters, by number; None if one has no name."""
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
    """The keys of the parameters in the live state."""
    return parameter_names(part, names) or [
        str(number) for number in range(len(optimizer_parameters(part)))
    ]


def optimizer_parameters(part: Optimizer) -> list[Tensor]:
    return [parameter for group in part.param_groups for parameter in group["params"]]


def is_numbered_state(saved: Any, names: Sequence[str]) -> bool:
    """Whether it is an optimizer state with torch's numbered parameters."""
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
    """The state with names instead of numbers; a group is identified by its names."""
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
    """State that was saved by number; DCP has turned the numbers into text."""
    state = {
        int(key) if str(key).isdecimal() else key: kept
        for key, kept in saved.get("state", {}).items()
    }
    return {**saved, "state": state}


def load_optimizer(
    part: Optimizer, names: Sequence[str], saved: Mapping[str, Any], pairs: Mapping[str, str]
) -> None:
    """Load state saved by name; a group takes the settings of the saved group of its parameters."""
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
    """The saved settings of a group; a live tensor such as a learning rate is updated in place."""
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
    """Restore the saved dtypes: torch casts what it loads to the dtype of the parameter."""
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
    """The optimizer whose state of a parameter has that path."""
    part = parts.get(path[0]) if len(path) >= 4 and path[1] == "state" else None
    return part if isinstance(part, Optimizer) else None


def named_parameters(part: Any) -> Mapping[str, Any] | None:
    """The parameters of an optimizer that identifies them by name, as TorchRec's do."""
    named = getattr(part, "params", None)
    return named if isinstance(part, Optimizer) and isinstance(named, Mapping) else None


def only_local_state(part: Any, saved: Any) -> Any:
    """The state of the parameters on this rank, possibly empty, and of no others."""
    named = named_parameters(part)
    if named is None:
        return saved
    kept = saved.get("state", {})
    here = dict.fromkeys([*part.state_dict()["state"], *(name for name in kept if name in named)])
    return {**saved, "state": {name: kept.get(name, {}) for name in here}}
