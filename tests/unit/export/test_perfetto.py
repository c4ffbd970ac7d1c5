from __future__ import annotations

import json
from typing import Any

import pytest

from headway.export import perfetto
from tests.unit.report.ledgers import killed


def trace() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads("".join(perfetto.perfetto_lines(killed())))
    return parsed


def test_perfetto_has_a_track_per_rank_and_a_row_per_attempt() -> None:
    names = [e for e in trace()["traceEvents"] if e["ph"] == "M"]
    processes = [e["args"]["name"] for e in names if e["name"] == "process_name"]
    assert processes == ["run train-0815", "rank 0 on node-0", "rank 1 on node-1"]
    rows = [(e["pid"], e["args"]["name"]) for e in names if e["name"] == "thread_name"]
    lives = ("attempt 0 (failed)", "attempt 1 (completed)")
    assert rows == [(pid, name) for pid in (1, 2, 3) for name in lives]


def test_perfetto_slices_do_not_overlap_and_cover_the_wall_time() -> None:
    slices = [e for e in trace()["traceEvents"] if e["ph"] == "X"]
    for pid in (1, 2, 3):
        mine = sorted((e for e in slices if e["pid"] == pid), key=lambda e: e["ts"])
        ends = [0.0, *(e["ts"] + e["dur"] for e in mine)]
        assert [e["ts"] for e in mine] == pytest.approx(ends[:-1])
        assert ends[-1] == pytest.approx(killed().wall / 1000)
    named = {e["tid"]: e["name"] for e in slices if e["pid"] == 1 and e["ts"] == 0}
    assert named == {1: "start.launcher_init"}


def test_perfetto_marks_the_failure_on_its_rank() -> None:
    (mark,) = (e for e in trace()["traceEvents"] if e["ph"] == "i")
    assert (mark["pid"], mark["tid"], mark["name"]) == (3, 1, "failure: killed")
    assert mark["ts"] == killed().failures[0].at / 1000
    assert "SIGKILL" in mark["args"]["evidence"]
