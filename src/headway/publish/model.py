"""Build the user's model by its factory and load the weights of an anchor."""

from __future__ import annotations

import contextlib
import fnmatch
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from headway.errors import PublishFailed, UsageError
from headway.publish.failures import describe_error, raise_if_transient
from headway.publish.recipe import ModelOptions
from headway.publish.source import TensorSource

DEFAULT_PARTS = ("model", "state_dict", "")  # parts to look for weights by default
WRAPPERS = ("module.", "_orig_mod.")  # of DDP, AveragedModel and torch.compile


def import_function(name: str, folder: Path) -> Callable[..., Any]:
    """Import a user function `module:function`; modules next to the recipe take precedence."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise UsageError(f"{name!r} is not like module:function", code="function-malformed")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        value = getattr(importlib.import_module(module), function, None)
    except Exception as error:  # of the user's code
        raise_if_transient(f"{name} cannot be imported now: {describe_error(error)}", error)
        raise UsageError(
            f"{name} cannot be imported: {describe_error(error)}", code="module-not-importable"
        ) from error
    if not callable(value):
        raise UsageError(
            f"there is no function {function!r} in {module}",
            code="function-not-found",
            function=function,
        )
    return value  # type: ignore[no-any-return]


def build_model(factory: str, arguments: Mapping[str, Any], folder: Path) -> nn.Module:
    """Build the model for serving: on the CPU, in eval mode, without gradients."""
    make = import_function(factory, folder)
    try:
        model = build_without_init(make, arguments)
    except Exception as error:  # of the user's code
        raise_if_transient(f"{factory} cannot build the model now: {describe_error(error)}", error)
        raise UsageError(
            f"{factory} cannot build the model: {describe_error(error)}", code="model-not-built"
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{factory} returned a {type(model).__name__}, but it must return a module",
            code="factory-gives-no-module",
        )
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.contiguous()  # as in the file
    return model.eval().requires_grad_(False)


def build_without_init(make: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call the factory without initializing parameters, as the weights are loaded later.

    Unwritten memory is not allocated. Falls back to a normal call if this fails.
    """
    try:
        with _building, _init_skipped():
            return make(**arguments)
    except Exception:
        return make(**arguments)


_building = threading.RLock()  # a concurrent call would save the replacements as originals


@contextlib.contextmanager
def _init_skipped() -> Iterator[None]:
    originals = {
        name: original
        for name, original in vars(nn.init).items()
        if name.endswith("_") and not name.startswith("_") and callable(original)
    }

    thread = threading.get_ident()

    def skipping(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(tensor: Any, *args: Any, **more: Any) -> Any:
            skip = isinstance(tensor, nn.Parameter) and threading.get_ident() == thread
            return tensor if skip else original(tensor, *args, **more)

        return init

    try:
        for name, original in originals.items():
            setattr(nn.init, name, skipping(original))
        yield
    finally:
        for name, original in originals.items():
            setattr(nn.init, name, original)


def load_weights(model: nn.Module, source: TensorSource, recipe: ModelOptions) -> None:
    """Load every tensor of the model from the anchor; all tensors must match."""
    tensors = model.state_dict()
    parts = recipe.weights or (_default_part(source, tensors),)
    names_of_parts = {part: _tensors_of_part(source, part) for part in parts}
    for part, names in names_of_parts.items():
        if not names:
            raise PublishFailed(
                f"the anchor has no part {part!r}; it has {_parts(source)}",
                code="anchor-part-missing",
                part=part,
            )
    extra = names_of_parts[parts[0]].keys() - tensors.keys()
    extra = {name for name in extra if not _matches(name, recipe.ignore)}
    if extra:
        raise _mismatch(
            recipe,
            f"the anchor has {_summary(extra)}, which the model does not have",
            code="tensor-not-in-model",
        )
    chosen = {name: _first(name, names_of_parts.values()) for name in tensors}
    missing = {name for name, stored_name in chosen.items() if stored_name is None}
    if missing:
        raise _mismatch(
            recipe,
            f"the model has {_summary(missing)}, which the anchor does not have",
            code="tensor-not-in-anchor",
        )
    for name, tensor in tensors.items():
        stored_name = chosen[name]
        assert stored_name is not None
        shape = source.shapes[stored_name][0]
        if shape != tuple(tensor.shape):
            sizes = f"{name} is {list(shape)} in the anchor and {list(tensor.shape)} in the model"
            raise _mismatch(recipe, sizes, code="tensor-shape-mismatch")
    for name, tensor in tensors.items():
        source.read(str(chosen[name]), tensor)


def _default_part(source: TensorSource, tensors: Mapping[str, Any]) -> str:
    complete = (
        part for part in DEFAULT_PARTS if _tensors_of_part(source, part).keys() >= tensors.keys()
    )
    present = (part for part in DEFAULT_PARTS if _tensors_of_part(source, part))
    return next(complete, next(present, ""))


def _tensors_of_part(source: TensorSource, part: str) -> dict[str, str]:
    """Names of the tensors of a part in the model, with their names in the anchor."""
    prefix = f"{part}." if part else ""
    names = {}
    for name in source.shapes:
        if name.startswith(prefix):
            bare = name.removeprefix(prefix)
            while bare.startswith(WRAPPERS):
                bare = bare.partition(".")[2]
            names[bare] = name
    return names


def _first(name: str, parts: Iterable[Mapping[str, str]]) -> str | None:
    return next((part[name] for part in parts if name in part), None)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _mismatch(recipe: ModelOptions, reason: str, *, code: str) -> PublishFailed:
    return PublishFailed(
        f"the anchor does not match the model of {recipe.factory}: {reason}", code=code
    )


def _summary(names: set[str]) -> str:
    first = min(names)
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"


def _parts(source: TensorSource) -> str:
    return ", ".join(sorted({name.partition(".")[0] for name in source.shapes})) or "no tensors"
