"""Publish eviction costs to a file: JSON, or a Prometheus textfile.

Ray uses this publisher: it has no field for an eviction cost, and its Jobs API accepts metadata
only when a job is submitted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headway.errors import SchedulerUpdateFailed, UsageError
from headway.eviction_cost import EvictionCost
from headway.schedule.publishers.base import RunCost

if TYPE_CHECKING:
    from headway.schedule.publishers.api import Api

Labels = dict[str, str]


class MetricFamily(NamedTuple):
    """A metric with its samples, in the shape of headway.export.openmetrics."""

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


TEXTFILE = ".prom"


class FilePublisher:
    """All runs in one file, which is replaced as a whole; `page` writes it for Prometheus."""

    def __init__(
        self, path: Path, page: Callable[[Sequence[RunCost]], str], *, dry: bool = False
    ) -> None:
        self.path, self.page, self.dry = path, page, dry

    def tell(self, offers: list[RunCost]) -> list[str]:
        """Write what there is now: a run that is over has no price in it."""
        going = [one for one in offers if one.price is not None]
        text = self.page(going) if self.path.suffix == TEXTFILE else _to_json(offers)
        if self.dry:
            return [f"would write {self.path}: {' '.join(text.split())}"]
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            aside.write_text(text)
            os.replace(aside, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise SchedulerUpdateFailed(
                f"cannot write {self.path}: {error.strerror}", code="file-unwritable"
            ) from None
        return []


def _to_json(offers: Sequence[RunCost]) -> str:
    told = [asdict(one) for one in offers]
    return json.dumps({"schema": 1, "runs": told}, indent=1) + "\n"


FINISHED_STATES = ("STOPPED", "SUCCEEDED", "FAILED")
_RAY_JOB = re.compile(r"[\w.-]{1,200}")


class RayPublisher:
    """One run, and the job of Ray that it is."""

    def __init__(self, api: Api, job: str, file: FilePublisher) -> None:
        if not _RAY_JOB.fullmatch(job):
            raise UsageError(
                f"{job!r} is no job of Ray; give what `ray job list` shows", code="job-id-invalid"
            )
        self.api, self.job, self.file = api, job, file

    def tell(self, offers: list[RunCost]) -> Iterable[str]:
        """With the job's name; without a price where Ray says that it has ended."""
        if len({one.run for one in offers}) > 1:
            raise UsageError(
                "--to ray is for one run; name it instead of the folder of several",
                code="several-runs",
            )
        found = self.api.get(f"/api/jobs/{self.job}")
        if found is None and any(one.price is not None for one in offers):
            raise SchedulerUpdateFailed(
                f"Ray knows no job {self.job}; give another one by --job",
                code="job-not-found",
                job=self.job,
            )
        over = found is None or found.get("status") in FINISHED_STATES
        named = [replace(one, job=self.job) for one in offers]
        return self.file.tell([replace(one, price=None) if over else one for one in named])
