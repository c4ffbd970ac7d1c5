"""Reduce compile time: a cache that jobs share, fewer recompiles, less autotuning.

with headway.compile.shared_cache("s3://team/compile", key="team.key"):
    train()
"""

from __future__ import annotations

TYPE_CHECKING = False  # parts of this package run in every process of a job, without typing
if TYPE_CHECKING:
    from typing import Any

    from headway.compile.cache.context import SharedCache as SharedCache
    from headway.compile.cache.context import shared_cache as shared_cache

__all__ = ["SharedCache", "shared_cache"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headway.compile' has no attribute {name!r}")
    from headway.compile.cache import context

    return getattr(context, name)
