"""Measure alert rules on a store: one sample per slice, each query run once for all rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.errors import HeadwayError, with_code
from headway.fleet.alerts.rules import Rule
from headway.fleet.alerts.state import Sample
from headway.fleet.queries.dimensions import Filter
from headway.fleet.queries.queries import QUERIES
from headway.fleet.store.arrow import utc_datetime
from headway.fleet.store.reader import run_query
from headway.units import format_duration

if TYPE_CHECKING:
    from headway.fleet.regressions.scan import ScanResult
    from headway.fleet.store.parquet import Store


HOUR = 3600.0


class BudgetUse(NamedTuple):
    """Seconds of violations within a time window, and the start of the first one."""

    seconds: float
    since: float | None


def budget_use(hours: Mapping[float, bool], now: float, over: float) -> BudgetUse:
    """Violations in the window before `now`, given the hours with data."""
    begin, total, since = now - over, 0.0, None
    hour = begin // HOUR * HOUR
    while hour < now:
        if _is_bad(hours, hour, now):
            since = max(hour, begin) if since is None else since
            total += min(hour + HOUR, now) - max(hour, begin)
        hour += HOUR
    return BudgetUse(total, since)


def _is_bad(hours: Mapping[float, bool], hour: float, now: float) -> bool:
    """An hour without data counts as a violation between two violations, and until it is over."""
    if hour in hours:
        return hours[hour]
    before = max((other for other in hours if other < hour), default=None)
    after = min((other for other in hours if other > hour), default=None)
    if before is None or not hours[before]:
        return False
    if after is None:
        return hour + HOUR > now and before == hour - HOUR
    return hours[after]


HOURLY_QUERIES = ("ett",)  # queries with hourly rows
LOOKBACK_S = 24 * HOUR  # how far before the window the last hour with data is searched
ROUNDING_S = 1.0  # tolerance for sums of partial hours
Rows = list[dict[str, Any]]


class Measurement:
    """One round of measurements at one moment."""

    def __init__(self, store: Store, now: float) -> None:
        self._store, self._now = store, now
        self._cache: dict[object, Any] = {}

    def samples(self, rule: Rule) -> list[Sample]:
        """One sample per slice of a rule."""
        if rule.kind == "change":
            return self._change(rule)
        return self._burn(rule) if rule.kind == "burn" else self._threshold(rule)

    def _cached(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def _rows(self, name: str, filter_: Filter) -> Rows:
        def query() -> Rows:
            result = run_query(
                self._store,
                lambda tables: QUERIES[name].build(tables, filter_),
                since=filter_.since,
            )
            rows: Rows = result.rows.to_pylist()
            return rows

        rows: Rows = self._cached((name, filter_), query)
        return rows

    def _threshold(self, rule: Rule) -> list[Sample]:
        begin = self._now - rule.window
        if rule.metric_def.query in HOURLY_QUERIES:
            begin = begin // HOUR * HOUR
        rows = self._rows(
            rule.metric_def.query, Filter(rule.by, utc_datetime(begin), None, rule.where)
        )
        return [
            Sample(
                slice=_slice_of_row(rule, row),
                is_bad=rule.is_violated(value),
                text=f"{rule.metric_def.label} of {_slice_of_row(rule, row)} is "
                f"{rule.metric_def.text(value)} over the last {format_duration(rule.window)} "
                f"({row['jobs']:,} jobs); "
                f"{'' if rule.is_violated(value) else 'not '}{rule.limit}",
                value=value,
            )
            for row, value in _values(rule, rows)
        ]

    def _burn(self, rule: Rule) -> list[Sample]:
        begin = (self._now - rule.window - LOOKBACK_S) // HOUR * HOUR
        filter_ = Filter(("hour", *rule.by), utc_datetime(begin), None, rule.where)
        hours: dict[str, dict[float, bool]] = {}
        for row, value in _values(rule, self._rows(rule.metric_def.query, filter_)):
            hours.setdefault(_slice_of_row(rule, row), {})[_epoch(row["hour"])] = rule.is_violated(
                value
            )
        samples = []
        for where, by_hour in hours.items():
            used = budget_use(by_hour, self._now, rule.window)
            samples.append(
                Sample(
                    slice=where,
                    is_bad=used.seconds >= rule.for_s - ROUNDING_S,
                    text=f"{rule.metric_def.label} of {where} was {rule.limit} for "
                    f"{used.seconds / HOUR:.1f} h of the last {format_duration(rule.window)}; "
                    f"{format_duration(rule.for_s)} is the limit",
                    since=used.since,
                    value=used.seconds,
                )
            )
        return samples

    def _change(self, rule: Rule) -> list[Sample]:
        result = self._scan(rule)
        samples: list[Sample] = []
        if "slices" in rule.of:
            samples += _change_samples(rule, result, self._now)
        if "running" in rule.of:
            samples += _running_samples(rule, result)
        if "hosts" in rule.of:
            samples += _host_samples(result)
        return samples

    def _scan(self, rule: Rule) -> ScanResult:
        from headway.fleet.regressions.findings import ScanOptions
        from headway.fleet.regressions.scan import scan

        # Begin at a full day, so that equal rules share one scan.
        begin = (self._now - rule.history) // (24 * HOUR) * (24 * HOUR)
        filter_ = Filter(rule.by, utc_datetime(begin), None, rule.where)
        options = ScanOptions(fdr=rule.fdr, min_change=rule.min_change)
        result: ScanResult = self._cached(
            (filter_, options), lambda: scan(self._store, filter_, options, lambda done, of: None)
        )
        return result


def measure_rules(
    store: Store, rules: Sequence[Rule], now: float
) -> tuple[dict[str, list[Sample] | None], list[str]]:
    """Samples by rule, None for a rule that failed, and a note for each failure."""
    measurement = Measurement(store, now)
    samples: dict[str, list[Sample] | None] = {}
    notes = []
    for rule in rules:
        try:
            samples[rule.name] = measurement.samples(rule)
        except Exception as error:  # other rules are still measured
            samples[rule.name] = None
            reason = (
                str(error)
                if isinstance(error, HeadwayError)
                else f"{type(error).__name__}: {error}"
            )
            notes.append(
                with_code(
                    f"the rule {rule.name!r} could not be measured: {reason}",
                    code="rule-not-checked",
                )
            )
    return samples, notes


def _values(rule: Rule, rows: Rows) -> list[tuple[dict[str, Any], float]]:
    """Rows with a value and enough jobs."""
    column = rule.metric_def.column
    return [
        (row, float(row[column]))
        for row in rows
        if row["jobs"] >= rule.min_jobs and row[column] is not None and isfinite(row[column])
    ]


def _slice_of_row(rule: Rule, row: Mapping[str, Any]) -> str:
    return _slice_name([*rule.where, *((name, row[name]) for name in rule.by)])


def _slice_name(parts: Sequence[tuple[str, object]]) -> str:
    return " ".join(f"{name}={value or '-'}" for name, value in dict(parts).items()) or "all"


def _slice_of_values(rule: Rule, values: Sequence[str]) -> str:
    return _slice_name([*rule.where, *zip(rule.by, values, strict=True)])


def _change_samples(rule: Rule, result: ScanResult, now: float) -> list[Sample]:
    return [
        Sample(
            slice=_slice_of_values(rule, finding.slice),
            is_bad=True,
            text=f"{finding.bucket} {finding.points:+.1f} points, ETT {finding.ett_before:.1f} -> "
            f"{finding.ett_after:.1f} in {_slice_of_values(rule, finding.slice)}; "
            f"false discovery rate {finding.level:.2%}"
            + "".join(f"; {f.field}: {f.before} -> {f.after}" for f in finding.fields),
            since=finding.at,
            value=finding.points,
            change_at=finding.at,
        )
        for finding in result.findings
        if finding.regression and finding.at >= now - rule.window
    ]


def _running_samples(rule: Rule, result: ScanResult) -> list[Sample]:
    return [
        Sample(
            slice=f"{_slice_of_values(rule, alarm.slice)} run={alarm.run_id}",
            is_bad=True,
            text=f"{alarm.run_id} {alarm.words}; detected in training hour {alarm.hour}",
            value=100 * alarm.lately,
        )
        for alarm in result.alarms
    ]


def _host_samples(result: ScanResult) -> list[Sample]:
    return [
        Sample(
            slice=f"host={lemon.host}",
            is_bad=True,
            text=f"{lemon.failures} runs failed on {lemon.host} in {lemon.hours:,.0f} hours; "
            f"{lemon.expected:.1f} expected by chance",
            value=float(lemon.failures),
        )
        for lemon in result.lemons
    ]


def _epoch(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()
