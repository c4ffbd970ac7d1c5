"""Headway: measure and raise the effective training time of PyTorch jobs.

Importing this package imports no other module: public names are imported at first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` takes 5 ms in every interpreter of a job
__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from headway import compile as compile
    from headway import startup as startup
    from headway.run import Run as Run
    from headway.run import load as load
    from headway.sdk import on_preempt as on_preempt
    from headway.sdk import progress as progress
    from headway.sdk import span as span
    from headway.sdk import stage as stage
    from headway.sdk import step as step
    from headway.sdk import track as track

_WHERE = {
    "Run": "headway.run",
    "load": "headway.run",
    "on_preempt": "headway.sdk",
    "progress": "headway.sdk",
    "span": "headway.sdk",
    "stage": "headway.sdk",
    "step": "headway.sdk",
    "track": "headway.sdk",
}

__all__ = [
    "Run",
    "__version__",
    "compile",
    "load",
    "on_preempt",
    "progress",
    "span",
    "stage",
    "startup",
    "step",
    "track",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    import importlib

    if name not in _WHERE:
        return importlib.import_module(f"headway.{name}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
