"""Time to Start: by stage, over releases, over time."""

from __future__ import annotations

from typing import Any

from headway.ledger.leaves import START_STAGES
from headway.serve import questions
from headway.serve.panels import medians
from headway.serve.panels.shown import Card, Column, cards, table
from headway.serve.source import Source
from headway.serve.wanted import Wanted

LEAVES = tuple(f"start.{stage}" for stage in START_STAGES)
REST = "rest"  # of a start that no stage has: evaluations, waits, what is not known


def headline(source: Source, wanted: Wanted) -> dict[str, Any]:
    """How long starts take."""
    row = source.one("tts", wanted)
    return cards(
        Card("Median", row.get("tts_p50_s"), "seconds", "half of the runs start faster"),
        Card("Nine of ten", row.get("tts_p90_s"), "seconds", "start faster"),
        Card("Mean", row.get("tts_s_by_jobs"), "seconds", "each run alike"),
        Card("Weighted mean", row.get("tts_s"), "seconds", "by accelerator-hours"),
        Card(
            "Spent on starts", row.get("starting_accelerator_hours"), "hours", "accelerator-hours"
        ),
        Card("Never trained", row.get("never_trained"), "count", "runs, not counted here"),
    )


def stages(source: Source, wanted: Wanted) -> dict[str, Any]:
    """Mean seconds of each stage, in the order in which a job passes through them."""
    row = source.one("tts", wanted)
    started = (row.get("jobs") or 0) - (row.get("never_trained") or 0)
    found = source.rows(questions.stages(source.asked(wanted), LEAVES), wanted)
    seconds = {one["leaf"]: one["seconds"] / started for one in found} if started else {}
    rows = [{"leaf": leaf, "seconds": seconds[leaf]} for leaf in LEAVES if seconds.get(leaf)]
    rest = (row.get("tts_s_by_jobs") or 0.0) - sum(seconds.values())
    if rest > 0.05:
        rows.append({"leaf": REST, "seconds": rest})
    columns = [Column("leaf", "stage", "leaf"), Column("seconds", "mean", "seconds")]
    total = "Time to Start"
    return table(columns, rows, plot={"kind": "fall", "x": "leaf", "y": "seconds", "total": total})


def over_releases(source: Source, wanted: Wanted) -> dict[str, Any]:
    """A stack of stages for each release."""
    release = wanted.get("release", "torch")
    asked = source.asked(wanted, release)
    told = source.rows(questions.releases(asked, release), wanted)[::-1]
    jobs = {one[release]: one["jobs"] for one in told}
    found = source.rows(questions.stages(asked, LEAVES, release), wanted)
    seconds = {(one[release], one["leaf"]): one["seconds"] for one in found}
    rows = [
        {**one, **{leaf: seconds.get((one[release], leaf), 0.0) / one["jobs"] for leaf in LEAVES}}
        for one in told
    ]
    used = [leaf for leaf in LEAVES if any((name, leaf) in seconds for name in jobs)]
    columns = [
        Column(release, release, "period" if release in ("week", "month") else "text"),
        Column("first", "first seen", "time"),
        Column("jobs", "runs", "count"),
        Column("tts_p50_s", "median", "seconds"),
        Column("tts_p90_s", "nine of ten", "seconds"),
        Column("tts_s_by_jobs", "mean", "seconds"),
        *(Column(leaf, leaf.removeprefix("start."), "seconds") for leaf in used),
    ]
    return table(columns, rows, plot={"kind": "stack", "x": release, "parts": used})


def over_time(source: Source, wanted: Wanted) -> dict[str, Any]:
    """Median and the slowest tenth."""
    return medians.over_time(
        source,
        wanted,
        "tts",
        Column("jobs", "runs", "count"),
        Column("never_trained", "never trained", "count"),
    )
