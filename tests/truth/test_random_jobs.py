"""The report of random jobs, figure by figure, against the account that knows nothing of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import headway
from tests.truth.random_jobs import RandomJob
from tests.truth.reference import NS, Result, account

SEEDS = 3000 if os.environ.get("HEADWAY_TEST_PROFILE") == "full" else 60
OWNERS = ("infra", "user", "scheduler", "ambiguous")


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_the_report_agrees_with_an_independent_account(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        story = RandomJob(seed)
        report = headway.load(story.run.write(tmp_path / str(seed))).to_dict()
        expected = account(story.job)
        wrong = list(differences(expected, report))
        assert not wrong, (seed, wrong)


def differences(expected: Result, report: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What the report says otherwise: the figure, what it must be, what it is."""
    attempts = [
        {
            "start_s": _seconds(start),
            "end_s": _seconds(end),
            "outcome": outcome,
            "first_step": first,
            "last_step": last,
            "resumed_from": resumed,
        }
        for (outcome, first, last, resumed), (start, end) in zip(
            expected.attempts, expected.bounds, strict=True
        )
    ]
    pairs = [
        ("wall_s", _seconds(expected.wall), report["wall_s"]),
        ("ett_percent", expected.ett_percent, report["ett_percent"]),
        ("buckets", _all_seconds(expected.buckets), report["buckets"]),
        ("time_to_start_s", _seconds(expected.tts), report["time_to_start_s"]),
        ("time_to_recover_s", [_seconds(ns) for ns in expected.ttr], report["time_to_recover_s"]),
        ("hidden_s", _all_seconds(expected.hidden), report["hidden_s"]),
        ("paused_s", _seconds(expected.paused), report["paused_s"]),
        ("queue_capacity_s", _seconds(expected.queue), report["queue_capacity_s"]),
        ("steps", expected.steps, report["steps"]),
        ("attempts", attempts, [{k: a[k] for k in attempts[0]} for a in report["attempts"]]),
    ]
    for rank in report["per_rank"]:
        buckets = _all_seconds(expected.ranks[rank["rank"]])
        pairs.append((f"rank {rank['rank']}", buckets, rank["buckets"]))
    if None not in expected.owners:
        counted = Counter(expected.owners)
        owners = {owner: counted[owner] for owner in OWNERS}
        pairs.append(("failures_by_owner", owners, report["failures_by_owner"]))
    return [pair for pair in pairs if not _same(pair[1], pair[2])]


def _seconds(ns: int | Fraction | None) -> float | None:
    return None if ns is None else float(ns) / NS


def _all_seconds(ns: Mapping[str, int | Fraction]) -> dict[str, float | None]:
    return {name: _seconds(value) for name, value in ns.items()}


def _same(expected: Any, actual: Any) -> bool:
    """To the microsecond: short waits are divided."""
    if isinstance(expected, dict):
        names = {*expected, *actual}
        return all(_same(expected.get(name, 0.0), actual.get(name, 0.0)) for name in names)
    if isinstance(expected, list):
        return len(expected) == len(actual) and all(map(_same, expected, actual))
    if isinstance(expected, float) and isinstance(actual, float):
        return abs(expected - actual) < 2e-6
    return bool(expected == actual)
