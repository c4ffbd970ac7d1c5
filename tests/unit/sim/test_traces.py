"""Traces and outages: what the files say, and what is made of damaged ones."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.schedule import quotas
from headway.schedule.quotas import read_quotas
from headway.sim import outages, traces
from headway.sim.cluster.scenario import Setting, proportional_quotas
from tests.support import has_code

SACCT = """\
JobID|Account|Submit|ElapsedRaw|AllocTRES|ReqTRES
1|team_a|2026-11-15T08:47:42|21|billing=1,cpu=1,gres/gpu=2,node=1|
1.batch|team_a|2026-11-15T08:47:42|23|cpu=1,gres/gpu=2,mem=0,node=1|
2|team_b|2026-11-15T08:47:48|15|billing=1,cpu=1,gres/gpu=2,gres/gpu:a100=2,node=1|
3|team_b|2026-11-15T08:47:50|0|billing=1,cpu=1,gres/gpu=1,node=1|
4|team_b|2026-11-15T08:47:51|15|billing=1,cpu=1,node=1|billing=1,cpu=1,node=1
1|team_a|2026-11-15T08:48:06|60|billing=1,cpu=1,gres/gpu=2,node=1|
"""


def test_the_whole_of_philly() -> None:
    trace = traces.read_philly()
    assert len(trace.jobs) == 82_247
    assert trace.jobs[0].submit == 0
    assert all(a.submit <= b.submit for a, b in pairwise(trace.jobs))
    assert len(trace.tenants()) == 15
    assert Counter(job.gpus for job in trace.jobs)[1] == 76_627
    assert trace.gpu_hours == pytest.approx(978_078, rel=1e-4)


def test_a_month_of_philly_and_its_shift() -> None:
    trace = traces.read_philly(begin="2017-10-10", days=30)
    assert len(trace.jobs) == 39_259 and trace.days == 30
    moved = trace.shifted(1)
    assert moved.shifted(0).tenants().keys() == trace.tenants().keys()
    assert moved.gpu_hours == pytest.approx(trace.gpu_hours)
    assert moved.jobs != trace.jobs and trace.shifted(1).jobs == moved.jobs
    assert max(job.submit for job in moved.jobs) < 30 * 86400


def test_sacct_joins_attempts_and_leaves_out_what_had_no_accelerator(tmp_path: Path) -> None:
    file = tmp_path / "year.psv"
    file.write_text(SACCT)
    trace = traces.read_sacct(file)
    assert [(j.submit, j.work, j.gpus, j.tenant) for j in trace.jobs] == [
        (0.0, 81.0, 2, "team_a"),
        (6.0, 15.0, 2, "team_b"),
    ]


def test_accelerators_of_several_types_are_added(tmp_path: Path) -> None:
    file = tmp_path / "year.psv"
    file.write_text(SACCT.replace("gres/gpu=2,gres/gpu:a100=2", "gres/gpu:a100=4,gres/gpu:h100=4"))
    assert [job.gpus for job in traces.read_sacct(file).jobs] == [2, 8]


def test_a_synthetic_load() -> None:
    trace = traces.make_synthetic(4000, 256, load=0.8)
    assert trace.gpu_hours / (trace.days * 24 * 256) == pytest.approx(0.8, rel=0.01)
    assert trace == traces.make_synthetic(4000, 256, load=0.8)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("helios", "trace-unknown"),
        ("synthetic:many", "trace-unknown"),
        ("philly:/no/such.csv", "file-unreadable"),
        ("sacct:/no/such.psv", "file-unreadable"),
    ],
)
def test_wrong_traces(text: str, code: str) -> None:
    with pytest.raises(UsageError, check=has_code(code)):
        traces.read_trace(text, gpus=8)


def test_damaged_traces(tmp_path: Path) -> None:
    file = tmp_path / "one"
    file.write_text("JobID|State\n1|COMPLETED\n")
    with pytest.raises(UsageError, check=has_code("trace-column-missing")) as error:
        traces.read_sacct(file)
    assert error.value.fields["columns"] == ["Account", "Submit", "ElapsedRaw", "AllocTRES"]
    with pytest.raises(UsageError, check=has_code("trace-invalid")):
        traces.read_philly(file)
    file.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-10 00:00:00,x,1,1,a\n")
    with pytest.raises(UsageError, check=has_code("trace-row-invalid")):
        traces.read_philly(file)
    with pytest.raises(UsageError, check=has_code("trace-invalid")):
        outages.read_faults(file)
    with pytest.raises(UsageError, check=has_code("trace-invalid")):
        outages.read_spot(file)
    with pytest.raises(UsageError, check=has_code("quota-line-invalid")):
        read_quotas(file)


def test_quotas_sum_to_the_cluster(tmp_path: Path) -> None:
    assert proportional_quotas({"a": 1.0, "b": 1.0, "c": 1.0}, 10) == {"a": 4, "b": 3, "c": 3}
    file = tmp_path / "quota.csv"
    file.write_text("tenant,gpus\na,4\nb,6\n")
    assert read_quotas(file) == {"a": 4, "b": 6}
    assert quotas.read_quota_changes(file) == ()
    file.write_text("a,4\nb,6,0\nb,2,2.5\na,8,1\n")
    assert read_quotas(file) == {"a": 4, "b": 6}
    day = 86400.0
    assert quotas.read_quota_changes(file) == (
        quotas.QuotaChange(day, "a", 8),
        quotas.QuotaChange(2.5 * day, "b", 2),
    )
    with pytest.raises(UsageError, check=has_code("value-out-of-range")):
        Setting(silent=2)


def test_days_without_a_date_begin_with_the_first_job(tmp_path: Path) -> None:
    rows = [f"2017-10-{day:02d} 12:00:00,600,1,600,a" for day in (5, 1, 2, 3)]
    file = tmp_path / "jobs.csv"
    file.write_text("\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows]))
    assert len(traces.read_philly(file).jobs) == 4
    two = traces.read_philly(file, days=2)
    assert (len(two.jobs), two.days) == (2, 2)
    assert len(traces.read_philly(file, begin="2017-10-03", days=2).jobs) == 1
    for days in (-1.0, float("nan"), 1e9):
        with pytest.raises(UsageError, check=has_code("value-out-of-range")):
            traces.read_philly(file, days=days)


def test_faults_are_as_frequent_as_they_were() -> None:
    servers = outages.read_faults()
    assert len(servers) == outages.FAULT_SERVERS
    in_trace = sum(map(len, servers)) / (outages.FAULT_SERVERS * outages.FAULT_DAYS)
    days = 200.0
    drawn = outages.draw_faults(2000, days * 86400, 1)
    assert len(drawn) / (2000 * days) == pytest.approx(in_trace, rel=0.15)
    assert all(0 <= one.node < 2000 and one.end >= one.start for one in drawn)
    assert drawn == outages.draw_faults(2000, days * 86400, 1)


@pytest.mark.parametrize("name", outages.SPOT_FILES)
def test_spot_nodes_come_and_go(name: str) -> None:
    drawn = outages.draw_spot(range(10, 20), 86400.0, outages.SPOT_FILES[name])
    assert {one.node for one in drawn} <= set(range(10, 20)) and len(drawn) > 10
    by_node = [sorted((o.start, o.end) for o in drawn if o.node == n) for n in range(10, 20)]
    for spans in by_node:
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
