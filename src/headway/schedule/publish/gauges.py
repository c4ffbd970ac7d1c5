"""The price as metrics: by run, and what it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headway.schedule.cost import EvictionCost

Labels = dict[str, str]


class MetricFamily(NamedTuple):
    """A metric with its samples, in the shape of headway.report.openmetrics."""

    name: str
    help: str
    samples: tuple[tuple[Labels, float], ...]
    unit: str = ""


def metric_families(prices: Iterable[tuple[Mapping[str, str], EvictionCost]]) -> list[MetricFamily]:
    """Each price with the labels that its samples have."""
    told = [(dict(labels), price) for labels, price in prices]
    return [
        MetricFamily(
            "headway_eviction_cost_accelerator_seconds",
            "Accelerator time that is lost if the run is evicted now.",
            tuple((labels, price.lost) for labels, price in told),
            "seconds",
        ),
        MetricFamily(
            "headway_unsaved_seconds",
            "Since the newest durable checkpoint, or since the attempt began.",
            tuple((labels, price.unsaved) for labels, price in told),
            "seconds",
        ),
        MetricFamily(
            "headway_accelerators",
            "Accelerators that the run holds.",
            tuple((labels, float(price.accelerators)) for labels, price in told),
        ),
    ]
