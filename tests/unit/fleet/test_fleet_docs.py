"""The figures of docs/fleet.md are those that were measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from headway.fleet.queries.queries import QUERIES

ROOT = Path(__file__).parents[3]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "fleet.json").read_text())
SIZES = ("1k", "10k", "100k", "100m")


def rows() -> Iterator[str]:
    for name in SIZES:
        held = RESULT["stores"][name]
        yield (
            f"| {held['rows']['runs']:,} | {held['rows']['hours']:,} | {held['rows']['buckets']:,} "
            f"| {sum(held['bytes'].values()) / 1e6:,.1f} MB "
            f"| {held['bytes_a_run_without_buckets']:,} | {held['bytes_a_bucket_row']:.1f} |"
        )
    for question in QUERIES:
        asked = {name: RESULT["queries"][name]["questions"][question] for name in SIZES}
        most = asked["100m"]
        again = " | ".join(f"{asked[name]['warm_cpu_s']:.2f}" for name in SIZES)
        growth = asked["100k"]["warm_cpu_s"] / asked["1k"]["warm_cpu_s"]
        yield (
            f"| `{question}` | {again} | {growth:.1f} | {most['warm_s']:.2f} "
            f"| {most['cold_cpu_s']:.2f} | {most['cold_s']:.2f} | {most['peak_mb']:.0f} MB |"
        )
    for table in ("hours", "buckets"):
        sums = [RESULT["queries"][name]["sums"][table] for name in SIZES]
        told = " | ".join(f"{one['sum_cpu_s']:.3f}" for one in sums)
        yield f"| one column of `{table}` | {told} |"
    for page, told in RESULT["pages"].items():
        yield (
            f"| `{page}` | {told['page_s'] * 1000:.0f} ms | {told['slowest_panel_first_s']:.2f} s "
            f"| {told['slowest_panel_again_s'] * 1000:.0f} ms |"
        )
    command, bulk = RESULT["ingest"]["command"], RESULT["ingest"]["bulk"]
    yield (
        f"| `headway ingest`, {command['runs']} runs of 8 ranks and 10,000 steps "
        f"| {command['wall_s']:.1f} s | {command['cpu_s']:.1f} s | {command['runs_a_s']:.1f} |"
    )
    yield (
        f"| `Store.write`, {bulk['runs']:,} runs as Arrow tables "
        f"| {bulk['wall_s']:.1f} s | {bulk['cpu_s']:.1f} s | {bulk['runs_a_s']:,} |"
    )


def test_the_tables_are_those_of_the_results() -> None:
    told = (ROOT / "docs" / "fleet.md").read_text().splitlines()
    missing = [row for row in rows() if row not in told]
    assert not missing, "put these rows into docs/fleet.md:\n" + "\n".join(missing)


def test_each_question_takes_less_than_3_s_of_the_processors_and_2_gb() -> None:
    most = RESULT["queries"]["100m"]["questions"].values()
    assert RESULT["stores"]["100m"]["rows"]["buckets"] >= 100_000_000
    assert max(one["cold_cpu_s"] for one in most) <= 3.0
    assert max(one["peak_mb"] for one in most) <= 2048
