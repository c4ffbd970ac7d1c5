"""Nodes that go away for a while: faults, and spot machines that are taken back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outage:
    """A node is gone from `start` to `end`, and was told so `notice` seconds before."""

    node: int
    start: float
    end: float
    notice: float = 0.0
