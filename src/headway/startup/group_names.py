"""Gives the next process group of a thread its name, and keeps it to its members.

torch names a group that only its members make by their ranks and by how many groups this rank has:
where ranks have made different ones before, the names differ, and the members wait for each other
for ever. And where the default group is bound to a device torch would split it, for which every
rank of the job is needed. It offers no argument for either.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from torch.distributed import distributed_c10d as c10d

from headway.errors import UsageError


class _NextGroup(threading.local):
    """What this thread is about to make."""

    name: str | None = None
    alone = False  # without the ranks that are no members


_next_group = _NextGroup()
_installed = False


@contextlib.contextmanager
def next_group_named(name: str, *, alone: bool) -> Iterator[None]:
    """What this thread makes meanwhile has this name; other threads are not touched."""
    _install_hooks()
    _next_group.name, _next_group.alone = name, alone
    try:
        yield
    finally:
        _next_group.name, _next_group.alone = None, False


def _install_hooks() -> None:
    global _installed
    if _installed:
        return
    hashed = getattr(c10d, "_hash_ranks_to_str", None)
    source = getattr(c10d, "_get_split_source", None)
    if hashed is None or source is None:
        raise UsageError(
            "this torch names its process groups otherwise: use new_group instead",
            code="torch-not-supported",
        )

    def hash_ranks(ranks: Any) -> str:
        return _next_group.name or hashed(ranks)

    def split_source(pg: Any) -> Any:
        return None if _next_group.alone else source(pg)

    c10d._hash_ranks_to_str = hash_ranks
    c10d._get_split_source = split_source
    _installed = True
