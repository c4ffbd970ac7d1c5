"""Waits for data: every `next()` of every torch DataLoader, and the making of its iterator."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from types import ModuleType
from typing import Any

from headway.probe import pace
from headway.probe.hooks import wrap
from headway.probe.recorder import guard, recorder


def install_dataloader(dataloader: ModuleType) -> None:
    """torch.utils.data.dataloader"""
    base = dataloader._BaseDataLoaderIter
    base.__next__ = pace.timed_fetch(base.__next__)
    wrap(dataloader.DataLoader, "__iter__", _make_iterator)


def _make_iterator(original: Callable[..., Any], self: Any) -> Any:
    """Workers are started here; what that takes is part of the wait."""
    guard("data", recorder.start)
    start = monotonic_ns()
    made = original(self)
    guard("data", pace.note_new_iterator, start, monotonic_ns())
    return made
