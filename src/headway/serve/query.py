"""The query string of a page: time range, filters, grouping, sorting."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple
from urllib.parse import urlencode

from headway.errors import UsageError
from headway.fleet.queries.dimensions import RUN_DIMENSIONS, Filter
from headway.fleet.queries.pages import SORTS
from headway.fleet.queries.releases import RELEASES
from headway.serve.cache import StoreSummary
from headway.units import parse_time

MAX_VALUE_LENGTH = 200
# Fields of runs that every page can filter by, and fields to group by.
FILTERS = ("team", "model", "cluster", "accelerator", "torch")
SPLITS = (*FILTERS, "host_type", "image", "user", "job")
AGES = {"1d": "1 day", "7d": "7 days", "30d": "30 days", "90d": "90 days", "52w": "1 year"}


_PAGE_PARAMETERS = (
    "since",
    "until",
    "by",
    "q",
    "sort",
    "page",
    "release",
    "category",
    "host",
    "outcome",
)
PARAMETERS = (*_PAGE_PARAMETERS, *RUN_DIMENSIONS)


class BadQuery(UsageError):
    """A value in the query string is invalid."""


class PageQuery(NamedTuple):
    """The known parameters of a query string, each at most once."""

    parameters: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> PageQuery:
        """Parse and check the parameters; raises BadQuery."""
        known = []
        for name in PARAMETERS:
            value = parameters.get(name, "").strip()
            if len(value) > MAX_VALUE_LENGTH:
                raise BadQuery(
                    f"{name} has more than {MAX_VALUE_LENGTH} characters", code="value-too-long"
                )
            if value:
                known.append((name, value))
        query = cls(tuple(known))
        query.check()
        return query

    def check(self) -> None:
        """Raise BadQuery for an unknown grouping, order, page or time."""
        by, release = self.get("by"), self.get("release")
        if by and by not in SPLITS:
            raise BadQuery(
                f"cannot split by {by!r}; use one of {', '.join(SPLITS)}",
                code="split-unknown",
            )
        if release and release not in RELEASES:
            raise BadQuery(
                f"there is no release {release!r}; use one of {', '.join(RELEASES)}",
                code="release-unknown",
            )
        if self.get("sort", SORTS[0]) not in SORTS:
            raise BadQuery(
                f"there is no order {self.get('sort')!r}; use one of {', '.join(SORTS)}",
                code="order-unknown",
            )
        if not (self.get("page", "1").isascii() and self.get("page", "1").isdecimal()):
            raise BadQuery(
                f"page must be a number from 1, not {self.get('page')!r}", code="page-invalid"
            )
        try:
            self.time_range(StoreSummary(None, None, 0, 0))
        except UsageError as error:
            raise BadQuery(str(error), code=error.code) from None

    def get(self, name: str, default: str = "") -> str:
        return dict(self.parameters).get(name, default)

    @property
    def page(self) -> int:
        """The page number, from 1."""
        return min(max(int(self.get("page", "1")), 1), 1_000_000)

    @property
    def where(self) -> tuple[tuple[str, str], ...]:
        """Conditions on fields of runs."""
        return tuple((name, value) for name, value in self.parameters if name in RUN_DIMENSIONS)

    def time_range(self, summary: StoreSummary) -> tuple[datetime | None, datetime | None]:
        """Start and end; ages are relative to the newest run in the store."""
        now = (summary.last or datetime(2000, 1, 1)) + timedelta(seconds=1)
        return parse_time(self.get("since") or None, now), parse_time(
            self.get("until") or None, now
        )

    def to_filter(self, summary: StoreSummary, *by: str, limit: int | None = None) -> Filter:
        """As a filter for fleet queries."""
        return Filter(by, *self.time_range(summary), self.where, limit)

    def period(self, summary: StoreSummary) -> str:
        """The time unit that gives a chart a few dozen points."""
        if summary.first is None or summary.last is None:
            return "day"
        since, until = self.time_range(summary)
        span = (until or summary.last) - max(since or summary.first, summary.first)
        days = span.total_seconds() / 86400
        factor = 6 if self.get("by") else 1  # smaller slices are noisier
        return "hour" if days * factor <= 3 else "day" if days * factor <= 120 else "week"

    def only(self, *names: str) -> PageQuery:
        """A query with these parameters only."""
        return PageQuery(tuple(pair for pair in self.parameters if pair[0] in names))

    def with_(self, **changes: str) -> PageQuery:
        """A query with changed values; an empty value removes the parameter."""
        merged = dict(self.parameters) | changes
        return PageQuery(tuple((name, merged[name]) for name in PARAMETERS if merged.get(name)))

    @property
    def query_string(self) -> str:
        """Encoded for a URL, with the leading question mark."""
        return f"?{urlencode(self.parameters)}" if self.parameters else ""
