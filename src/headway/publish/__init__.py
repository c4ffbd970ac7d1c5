"""Publish anchor checkpoints as inference-ready snapshots, in a separate job on any CPU."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headway.publish.loading import load as load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headway.publish' has no attribute {name!r}")
    from headway.publish.loading import load

    return load
