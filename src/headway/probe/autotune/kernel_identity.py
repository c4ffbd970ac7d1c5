"""Stable identities of kernels, configs and tuning keys, equal in every process and run."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
DEFINITION = re.compile(r"^def\s+\w+\s*\(", re.MULTILINE)
KERNEL_NAME = re.compile(r"'kernel_name': '(\w+)'")
MAX_TEXT = 200  # characters of a value


def digest(*parts: Any) -> str:
    """A short hash of these values."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:24]


def config_values(config: Any) -> dict[str, Any]:
    """A config as JSON values, which identify it."""
    values = {str(name): json_value(value) for name, value in config.kwargs.items()}
    options = {name: getattr(config, name, None) for name in OPTIONS}
    values.update({name: json_value(value) for name, value in options.items() if value is not None})
    hook = getattr(config, "pre_hook", None)
    if hook is not None:
        values["pre_hook"] = _name_of(hook)
    return values


def config_text(values: Mapping[str, Any]) -> str:
    """A text that is equal for equal values in any order."""
    return json.dumps(values, sort_keys=True)


def json_value(value: Any) -> Any:
    """Convert to JSON. A tensor is not formatted, as that would wait for the device."""
    if value is None or isinstance(value, (bool, int, float, str)):
        odd = isinstance(value, float) and not math.isfinite(value)
        return value[:MAX_TEXT] if isinstance(value, str) else str(value) if odd else value
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value[:64]]
    if type(value).__name__ == "constexpr":
        return json_value(value.value)
    return str(value)[:MAX_TEXT] if "dtype" in type(value).__name__ else _name_of(value)


def _name_of(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return str(name or type(value).__name__)[:MAX_TEXT]


# Kernels of the job.


def jit_function(tuner: Any) -> Any:
    """The jit function inside a tuner, heuristics and other tuners."""
    function = tuner.fn
    while not inspect.isfunction(function.fn):
        function = function.fn
    return function


def source_texts(function: Any) -> list[str]:
    """The source of a jit function and of those that it calls, and the constants that it reads."""
    texts_by_id: dict[int, list[str]] = {}
    _collect(function, texts_by_id)
    return [text for texts in texts_by_id.values() for text in texts]


def _collect(function: Any, texts_by_id: dict[int, list[str]]) -> None:
    if id(function) in texts_by_id or str(function.fn.__module__).partition(".")[0] == "triton":
        return  # these change only with the version of Triton
    source = getattr(function, "src", None) or inspect.getsource(function.fn)
    start = DEFINITION.search(source)
    texts = texts_by_id[id(function)] = [source[start.start() :] if start else source]
    used = inspect.getclosurevars(function.fn)
    for name, value in sorted({**used.globals, **used.nonlocals}.items()):
        members = [value]
        if isinstance(value, ModuleType):
            members = [
                vars(value)[member_name]
                for member_name in sorted(used.unbound)
                if member_name in vars(value)
            ]
        for member in members:
            if inspect.isfunction(getattr(member, "fn", None)):
                _collect(member, texts_by_id)
            elif not callable(member) or type(member).__name__ == "constexpr":
                texts.append(f"{name}={json_value(member)}")


def launch_key(tuner: Any, kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], list[Any], str]:
    """Triton's key of a launch, the key as JSON values, and a digest of other specializations.

    Triton compiles again for other constants, for integers that are 1 or divisible by 16, and for
    aligned pointers: a config that is fast for one of them may not be for another.
    """
    arguments = {**tuner.nargs, **kwargs}
    values = {name: arguments[name] for name in tuner.arg_names if name in arguments}
    key = [values[name] for name in tuner.keys if name in values]
    key += [str(value.dtype) for value in values.values() if hasattr(value, "dtype")]
    function = jit_function(tuner)
    constants = {
        name for name, kind in function.fn.__annotations__.items() if "constexpr" in str(kind)
    }
    params = getattr(function, "params", ())
    free = {param.name for param in params if getattr(param, "do_not_specialize", False)}
    rest = [
        [name, json_value(value) if name in constants else _specialization(value)]
        for name, value in values.items()
        if name not in tuner.keys and name not in free
    ]
    return tuple(key), [json_value(value) for value in key], digest(rest)


def _specialization(value: Any) -> Any:
    if hasattr(value, "data_ptr"):
        return "aligned" if value.data_ptr() % 16 == 0 else "pointer"
    if type(value) is int:
        return "1" if value == 1 else "16" if value % 16 == 0 else "int"
    if isinstance(value, float):
        return "float"
    if hasattr(value, "block_shape"):  # a tensor descriptor
        return [type(value).__name__, json_value(list(value.block_shape))]
    return json_value(value)


# Kernels that torch generates.


def generated_digest(path: str | None, fallback: str) -> str:
    """A digest of a generated kernel, without its number in the model and its device index."""
    try:
        with open(path or "", encoding="utf-8") as file:
            content = file.read()
    except OSError:
        return digest(fallback)
    name = KERNEL_NAME.search(content)
    if name:
        content = content.replace(name[1], name[1].rstrip("0123456789"))
    return digest(re.sub(r"\bindex=\d+", "index=", content))


def has_pinned_sizes(definition: str, signature: Mapping[str, Any]) -> bool:
    """Whether all sizes of a generated kernel are constants in its source."""
    sizes = [
        name
        for name, kind in signature.items()
        if re.fullmatch(r"[iu]\d+", str(kind)) and str(kind) != "i1"
    ]
    return all(re.search(rf"^\s+{name} = \d+$", definition, re.MULTILINE) for name in sizes)


def launch_sizes(values: Iterable[Any]) -> list[int]:
    """The integers of a launch."""
    return [value for value in values if type(value) is int]
