"""The weights as safetensors, and their config: the files that every snapshot has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from headway.errors import SnapshotDamaged, UsageError
from headway.publish import tables
from headway.publish.failures import describe_error
from headway.publish.model import build_without_init
from headway.publish.targets.base import SnapshotContent, Work


@dataclass(frozen=True)
class Weights:
    """Served by the code of the model, which must be installed where it is served."""

    tolerance: float = 1e-5

    def make(self, work: Work) -> list[str]:
        """No files besides weights and config."""
        return []

    def open(self, content: SnapshotContent) -> Callable[..., Any]:
        """Build the model with the factory, with the weights mapped from the file."""
        if content.factory is None:
            raise UsageError(
                "the weights need the factory of their model: load(..., factory=build)",
                code="factory-not-given",
            )
        try:
            model: nn.Module = build_without_init(content.factory, content.config["arguments"])
        except Exception as error:  # of the user's code
            raise UsageError(
                f"the factory cannot build the model: {describe_error(error)}",
                code="model-not-built",
            ) from error
        try:
            tables.rebuild(model, content.config["tables"], content.weights)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotDamaged(
                f"the tables do not match the model: {describe_error(error)}",
                code="tables-of-another-model",
            ) from None
        try:
            model.load_state_dict(dict(content.weights), assign=True)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise SnapshotDamaged(
                f"the weights do not match the model: {reason}", code="weights-of-another-model"
            ) from None
        return model.eval().requires_grad_(False)
