"""Targets: the forms in which a model is served, and how they are found.

A package can offer a target by an entry point of the group `headway.targets`: a class that is
called with the options of its recipe section and returns a `Target`. This module does not import
torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headway.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from headway.publish.golden import GoldenInputs

ENTRY_POINT_GROUP = "headway.targets"
BUILT_IN_TARGETS = {
    "safetensors": "headway.publish.targets.weights:Weights",
    "aoti": "headway.publish.targets.aoti:Aoti",
    "onnx": "headway.publish.targets.onnx:Onnx",
}
WEIGHTS, CONFIG = "weights.safetensors", "config.json"  # in every snapshot


def check_target_options(name: str, options: Mapping[str, Any]) -> None:
    """Check the options of a target in a recipe, as far as possible without torch."""
    target_class(name)
    if name not in BUILT_IN_TARGETS:
        return
    for key, value in options.items():
        if key != "tolerance":
            raise UsageError(
                f"[targets.{name}] has the unknown option {key}",
                code="target-option-unknown",
            )
        if not isinstance(value, (int, float)) or value < 0:
            raise UsageError(
                f"[targets.{name}] tolerance is {value!r}, but it must be a number, 0 or more",
                code="target-tolerance-invalid",
            )


def target_class(name: str) -> str:
    """`module:class` of a target; UsageError if there is none with this name."""
    targets = {
        entry.name: entry.value for entry in entry_points(group=ENTRY_POINT_GROUP)
    } | BUILT_IN_TARGETS
    if name not in targets:
        raise UsageError(
            f"there is no target {name!r}; there are {', '.join(sorted(targets))}",
            code="target-unknown",
            target=name,
            known=sorted(targets),
        )
    return targets[name]


class Packages(Protocol):
    """Compiled code, by the signature of its input."""

    def get(self, signature: str, path: Path) -> bool:
        """Write the code to a path, if it exists."""

    def put(self, signature: str, path: Path) -> None:
        """Remember newly compiled code, for the store once it is validated."""


@dataclass(frozen=True)
class Work:
    """Input for making a target."""

    model: nn.Module
    inputs: GoldenInputs
    batch: bool  # the first dimension of every input is dynamic
    folder: Path  # output folder
    packages: Packages


@dataclass(frozen=True)
class SnapshotContent:
    """Content of a snapshot from which a target is opened."""

    files: Mapping[str, Path]
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    factory: Callable[..., nn.Module] | None


class Target(Protocol):
    """One form in which a model is served."""

    tolerance: float  # maximum difference of its outputs from those of the model

    def make(self, work: Work) -> list[str]:
        """Write its files, except weights and config, to a folder; return their names."""

    def open(self, content: SnapshotContent) -> Callable[..., Any]:
        """Return the callable that serves the model."""


def load_target(name: str, options: Mapping[str, Any]) -> Target:
    """Create a target; UsageError for an unknown name or option."""
    module, _, class_name = target_class(name).partition(":")
    try:
        target_type = getattr(importlib.import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the target {name} cannot be imported: {error}", code="target-not-importable"
        ) from None
    try:
        target: Target = target_type(**options)
    except TypeError as error:
        raise UsageError(
            f"[targets.{name}] has an unknown option: {error}",
            code="target-option-unknown",
        ) from None
    if not isinstance(target.tolerance, (int, float)) or target.tolerance < 0:
        raise UsageError(
            f"[targets.{name}] tolerance is {target.tolerance!r}, "
            "but it must be a number, 0 or more",
            code="target-tolerance-invalid",
        )
    return target
