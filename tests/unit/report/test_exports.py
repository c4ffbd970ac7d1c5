from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from dataclasses import replace
from typing import Any

import pytest

from headway.ledger.model import NS, Failure
from headway.report import csv as csv_report
from headway.report import openmetrics, perfetto
from tests.unit.report.ledgers import Line, killed, large, ledger_of, no_steps


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


def test_csv_has_one_row_per_segment_and_attempt() -> None:
    rows = list(csv.DictReader(io.StringIO("".join(csv_report.csv_lines(killed())))))
    assert list(rows[0]) == ["rank", "attempt", "start_s", "end_s", "leaf"]
    assert [row["rank"] for row in rows if row["start_s"] == "0.000000000"] == ["run", "0", "1"]
    assert len(rows) == 3 * len(killed().segments)
    assert rows[0]["end_s"] == "31.000000000"
    assert {row["attempt"] for row in rows if row["leaf"] == "recover.pt2_compile"} == {"1"}
    assert {row["attempt"] for row in rows if row["leaf"] == "recover.downtime"} == {"1"}


def test_openmetrics_lines() -> None:
    lines = "".join(openmetrics.openmetrics_lines(killed())).splitlines()
    assert 'headway_ett_percent{run="train-0815"} ' + repr(killed().ett_percent) in lines
    assert 'headway_bucket_seconds{run="train-0815",leaf="start.pt2_compile"} 167.0' in lines
    assert 'headway_time_to_start_seconds{run="train-0815"} 255.0' in lines
    assert 'headway_time_to_recover_seconds{run="train-0815",interruption="0"} 288.0' in lines
    assert 'headway_failures{run="train-0815",category="killed",owner="ambiguous"} 1' in lines
    assert 'headway_steps{run="train-0815"} 1760' in lines
    assert lines[-1] == "# EOF"
    assert lines.count("# TYPE headway_bucket_seconds gauge") == 1


def test_openmetrics_buckets_sum_to_the_wall_time() -> None:
    text = "".join(openmetrics.openmetrics_lines(killed()))
    buckets = re.findall(r"^headway_bucket_seconds\{.*\} (\S+)$", text, re.MULTILINE)
    assert sum(map(float, buckets)) == pytest.approx(killed().wall / NS)


def hostile() -> str:
    failure = Failure(
        attempt=0, at=0, category='a"b\\c\nd', owner="user", retry="no", root_rank=None, evidence=""
    )
    line = Line().add("train.effective", 1)
    ledger = ledger_of(line, run='x"\\\ny{}\ud800', failures=(failure,))
    return "".join(openmetrics.openmetrics_lines(ledger))


def test_openmetrics_escapes_labels() -> None:
    text = hostile()
    assert 'run="x\\"\\\\\\ny{}?",category="a\\"b\\\\c\\nd"' in text
    text.encode()


@pytest.mark.parametrize("make", [killed, no_steps, lambda: large(4, 100)])
def test_openmetrics_is_read_by_prometheus(make: Any) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    families = {f.name: f for f in parser.text_string_to_metric_families(
        "".join(openmetrics.openmetrics_lines(make()))
    )}  # fmt: skip
    samples = families["headway_bucket_seconds"].samples
    assert {s.labels["leaf"]: s.value for s in samples} == {
        leaf: ns / NS for leaf, ns in make().buckets.items()
    }


def test_hostile_openmetrics_is_read_by_prometheus() -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    families = {f.name: f for f in parser.text_string_to_metric_families(hostile())}
    (sample,) = families["headway_failures"].samples
    assert sample.labels == {"run": 'x"\\\ny{}?', "category": 'a"b\\c\nd', "owner": "user"}


def test_openmetrics_of_a_hostile_run_has_no_control_characters() -> None:
    failure = replace(killed().failures[0], category="a\x1b[2J\nb", owner="\x9b2Jc")
    text = "".join(
        openmetrics.openmetrics_lines(replace(killed(), run="r\x1b]0;x\x07", failures=(failure,)))
    )
    assert not [c for c in text if unicodedata.category(c) == "Cc" and c != "\n"]
    assert 'category="a [2J\\nb"' in text
