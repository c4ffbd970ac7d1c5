"""Exports a ledger as CSV: one row per segment of the run and of each rank."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from headway.ledger.model import Ledger, segments_by_attempt
from headway.ledger.segments import Segment
from headway.units import NS

HEADER = ("rank", "attempt", "start_s", "end_s", "leaf")


def csv_lines(ledger: Ledger) -> Iterator[str]:
    """Yield the CSV text by line; the rank of the run's own segments is `run`."""
    yield _line(HEADER)
    yield from _track(ledger, "run", ledger.segments)
    for rank in ledger.ranks:
        yield from _track(ledger, str(rank.rank), rank.segments)


def _track(ledger: Ledger, name: str, segments: Sequence[Segment]) -> Iterator[str]:
    for attempt, s in segments_by_attempt(ledger, segments):
        yield _line((name, str(attempt), _seconds(s.start), _seconds(s.end), s.bucket))


def _seconds(ns: int) -> str:
    """Format seconds exactly to the nanosecond; a float would round those of a long run."""
    return f"{ns // NS}.{ns % NS:09d}"


def _line(values: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
