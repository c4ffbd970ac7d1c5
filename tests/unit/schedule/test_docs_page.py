"""docs/scheduling.md matches the code and the measurements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from headway.schedule.policies import BUILT_IN, LeastCost

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "scheduling.md").read_text()


def result(name: str) -> list[dict[str, Any]]:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    rows_: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows_


def mean(row: dict[str, Any], figure: str, decimals: int = 0, scale: float = 1.0) -> str:
    value = row["figures"][figure]
    return f"{value['mean'] * scale:,.{decimals}f} ± {value['half'] * scale:,.{decimals}f}"


def change(row: dict[str, Any], figure: str) -> str:
    value = row["change"].get(figure)
    return f"{100 * value['mean']:+.0f} % ± {100 * value['half']:.0f}" if value else "-"


def figures(row: dict[str, Any]) -> str:
    return (
        f"`{row['policy']}` | {mean(row, 'preemptions')} | {mean(row, 'lost_h')} "
        f"| {mean(row, 'recover_h')} | {mean(row, 'queue_min', 1)} "
        f"| {mean(row, 'queue_min_by_hours', 1)} "
        f"| {mean(row, 'in_quota_wait_s', 1)} | {mean(row, 'in_quota_prompt', 2, 100)} "
        f"| {mean(row, 'most_preemptions')} | {mean(row, 'ett_percent', 2)} |"
    )


def _changes(row: dict[str, Any]) -> str:
    names = ("preemptions", "lost_h", "lost_and_recover_h", "queue_min", "queue_min_by_hours")
    return " | ".join(change(row, name) for name in (*names, "jct_h")) + " |"


def rows() -> Iterator[str]:
    results = result("schedule")
    for row in results:
        if row["policy"] == "least-cost":
            yield f"| {row['gpus']} | {row['interval_s'] / 60:.0f} min | {_changes(row)}"
    for row in results:
        yield f"| {row['gpus']} | {row['interval_s'] / 60:.0f} min | {figures(row)}"
    for row in result("schedule_held_out"):
        if row["policy"] == "least-cost":
            yield f"| {row['begin']} | {row['gpus']} | {_changes(row)}"
    for row in result("schedule_switches"):
        yield f"| {figures(row)}"
    for row in result("schedule_speed"):
        yield (
            f"| {row['trace']} | {row['jobs']:,} | `{row['policy']}` | {row['preemptions']:,} "
            f"| {row['seconds']:.1f} s |"
        )


def test_the_docs_have_the_measured_figures() -> None:
    missing = [row for row in rows() if row not in PAGE.splitlines()]
    assert not missing, "put these rows into docs/scheduling.md:\n" + "\n".join(missing)


def test_every_policy_and_switch_is_documented() -> None:
    for name in BUILT_IN:
        assert f"| `{name}` |" in PAGE
    for field in fields(LeastCost):
        assert f"| `{field.name}` |" in PAGE
