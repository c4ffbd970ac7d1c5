"""The figures of docs/regressions.md are those that were measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"


def rows() -> Iterator[str]:
    for name in ("regressions", "regressions_noise_2"):
        path = RESULTS / f"{name}.json"
        for row in json.loads(path.read_text())["rows"] if path.exists() else ():
            if "found" not in row:
                yield f"| {row['detector']} | {row['setting']} | | | | |"
                continue
            yield (
                f"| {row['detector']} | {row['setting']} "
                f"| {row['found']} of {row['planted']}, {row['found_share']:.0%} "
                f"| {row['delay_median_days'] or 0:.1f} | {row['delay_p90_days'] or 0:.1f} "
                f"| {row['false_alarms_a_week']:.2f} |"
            )


def running() -> Iterator[str]:
    for row in json.loads((RESULTS / "regressions_running.json").read_text())["rows"][:-1]:
        yield (
            f"| {row['case']} | {row['noticed']} of {row['planted']}, {row['noticed_share']:.0%} "
            f"| {row['delay_median_hours'] or 0:.0f} | {row['delay_p90_hours'] or 0:.0f} |"
        )


def test_the_table_is_that_of_the_results() -> None:
    told = (ROOT / "docs" / "regressions.md").read_text().splitlines()
    missing = [row for row in (*rows(), *running()) if row not in told]
    assert not missing, "put these rows into docs/regressions.md:\n" + "\n".join(missing)
    ours = json.loads((RESULTS / "regressions.json").read_text())["rows"][0]
    assert ours["found_share"] >= 0.95 and ours["false_alarms_a_week"] <= 1
    nothing = json.loads((RESULTS / "regressions_running.json").read_text())["rows"][-1]
    assert nothing["false_alarms_a_week"] <= 1
