"""Metrics of a fleet: columns of queries that alert rules may name, and gauges for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from headway.fleet.queries.dimensions import Filter
from headway.fleet.queries.queries import build_query
from headway.fleet.store.parquet import Store
from headway.fleet.store.postgres import Database
from headway.fleet.store.reader import run_query
from headway.units import format_duration


class AlertMetric(NamedTuple):
    """A column of a query. Units are seconds and percent."""

    query: str
    column: str
    unit: str
    label: str

    def text(self, value: float) -> str:
        """A value for people."""
        if self.unit == "s":
            return format_duration(round(value, 1))
        return f"{value:.1f} %" if self.unit == "%" else f"{value:,g}"


ALERT_METRICS = {
    "ett": AlertMetric("ett", "ett_percent", "%", "ETT"),
    "ett_by_jobs": AlertMetric("ett", "ett_percent_by_jobs", "%", "ETT by jobs"),
    "idleness": AlertMetric("ett", "idleness_percent", "%", "idleness"),
    "failure": AlertMetric("ett", "failure_percent", "%", "failure"),
    "jobs": AlertMetric("ett", "jobs", "", "jobs"),
    "accelerator_hours": AlertMetric("ett", "accelerator_hours", "", "accelerator-hours"),
    "tts": AlertMetric("tts", "tts_s", "s", "mean TTS"),
    "tts_p50": AlertMetric("tts", "tts_p50_s", "s", "TTS p50"),
    "tts_p90": AlertMetric("tts", "tts_p90_s", "s", "TTS p90"),
    "never_trained": AlertMetric("tts", "never_trained", "", "runs that never trained"),
    "ttr": AlertMetric("ttr", "ttr_s", "s", "mean TTR"),
    "ttr_p50": AlertMetric("ttr", "ttr_p50_s", "s", "TTR p50"),
    "ttr_p90": AlertMetric("ttr", "ttr_p90_s", "s", "TTR p90"),
    "interruptions": AlertMetric("ttr", "interruptions", "", "interruptions"),
    "failures": AlertMetric("failures", "failures", "", "infrastructure failures"),
    "failures_user": AlertMetric("failures", "failures_user", "", "user failures"),
    "failures_scheduler": AlertMetric("failures", "failures_scheduler", "", "scheduler failures"),
    "failures_ambiguous": AlertMetric("failures", "failures_ambiguous", "", "ambiguous failures"),
    "checkpoint_blocked": AlertMetric("checkpoints", "blocked_s", "s", "mean blocking per save"),
    "checkpoint_blocked_p90": AlertMetric(
        "checkpoints", "blocked_p90_s", "s", "blocking per save p90"
    ),
    "checkpoints_failed": AlertMetric("checkpoints", "failed", "", "failed saves"),
    "recompiles": AlertMetric("compile", "recompiles", "", "recompiles"),
}


SINCE = timedelta(hours=24)
BY = ("team", "model")
Rows = Sequence[Mapping[str, Any]]


class GaugeDef(NamedTuple):
    """A metric: the column of a query that it reads, and its labels."""

    name: str
    help: str
    query: str
    column: str
    dimensions: tuple[str, ...] = ()  # of the query, besides those of runs
    constant_labels: tuple[tuple[str, str], ...] = ()
    unit: str = ""
    factor: float = 1.0


def _shares(side: str, text: str) -> Iterator[GaugeDef]:
    for weight, column in (("accelerators", ""), ("jobs", "_by_jobs")):
        name = f"headway_fleet_{side}_percent"
        labels = (("weight", weight),)
        yield GaugeDef(name, text, "ett", f"{side}_percent{column}", (), labels, "percent")


def _times(name: str, text: str, query: str, column: str) -> Iterator[GaugeDef]:
    for quantile, part in (("0.5", "p50"), ("0.9", "p90")):
        labels = (("quantile", quantile),)
        full = f"headway_fleet_{name}_seconds"
        yield GaugeDef(full, text, query, f"{column}_{part}_s", (), labels, "seconds")


GAUGES = (
    *_shares(
        "ett",
        "Effective training time as a share of wall time, weighted by accelerators or by jobs.",
    ),
    *_shares("idleness", "Start, waste, stop and unknown as a share of wall time."),
    *_shares("failure", "Lost training, hangs and recovery as a share of wall time."),
    GaugeDef("headway_fleet_jobs", "Runs with wall time in the window.", "ett", "jobs"),
    GaugeDef(
        "headway_fleet_accelerator_seconds",
        "Accelerator time.",
        "ett",
        "accelerator_hours",
        unit="seconds",
        factor=3600.0,
    ),
    GaugeDef(
        "headway_fleet_lost_accelerator_seconds",
        "Accelerator time that was not training, by bucket.",
        "top",
        "accelerator_hours",
        ("leaf",),
        unit="seconds",
        factor=3600.0,
    ),
    *_times("time_to_start", "Time from allocation to the start of training.", "tts", "tts"),
    GaugeDef("headway_fleet_never_trained", "Runs that never trained.", "tts", "never_trained"),
    *_times("time_to_recover", "Time from the last progress to training again.", "ttr", "ttr"),
    GaugeDef(
        "headway_fleet_failures",
        "Failures by category and owner; the published number of failures counts owner infra.",
        "failures",
        "failures_all",
        ("category", "owner"),
    ),
    GaugeDef(
        "headway_fleet_checkpoint_blocked_seconds",
        "Mean time that a save blocks training, by level.",
        "checkpoints",
        "blocked_s",
        ("level",),
        unit="seconds",
    ),
)


class Family(NamedTuple):
    """A metric with its samples, as headway.export.openmetrics formats it."""

    name: str
    help: str
    samples: tuple[tuple[dict[str, str], float], ...]
    unit: str


class Window(NamedTuple):
    """Time range, grouping and run conditions of the metrics."""

    since: timedelta = SINCE
    by: tuple[str, ...] = BY
    where: tuple[tuple[str, str], ...] = ()


def families(store: Store | Database, window: Window, now: datetime) -> list[Family]:
    """All metrics; `now` is UTC without a time zone. Each query runs once for all its metrics."""
    since = now - window.since
    results: dict[tuple[str, tuple[str, ...]], Rows] = {}
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for gauge in GAUGES:
        key = (gauge.query, (*window.by, *gauge.dimensions))
        if key not in results:
            results[key] = _query_rows(store, gauge.query, Filter(key[1], since, now, window.where))
        samples.setdefault(gauge.name, []).extend(_samples(gauge, results[key], window.by))
    metric_families = []
    for gauge in {gauge.name: gauge for gauge in GAUGES}.values():
        metric_families.append(
            Family(gauge.name, gauge.help, tuple(samples[gauge.name]), gauge.unit)
        )
    at = now.replace(tzinfo=UTC).timestamp()
    description = "Time when the store was read, in seconds since the epoch."
    metric_families.append(
        Family("headway_fleet_read_time_seconds", description, (({}, at),), "seconds")
    )
    return metric_families


def _query_rows(store: Store | Database, name: str, filter_: Filter) -> Rows:
    query_fn = build_query(name, filter_)
    if isinstance(store, Store):
        result = run_query(store, query_fn, since=filter_.since, until=filter_.until)
    else:
        result = store.query(query_fn)
    rows: Rows = result.rows.to_pylist()
    return rows


def _samples(
    gauge: GaugeDef, rows: Rows, by: Sequence[str]
) -> Iterator[tuple[dict[str, str], float]]:
    for row in rows:
        value = row[gauge.column]
        if value is not None:
            labels = {name: str(row[name] or "") for name in (*by, *gauge.dimensions)}
            yield {**labels, **dict(gauge.constant_labels)}, float(value) * gauge.factor
