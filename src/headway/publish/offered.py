"""The targets that there are: Headway's own, and those of the user's packages."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from headway.errors import UsageError

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
    known = {
        one.name: one.value for one in entry_points(group=ENTRY_POINT_GROUP)
    } | BUILT_IN_TARGETS
    if name not in known:
        raise UsageError(
            f"there is no target {name!r}; there are {', '.join(sorted(known))}",
            code="target-unknown",
            target=name,
            known=sorted(known),
        )
    return known[name]
