from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from typing import Any

import pytest

from headway.export import openmetrics
from headway.ledger.model import Failure
from headway.units import NS
from tests.unit.report.ledgers import Line, killed, large, ledger_of, no_steps


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
