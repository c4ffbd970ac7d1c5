"""Waits for data: every `next()` of every torch DataLoader, and the making of its iterator."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from types import ModuleType
from typing import Any

from headway.probe import pace
from headway.probe.hooks import wrap
from headway.probe.recorder import guard, recorder


def install(dataloader: ModuleType) -> None:
    """torch.utils.data.dataloader"""
    base = dataloader._BaseDataLoaderIter
    base.__next__ = pace.watched(base.__next__)
    wrap(dataloader.DataLoader, "__iter__", _iter)


def _iter(original: Callable[..., Any], self: Any) -> Any:
    """Workers are started here; what that takes is part of the wait."""
    guard("data", recorder.start)
    start = monotonic_ns()
    made = original(self)
    guard("data", pace.made_iterator, start, monotonic_ns())
    return made
