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
    result = [
        name
        for group in part.param_groups
        for parameter, fallback in zip(
            group["params"],
            group.get("param_names") or [""] * len(group["params"]),
            strict=True,
        )
        if (name := names.get(id(parameter), fallback))
    ]
    return (
        result
        if len(set(result)) == len(optimizer_parameters(part))
        and not any(map(str.isdecimal, result))
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
        group_names = [names[index] for index in group["params"]]
        groups[_group_key(number, group_names)] = {
            **{key: pickle_if_needed(value) for key, value in group.items()},
            "params": group_names,
        }
    return {
        **{
            key: pickle_if_needed(value)
            for key, value in saved.items()
            if key not in OPTIMIZER_ENTRIES
        },
        "state": {
            names[number]: pickle_if_needed(value_state)
            for number, value_state in saved["state"].items()
        },
        "param_groups": groups,
    }


def _group_key(number: int, names: Sequence[str]) -> str:
    if not names:
        return f"empty-{number}"
    return hashlib.sha256("\n".join(names).encode(errors="surrogatepass")).hexdigest()[:16]


def by_number(saved: Mapping[str, Any]) -> dict[str, Any]:
    """State that was saved by number; DCP has turned the numbers into text."""
    state = {
        int(key) if str(key).isdecimal() else key: value
        for key, value in saved.get("state", {}).items()
    }
    return {**saved, "state": state}


def load_optimizer(
    part: Optimizer, names: Sequence[str], saved: Mapping[str, Any], pairs: Mapping[str, str]
) -> None:
    """Load state saved by name; a group takes the settings of the saved group of its parameters."""
    numbers = {name: number for number, name in enumerate(names)}
    live_state = part.state_dict()
    saved_groups = saved.get("param_groups", {})
    group_of = {
        pairs[key]: group
        for group in saved_groups.values()
        for key in group["params"]
        if key in pairs
    }
    groups = []
    for number, group in enumerate(live_state["param_groups"]):
        first = names[group["params"][0]] if group["params"] else None
        saved_group = (
            saved_groups.get(_group_key(number, ())) if first is None else group_of.get(first)
        )
        groups.append(_load_group(part.param_groups[number], group, saved_group))
    state = {
        numbers[pairs[key]]: value
        for key, value in saved.get("state", {}).items()
        if pairs.get(key) in numbers
    }
    state = dict(sorted(state.items()))
    part.load_state_dict({**live_state, **saved, "state": state, "param_groups": groups})
    set_saved_types(part, {"state": state})


def _load_group(
    live: Mapping[str, Any], live_group: Mapping[str, Any], saved: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The saved settings of a group; a live tensor such as a learning rate is updated in place."""
    group = dict(live_group)
    for key, value in (saved or {}).items():
        if key in GROUP_NAME_KEYS:
            continue
        live_value = live.get(key)
        group[key] = value
        if isinstance(value, Tensor) and _is_like(live_value, value):
            group[key] = live_value.detach().copy_(value)
    return group


def _is_like(tensor: Any, other: Tensor) -> TypeGuard[Tensor]:
    return isinstance(tensor, Tensor) and (tensor.shape, tensor.dtype) == (other.shape, other.dtype)


def set_saved_types(part: Any, saved: Mapping[str, Any]) -> None:
    """Restore the saved dtypes: torch casts what it loads to the dtype of the parameter."""
    if not isinstance(part, Optimizer) or named_parameters(part) is not None:
        return
    parameters = optimizer_parameters(part)
    for number, values in saved.get("state", {}).items():
        if isinstance(number, int) and number < len(parameters):
            loaded = part.state.get(parameters[number])
            if isinstance(loaded, dict) and isinstance(values, Mapping):
                for key, value in values.items():
                    if key in loaded:
                        loaded[key] = _with_saved_type(loaded[key], value)


def _with_saved_type(loaded: Any, saved: Any) -> Any:
    if isinstance(loaded, Tensor) and isinstance(saved, Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(loaded, dict) and isinstance(saved, Mapping) and loaded.keys() == saved.keys():
        return {key: _with_saved_type(item, saved[key]) for key, item in loaded.items()}
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
    state = saved.get("state", {})
    keys = dict.fromkeys([*part.state_dict()["state"], *(name for name in state if name in named)])
    return {**saved, "state": {name: state.get(name, {}) for name in keys}}
