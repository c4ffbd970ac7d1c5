"""Targets: the forms in which a model is served, and how they are found.

A package offers one by an entry point of the group `headway.targets`: a class that is called with
the options of its recipe section and returns a `Target`. Importable without torch.
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


def check_target_options(name: str, options: Mapping[str, Any]) -> None:
    """What a recipe says of a target, as far as that is known without torch."""
    target_class(name)
    if name not in BUILT_IN_TARGETS:
        return
    for key, value in options.items():
        if key != "tolerance":
            raise UsageError(
                f"[targets.{name}] says something it does not know: {key}",
                code="target-option-unknown",
            )
        if not isinstance(value, (int, float)) or value < 0:
            raise UsageError(
                f"[targets.{name}] tolerance is {value!r}, not a number",
                code="target-tolerance-invalid",
            )


def target_class(name: str) -> str:
    """The module and class of a target; UsageError if there is none of that name."""
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


WEIGHTS, CONFIG = "weights.safetensors", "config.json"  # in every snapshot


class Packages(Protocol):
    """Code that was compiled once, by what it was compiled from."""

    def get(self, signature: str, path: Path) -> bool:
        """Put it there, if it is known."""

    def put(self, signature: str, path: Path) -> None:
        """Remember it once it has proven itself."""


@dataclass(frozen=True)
class Work:
    """What a target is made of."""

    model: nn.Module
    inputs: GoldenInputs
    batch: bool  # the first dimension of every input may change
    folder: Path  # its files go there
    packages: Packages


@dataclass(frozen=True)
class SnapshotContent:
    """What a target is opened from."""

    files: Mapping[str, Path]
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    factory: Callable[..., nn.Module] | None


class Target(Protocol):
    """One form in which a model is served."""

    tolerance: float  # how far its outputs may be from those of the model

    def make(self, work: Work) -> list[str]:
        """Write its files, other than weights and config, into a folder; their names."""

    def open(self, content: SnapshotContent) -> Callable[..., Any]:
        """What is called to serve."""


def load_target(name: str, options: Mapping[str, Any]) -> Target:
    """The target of that name; UsageError if there is none, or it knows no such option."""
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
            f"[targets.{name}] says something it does not know: {error}",
            code="target-option-unknown",
        ) from None
    if not isinstance(target.tolerance, (int, float)) or target.tolerance < 0:
        raise UsageError(
            f"[targets.{name}] tolerance is {target.tolerance!r}, not a number",
            code="target-tolerance-invalid",
        )
    return target
