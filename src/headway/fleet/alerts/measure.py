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
    """Seconds of a stretch of time in which it was not kept, and when they began."""

    seconds: float
    since: float | None


def budget_use(hours: Mapping[float, bool], now: float, over: float) -> BudgetUse:
    """Over the time before `now`, given the hours of which something is known."""
    begin, total, since = now - over, 0.0, None
    hour = begin // HOUR * HOUR
    while hour < now:
        if _is_bad(hours, hour, now):
            since = max(hour, begin) if since is None else since
            total += min(hour + HOUR, now) - max(hour, begin)
        hour += HOUR
    return BudgetUse(total, since)


def _is_bad(hours: Mapping[float, bool], hour: float, now: float) -> bool:
    """An hour of which nothing is known is bad between two bad ones, and while it is not over."""
    if hour in hours:
        return hours[hour]
    before = max((one for one in hours if one < hour), default=None)
    after = min((one for one in hours if one > hour), default=None)
    if before is None or not hours[before]:
        return False
    if after is None:
        return hour + HOUR > now and before == hour - HOUR
    return hours[after]


HOURLY_QUERIES = ("ett",)  # questions about whole hours
LOOKBACK_S = 24 * HOUR  # so far back is looked for the last hour of which something is known
ROUNDING_S = 1.0  # seconds, where parts of hours are summed
Rows = list[dict[str, Any]]


class Measurement:
    """One round of questions at one moment."""

    def __init__(self, store: Store, now: float) -> None:
        self._store, self._now = store, now
        self._kept: dict[object, Any] = {}

    def readings(self, rule: Rule) -> list[Sample]:
        """All slices of a rule."""
        if rule.kind == "change":
            return self._change(rule)
        return self._burn(rule) if rule.kind == "burn" else self._threshold(rule)

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def _rows(self, name: str, asked: Filter) -> Rows:
        def put() -> Rows:
            answer = run_query(
                self._store, lambda tables: QUERIES[name].build(tables, asked), since=asked.since
            )
            rows: Rows = answer.rows.to_pylist()
            return rows

        found: Rows = self._once((name, asked), put)
        return found

    def _threshold(self, rule: Rule) -> list[Sample]:
        begin = self._now - rule.over
        if rule.figure.query in HOURLY_QUERIES:
            begin = begin // HOUR * HOUR
        rows = self._rows(rule.figure.query, Filter(rule.by, utc_datetime(begin), None, rule.where))
        return [
            Sample(
                slice=_slice_of_row(rule, row),
                bad=rule.bad(value),
                text=f"{rule.figure.label} of {_slice_of_row(rule, row)} is "
                f"{rule.figure.text(value)} over the last {format_duration(rule.over)} "
                f"({row['jobs']:,} jobs); "
                f"{'' if rule.bad(value) else 'not '}{rule.limit}",
                value=value,
            )
            for row, value in _values(rule, rows)
        ]

    def _burn(self, rule: Rule) -> list[Sample]:
        begin = (self._now - rule.over - LOOKBACK_S) // HOUR * HOUR
        asked = Filter(("hour", *rule.by), utc_datetime(begin), None, rule.where)
        hours: dict[str, dict[float, bool]] = {}
        for row, value in _values(rule, self._rows(rule.figure.query, asked)):
            hours.setdefault(_slice_of_row(rule, row), {})[_epoch(row["hour"])] = rule.bad(value)
        found = []
        for where, known in hours.items():
            spent = budget_use(known, self._now, rule.over)
            found.append(
                Sample(
                    slice=where,
                    bad=spent.seconds >= rule.hold - ROUNDING_S,
                    text=f"{rule.figure.label} of {where} was {rule.limit} for "
                    f"{spent.seconds / HOUR:.1f} h of the last {format_duration(rule.over)}; "
                    f"{format_duration(rule.hold)} is the most",
                    since=spent.since,
                    value=spent.seconds,
                )
            )
        return found

    def _change(self, rule: Rule) -> list[Sample]:
        seen = self._look(rule)
        found: list[Sample] = []
        if "slices" in rule.of:
            found += _change_samples(rule, seen, self._now)
        if "running" in rule.of:
            found += _running_samples(rule, seen)
        if "hosts" in rule.of:
            found += _host_samples(seen)
        return found

    def _look(self, rule: Rule) -> ScanResult:
        from headway.fleet.regressions.findings import ScanOptions
        from headway.fleet.regressions.scan import scan

        # Whole days: rules that mean the same share one look.
        begin = (self._now - rule.history) // (24 * HOUR) * (24 * HOUR)
        asked = Filter(rule.by, utc_datetime(begin), None, rule.where)
        options = ScanOptions(level=rule.level, points=rule.points)
        seen: ScanResult = self._once(
            (asked, options), lambda: scan(self._store, asked, options, lambda done, of: None)
        )
        return seen


