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
TEXTFILE = ".prom"
FINISHED_STATES = ("STOPPED", "SUCCEEDED", "FAILED")
_RAY_JOB = re.compile(r"[\w.-]{1,200}")


class MetricFamily(NamedTuple):
    """A metric with its samples, with the fields of headway.export.openmetrics."""

    name: str
    help: str
    samples: tuple[tuple[Labels, float], ...]
    unit: str = ""


def metric_families(costs: Iterable[tuple[Mapping[str, str], EvictionCost]]) -> list[MetricFamily]:
    """Metrics of costs with their labels."""
    labeled = [(dict(labels), cost) for labels, cost in costs]
    return [
        MetricFamily(
            "headway_eviction_cost_accelerator_seconds",
            "Accelerator time lost if the run is evicted now.",
            tuple((labels, cost.lost) for labels, cost in labeled),
            "seconds",
        ),
        MetricFamily(
            "headway_unsaved_seconds",
            "Time since the newest durable checkpoint, or since the attempt began.",
            tuple((labels, cost.unsaved) for labels, cost in labeled),
            "seconds",
        ),
        MetricFamily(
            "headway_accelerators",
            "Accelerators that the run holds.",
            tuple((labels, float(cost.accelerators)) for labels, cost in labeled),
        ),
    ]


class FilePublisher:
    """Writes all runs to one file, replaced atomically; `format_metrics` formats a .prom file."""

    def __init__(
        self,
        path: Path,
        format_metrics: Callable[[Sequence[RunCost]], str],
        *,
        dry_run: bool = False,
    ) -> None:
        self.path, self.format_metrics, self.dry_run = path, format_metrics, dry_run

    def publish(self, costs: list[RunCost]) -> list[str]:
        active = [cost for cost in costs if cost.price is not None]
        text = self.format_metrics(active) if self.path.suffix == TEXTFILE else _to_json(costs)
        if self.dry_run:
            return [f"would write {self.path}: {' '.join(text.split())}"]
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            temporary.write_text(text)
            os.replace(temporary, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise SchedulerUpdateFailed(
                f"cannot write {self.path}: {error.strerror}", code="file-unwritable"
            ) from None
        return []


def _to_json(costs: Sequence[RunCost]) -> str:
    rows = [asdict(cost) for cost in costs]
    return json.dumps({"schema": 1, "runs": rows}, indent=1) + "\n"


class RayPublisher:
    """Publishes one run with the name of its Ray job."""

    def __init__(self, api: Api, job: str, file: FilePublisher) -> None:
        if not _RAY_JOB.fullmatch(job):
            raise UsageError(f"{job!r} is not a Ray job; see `ray job list`", code="job-id-invalid")
        self.api, self.job, self.file = api, job, file

    def publish(self, costs: list[RunCost]) -> Iterable[str]:
        """Write the cost, or none once Ray reports the job as finished."""
        if len({cost.run for cost in costs}) > 1:
            raise UsageError(
                "--to ray publishes one run; give its folder instead of a folder of several runs",
                code="several-runs",
            )
        job_info = self.api.get(f"/api/jobs/{self.job}")
        if job_info is None and any(cost.price is not None for cost in costs):
            raise SchedulerUpdateFailed(
                f"Ray has no job {self.job}; give another one with --job",
                code="job-not-found",
                job=self.job,
            )
        is_finished = job_info is None or job_info.get("status") in FINISHED_STATES
        with_job = [replace(cost, job=self.job) for cost in costs]
        return self.file.publish(
            [replace(cost, price=None) if is_finished else cost for cost in with_job]
        )
