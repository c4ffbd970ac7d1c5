"""Checkpointing: saves in the background, restore, checkpoint intervals, position in the data."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headway.checkpoint import data as data
    from headway.checkpoint import interval as interval
    from headway.checkpoint import tuner as tuner
    from headway.checkpoint.checkpointer import Checkpointer as Checkpointer
    from headway.checkpoint.store.cleanup import Best as Best
    from headway.checkpoint.store.cleanup import Policy as Policy

_WHERE = {
    "Best": "headway.checkpoint.store.cleanup",
    "Checkpointer": "headway.checkpoint.checkpointer",
    "Policy": "headway.checkpoint.store.cleanup",
}

__all__ = [
    "Best",
    "Checkpointer",
    "Policy",
    "data",
    "interval",
    "tuner",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headway.checkpoint' has no attribute {name!r}")
    import importlib

    if name not in _WHERE:
        return importlib.import_module(f"headway.checkpoint.{name}")
    return getattr(importlib.import_module(_WHERE[name]), name)
