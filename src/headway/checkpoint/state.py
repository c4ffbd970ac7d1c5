"""The structure of a saved state: DCP's flat names, and a skeleton that is pickled with them.

DCP's flat names do not tell which keys are numbers and drop empty containers. The skeleton of the
state, in which every saved value is replaced by its name, is saved as well. `Skeleton` and `Name`
are pickled by path into checkpoints: they must stay in this module, with these fields.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from headway.errors import UsageError

SKELETON = "headway"  # the name of the part with the skeleton


GOLDEN_PART = "golden"  # an additional part of anchor checkpoints
PER_RANK_NAME = re.compile(r"(.+)@(\d+)", re.DOTALL)  # the name of a part that is private to a rank

INTEGERS = frozenset(
    getattr(torch, name)
    for name in ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
    if hasattr(torch, name)
)

Path = tuple[str | int, ...]


class Name(str):
    """A placeholder for a saved value: its name."""

    __slots__ = ()


@dataclass(frozen=True)
class Skeleton:
    """The structure of a state without its values, or a small value that is pickled as it is."""

    bare: Any


def flatten(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
    """The state by its flat names, and the path of each. UsageError if two names collide."""
    try:
        flat, paths = flatten_state_dict(dict(state))
    except ValueError as error:
        raise UsageError(
            f"two entries of the state have the same flat name: {error}", code="names-collide"
        ) from None
    return flat, paths


def item_path(metadata: Metadata, key: str) -> Path:
    return tuple((metadata.planner_data or {}).get(key, (key,)))


def is_per_rank(key: str, metadata: Metadata) -> bool:
    """Whether it is private state of one rank: only such names contain an @."""
    if isinstance(metadata.state_dict_metadata[key], TensorStorageMetadata):
        return False
    return len(item_path(metadata, key)) == 1 and PER_RANK_NAME.fullmatch(key) is not None


def unsupported_reason(value: Any) -> str:
    """Why the bytes of a tensor are incomplete or not accessible; empty if they are not."""
    if not isinstance(value, Tensor) or isinstance(value, ShardedTensor):
        return ""
    tensor: Any = getattr(value, "_local_tensor", value)
    if type(tensor).__name__ == "AsyncCollectiveTensor":
        tensor = tensor.elem
    if nn.parameter.is_lazy(tensor):
        return "it has no shape yet because its module is lazy"
    if tensor.is_quantized or tensor.is_nested or tensor.layout is not torch.strided:
        what = "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else ""
        return f"it is {what}" if what else f"its layout is {tensor.layout}"
    if tensor.is_meta:
        return "it is on the meta device and has no data"
    dtype = tensor.dtype
    if not (dtype.is_floating_point or dtype.is_complex or dtype in INTEGERS):
        return f"its type is {dtype}"
    readable = tensor.device.type not in ("cpu", "cuda") or tensor.data_ptr() or not tensor.numel()
    return "" if readable else f"its class {type(tensor).__qualname__} stores the data elsewhere"


def unreadable_reason(tensor: Tensor) -> str:
    """Why a tensor cannot be read in place; empty if it can."""
    if reason := unsupported_reason(tensor):
        return reason
    plain = type(tensor) in (Tensor, nn.Parameter)
    overlaps = plain and torch._debug_has_internal_overlap(tensor) == 1
    return "several of its elements share memory, as after expand(); clone it" if overlaps else ""


def pickle_if_needed(value: Any) -> Any:
    """A value whose structure the flat names preserve, or one that is pickled as a whole."""
    plain = (
        isinstance(value, Mapping)
        and not isinstance(value, OrderedDict)
        and not _is_custom_container(value)
    )
    if plain and value and all(isinstance(key, str) for key in value):
        return {key: pickle_if_needed(item) for key, item in value.items()}
    return value if _survives_flattening(value) else Skeleton(value)


def _survives_flattening(value: Any) -> bool:
    """Whether DCP restores the same structure.

    DCP drops empty containers, and turns number keys into text.
    """
    if _is_custom_container(value) or type(value) is OrderedDict:
        return False
    if isinstance(value, Mapping):
        return bool(value) and all(
            isinstance(key, str) and _survives_flattening(item) for key, item in value.items()
        )
    return not isinstance(value, list) or all(map(_survives_flattening, value))


def _is_custom_container(value: Any) -> bool:
    """Whether it is a subclass of dict or list, such as Counter."""
    return isinstance(value, (dict, list)) and type(value) not in (dict, OrderedDict, list)


def pickle_custom_containers(value: Any) -> Any:
    """The value with custom containers pickled as a whole; DCP would restore plain ones."""
    if _is_custom_container(value):
        return Skeleton(value)
    if isinstance(value, dict):
        return type(value)((key, pickle_custom_containers(item)) for key, item in value.items())
    return [pickle_custom_containers(item) for item in value] if isinstance(value, list) else value


def unpack_skeletons(value: Any) -> Any:
    if isinstance(value, Skeleton):
        return value.bare
    if type(value) in (dict, OrderedDict):
        return type(value)((key, unpack_skeletons(item)) for key, item in value.items())
    return [unpack_skeletons(item) for item in value] if type(value) is list else value


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
        return kind((key, structure(item, (*path, str(key)), paths)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        items = [structure(item, (*path, at), paths) for at, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def fill_structure(bare: Any, flat: dict[str, Any]) -> Any:
    """The structure with the values of `flat`, which are removed from it."""
    if isinstance(bare, Name):
        return unpack_skeletons(flat.pop(bare, None))
    if isinstance(bare, dict):
        present = {
            k: item for k, item in bare.items() if not isinstance(item, Name) or item in flat
        }
        return type(bare)((key, fill_structure(item, flat)) for key, item in present.items())
    if isinstance(bare, (list, tuple)):
        return type(bare)(fill_structure(item, flat) for item in bare)
    return bare
