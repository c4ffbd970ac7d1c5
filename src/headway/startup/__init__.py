"""Shorten the start of a job: parallel stages, a fast batch, and less communication."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headway.startup import process_groups as process_groups
    from headway.startup import sharding as sharding
    from headway.startup.batch_schema import Schema as Schema
    from headway.startup.batches import fast_batch as fast_batch
    from headway.startup.batches import recording as recording
    from headway.startup.compile_ahead import CompileAhead as CompileAhead
    from headway.startup.stages import Stages as Stages

_WHERE = {
    "CompileAhead": "headway.startup.compile_ahead",
    "Schema": "headway.startup.batch_schema",
    "Stages": "headway.startup.stages",
    "fast_batch": "headway.startup.batches",
    "recording": "headway.startup.batches",
}

__all__ = [
    "CompileAhead",
    "Schema",
    "Stages",
    "fast_batch",
    "process_groups",
    "recording",
    "sharding",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headway.startup' has no attribute {name!r}")
    import importlib

    if name not in _WHERE:
        return importlib.import_module(f"headway.startup.{name}")
    return getattr(importlib.import_module(_WHERE[name]), name)
