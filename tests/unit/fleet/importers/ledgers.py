"""Ledgers that an importer builds from sample files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.fleet import importers
from headway.fleet.importers.record import build_ledger
from headway.fleet.importers.source import Source, read_source
from headway.ledger.model import Ledger
from headway.units import NS

SAMPLES = Path(__file__).parent / "samples"
COLLECTED_AT = 1_794_900_000.0


def source(value: Any, name: str = "given.json", collected_at: float = COLLECTED_AT) -> Source:
    """A file with that JSON in it, or that text."""
    return Source(name, value if isinstance(value, str) else json.dumps(value), collected_at)


def sample(name: str) -> list[Source]:
    """A file of the samples, or all files of a folder."""
    path = SAMPLES / name
    return (
        [read_source(one) for one in sorted(path.iterdir())]
        if path.is_dir()
        else [read_source(path)]
    )


def import_ledgers(name: str, *sources: Source) -> dict[str, Ledger]:
    """By the names of their runs; each account is balanced, and each file is recognised."""
    for one in sources:
        assert importers.detect(one) == name
    runs = {one.run: build_ledger(one) for one in importers.read_runs(name, sources)}
    for run in runs.values():
        assert sum(run.buckets.values()) == run.wall
    return runs


def seconds(run: Ledger) -> dict[str, float]:
    """Where its time went."""
    return {leaf: pytest.approx(ns / NS, abs=1e-3) for leaf, ns in run.buckets.items()}


def outcomes(run: Ledger) -> list[str]:
    """Of its attempts."""
    return [attempt.outcome for attempt in run.attempts]


def categories(run: Ledger) -> list[tuple[int, str]]:
    """Of its failures, and in which attempt they were."""
    return [(failure.attempt, failure.category) for failure in run.failures]