def measure_rules(
    store: Store, rules: Sequence[Rule], now: float
) -> tuple[dict[str, list[Sample] | None], list[str]]:
    """The answers by rule, None where there is none; and why there is none."""
    round_ = Measurement(store, now)
    found: dict[str, list[Sample] | None] = {}
    notes = []
    for rule in rules:
        try:
            found[rule.name] = round_.readings(rule)
        except Exception as error:  # the other rules hold all the same
            found[rule.name] = None
            why = (
                str(error)
                if isinstance(error, HeadwayError)
                else f"{type(error).__name__}: {error}"
            )
            notes.append(
                with_code(
                    f"the rule {rule.name!r} could not be looked at: {why}", code="rule-not-checked"
                )
            )
    return found, notes


def _values(rule: Rule, rows: Rows) -> list[tuple[dict[str, Any], float]]:
    """Rows that have a value, and enough jobs."""
    column = rule.figure.column
    return [
        (row, float(row[column]))
        for row in rows
        if row["jobs"] >= rule.least_jobs and row[column] is not None and isfinite(row[column])
    ]


def _slice_of_row(rule: Rule, row: Mapping[str, Any]) -> str:
    return _slice_name([*rule.where, *((name, row[name]) for name in rule.by)])


def _slice_name(parts: Sequence[tuple[str, object]]) -> str:
    return " ".join(f"{name}={value or '-'}" for name, value in dict(parts).items()) or "all"


def _slice_of_values(rule: Rule, values: Sequence[str]) -> str:
    return _slice_name([*rule.where, *zip(rule.by, values, strict=True)])


def _change_samples(rule: Rule, seen: ScanResult, now: float) -> list[Sample]:
    return [
        Sample(
            slice=_slice_of_values(rule, one.slice),
            bad=True,
            text=f"{one.bucket} {one.points:+.1f} points, ETT {one.ett_before:.1f} -> "
            f"{one.ett_after:.1f} in {_slice_of_values(rule, one.slice)}; "
            f"false discovery rate {one.level:.2%}"
            + "".join(f"; {f.field}: {f.before} -> {f.after}" for f in one.fields),
            since=one.at,
            value=one.points,
            moment=one.at,
        )
        for one in seen.findings
        if one.regression and one.at >= now - rule.over
    ]


def _running_samples(rule: Rule, seen: ScanResult) -> list[Sample]:
    return [
        Sample(
            slice=f"{_slice_of_values(rule, one.slice)} run={one.run_id}",
            bad=True,
            text=f"{one.run_id} runs and {one.words}; seen in its hour {one.hour}",
            value=100 * one.lately,
        )
        for one in seen.alarms
    ]


def _host_samples(seen: ScanResult) -> list[Sample]:
    return [
        Sample(
            slice=f"host={one.host}",
            bad=True,
            text=f"{one.failures} runs failed on {one.host} in {one.hours:,.0f} hours, "
            f"{one.expected:.1f} would be chance",
            value=float(one.failures),
        )
        for one in seen.lemons
    ]


def _epoch(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()
