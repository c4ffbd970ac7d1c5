"""Scan a store for change points of slices, lemon nodes and running jobs that fell behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headway.fleet.regressions.findings import Finding, ScanOptions, find
from headway.fleet.regressions.hosts import Lemon, find_lemons
from headway.fleet.regressions.load import (
    Jobs,
    control_fields,
    read_hosts,
    read_jobs,
    read_paces,
    read_shares,
)
from headway.fleet.regressions.running import Alarm, expected_share, watch_running

if TYPE_CHECKING:
    from headway.fleet.queries.dimensions import Filter
    from headway.fleet.store.parquet import Store


@dataclass(frozen=True)
class ScanResult:
    """The result of a scan."""

    findings: list[Finding]
    lemons: list[Lemon]
    alarms: list[Alarm]
    slices: int
    jobs: int
    now: float
    notes: tuple[str, ...]


def scan(
    store: Store, filter_: Filter, options: ScanOptions, progress: Callable[[int, int], None]
) -> ScanResult:
    """Run all detectors; `progress` receives the slices done and their total."""
    jobs = read_jobs(store, filter_)
    slices = jobs.by_slice()
    options = replace(options, control_fields=control_fields(filter_))
    findings = find(slices, jobs.now, options, lambda done: progress(done, len(slices)))
    hosts = read_hosts(store, filter_)
    return ScanResult(
        findings=findings,
        lemons=find_lemons(hosts.names, hosts.failures, hosts.hours, options.fdr),
        alarms=_running_alarms(store, filter_, jobs),
        slices=len(slices),
        jobs=int(jobs.run_ids.size),
        now=jobs.now,
        notes=jobs.notes,
    )


def _running_alarms(store: Store, filter_: Filter, jobs: Jobs) -> list[Alarm]:
    slices = {
        str(jobs.run_ids[i]): tuple(map(str, jobs.slices[i]))
        for i in np.flatnonzero(jobs.series.running)
    }
    if not slices:
        return []
    expectations = {series.slice: expected_share(series) for series in jobs.by_slice()}
    runs = list(slices)
    shares, paces = read_shares(store, runs, filter_), read_paces(store, runs, filter_)
    return watch_running(shares, paces, slices, expectations)
