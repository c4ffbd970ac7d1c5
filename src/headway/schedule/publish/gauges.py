"""The price as metrics: by run, and what it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headway.schedule.cost import Price

Labels = dict[str, str]


class Family(NamedTuple):
    """A metric with its samples, in the shape of headway.report.openmetrics."""

    name: str
    help: str
    samples: tuple[tuple[Labels, float], ...]
    unit: str = ""


def families(prices: Iterable[tuple[Mapping[str, str], Price]]) -> list[Family]:
    """Each price with the labels that its samples have."""
    told = [(dict(labels), price) for labels, price in prices]
    return [
        Family(
            "headway_eviction_cost_accelerator_seconds",
            "Accelerator time that is lost if the run is evicted now.",
            tuple((labels, price.lost) for labels, price in told),
            "seconds",
        ),
        Family(
            "headway_unsaved_seconds",
            "Since the newest durable checkpoint, or since the attempt began.",
            tuple((labels, price.unsaved) for labels, price in told),
            "seconds",
        ),
        Family(
            "headway_accelerators",
            "Accelerators that the run holds.",
            tuple((labels, float(price.accelerators)) for labels, price in told),
        ),
    ]
