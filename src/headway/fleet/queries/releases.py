"""Releases of a store in order of first use, with the stages of their starts and their losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.fleet.queries import pages
from headway.fleet.queries.queries import build_query
from headway.ledger.buckets import BUCKETS
from headway.report.waterfall import START_BUCKETS, Bar, by_stage

if TYPE_CHECKING:
    from headway.fleet.queries.dimensions import Filter
    from headway.fleet.store.reader import QueryFn


RELEASES = ("torch", "image", "code", "headway", "week", "month")


class Release(NamedTuple):
    """Runs of one release that trained; times are in seconds."""

    name: Any  # text, or the start of a week or month
    first: datetime  # start of its first run
    runs: int
    mean: float
    median: float
    p90: float
    stages: Mapping[str, float]  # mean of each stage and of the rest; they sum to `mean`


def releases(
    run_query: Callable[[QueryFn], list[dict[str, Any]]], filter_: Filter, release: str
) -> list[Release]:
    """The most recent releases, by a column of `runs` or by week or month."""
    filter_ = filter_._replace(by=(release,))
    rows = run_query(pages.release_starts(filter_, release))[::-1]
    seconds: dict[Any, dict[str, float]] = {}
    for row in run_query(pages.start_stages(filter_, START_BUCKETS, release)):
        seconds.setdefault(row[release], {})[row["leaf"]] = row["seconds"]
    return [
        Release(
            name=row[release],
            first=row["first"],
            runs=row["jobs"],
            mean=row["tts_s_by_jobs"],
            median=row["tts_p50_s"],
            p90=row["tts_p90_s"],
            stages=by_stage(
                {
                    bucket: sec / row["jobs"]
                    for bucket, sec in seconds.get(row[release], {}).items()
                },
                row["tts_s_by_jobs"],
            ),
        )
        for row in rows
    ]


def release_bars(
    run_query: Callable[[QueryFn], list[dict[str, Any]]], filter_: Filter, release: str
) -> list[Bar]:
    """Releases as bars of a waterfall, with lost time weighted by accelerator-hours."""
    lost: dict[Any, dict[str, float]] = {}
    for row in run_query(build_query("top", filter_._replace(by=(release, "leaf")))):
        lost.setdefault(row[release], {})[row["leaf"]] = row["percent"]
    ett = {
        row[release]: row["ett_percent"]
        for row in run_query(build_query("ett", filter_._replace(by=(release,))))
    }
    return [
        Bar(
            name=f"{entry.name:%Y-%m-%d}" if isinstance(entry.name, datetime) else str(entry.name),
            runs=entry.runs,
            time_to_start=entry.mean,
            start=entry.stages,
            ett_percent=ett.get(entry.name, 0.0),
            lost={
                bucket: lost[entry.name][bucket]
                for bucket in BUCKETS
                if bucket in lost.get(entry.name, {})
            },
        )
        for entry in releases(run_query, filter_, release)
    ]
