"""The command `headway plan`."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.journal import reader
from headway.ledger.model import Checkpoint
from headway.run import Run
from headway.units import NS
from tests.journals.recorded import NAMES, load, unpack
from tests.support import Golden, code_of
from tests.unit.report.ledgers import Line, killed, ledger_of

META = ("plan", "--failures-a-day", "3", "--block", "15s", "--length", "2d", "--trials", "20")


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(output(capsys, *words, "--json"))
    return content


def test_figure_7_in_the_terminal(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    golden("figure_7.txt", output(capsys, *META))


def test_a_sweep_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*META, "--nodes", "1,4", "--interval", "best,1h", "--ttr", "5min")
    content = as_json(capsys, *words)
    rows = content["rows"]
    assert [(row["nodes"], row["interval_by"]) for row in rows] == [
        (1, "law"),
        (1, "given"),
        (4, "law"),
        (4, "given"),
    ]
    assert [row["failures_a_day"] for row in rows] == [3, 3, 12, 12]
    assert rows[1]["interval_s"] == 3600
    for row in rows:
        parts = [row["closed"][f"{name}_percent"] for name in ("start", "saves", "lost", "recover")]
        assert row["closed"]["ett_percent"] + sum(parts) == pytest.approx(100)
        assert row["played"]["trials"] == 20
        exact = {point["interval_s"]: point["exact_percent"] for point in row["curve"]}
        assert len(row["curve_played"]) == 7
        for dot in row["curve_played"]:
            off = abs(dot["wasted_percent"] - exact[dot["interval_s"]])
            assert off < 0.5 + 2 * dot["half_percent"]
    assert rows[0]["closed"]["ett_percent"] > rows[1]["closed"]["ett_percent"]
    assert (
        as_json(capsys, *META, "--nodes", "1,4", "--interval", "best,1h", "--ttr", "5min")
        == content
    )


def test_failures_measured_on_many_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "--block", "15", "--length", "1d", "--trials", "2", "--nodes", "32")
    row = as_json(capsys, *words, "--failures-a-day", "3@64")["rows"][0]
    assert row["failures_a_day"] == pytest.approx(1.5)
    none = as_json(capsys, *words, "--failures-a-day", "0")["rows"][0]
    assert (none["mtbf_s"], none["interval_by"], none["curve"]) == (None, "length", [])


def test_the_curve_as_csv(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(output(capsys, *META, "--nodes", "1,2", "--csv"))))
    force = [row for row in rows if row["in_force"] == "1"]
    assert [row["nodes"] for row in force] == ["1", "2"]
    assert float(force[0]["interval_s"]) == pytest.approx(929.5, abs=0.1)
    assert len(rows) == 2 * 62


def test_the_html_page_needs_no_network(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "plan.html"
    words = (*META, "--nodes", "8,64", "--html", str(target))
    output(capsys, *words)
    text = target.read_text()
    assert "default-src 'none'" in text and "://" not in text.replace("http://www.w3.org", "")
    assert text.count("<polyline") == 4
    assert {"8", "64"} <= set(re.findall(r"<text[^>]*>(\d+)\b[^<]*</text>", text))
    assert main(list(words)) == 2
    assert target.read_text() == text


@pytest.fixture
def night(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run in the folder `night`."""
    (tmp_path / "night" / "journal").mkdir(parents=True)
    run = Run(path=tmp_path, name="<i>night</i>", ledger=killed())
    monkeypatch.setattr("headway.run.load", lambda path: run)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("night")
def test_from_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden) -> None:
    words = ("plan", "--from", "night", "--length", "6h", "--trials", "20")
    measured = as_json(capsys, *words)
    row = measured["rows"][0]
    assert (row["nodes"], measured["measured"]["failures"]) == (2, 1)
    low, high = row["ett_range_percent"]
    assert low < row["closed"]["ett_percent"] < high
    faster = as_json(capsys, *words, "--compile", "0s")["rows"][0]
    assert faster["closed"]["ett_percent"] > row["closed"]["ett_percent"]
    explicit = as_json(capsys, *words, "--mtbf", "1d")["rows"][0]
    assert explicit["failures_a_day"] == 2 and explicit["ett_range_percent"] is None
    golden("from_a_run.txt", output(capsys, *words))
    output(capsys, *words, "--html", str(tmp_path / "p.html"))
    text = (tmp_path / "p.html").read_text()
    assert "&lt;i&gt;night" in text and "<i>night" not in text


@pytest.mark.parametrize(
    "name", [name for name in NAMES if load(name).ledger.recommended_interval is not None]
)
def test_a_recorded_run_has_one_recommended_interval(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In report, advice and plan, and by the Checkpointer if the run had one."""
    monkeypatch.setattr(reader, "SILENT_NS", math.inf)  # as it was loaded: nobody has ended
    shown = load(name).ledger.recommended_interval
    assert shown is not None
    folder = str(unpack(name, tmp_path))
    words = ("plan", "--from", folder, "--length", "10min", "--trials", "2")
    (row,) = as_json(capsys, *words)["rows"]
    assert row["interval_s"] == pytest.approx(shown / NS)
    other = as_json(capsys, *words, "--block", "1s")["rows"][0]  # is another job
    assert other["interval_by"] != "run"
    for advice in as_json(capsys, "advise", folder)["advice"]:
        if advice["rule"] == "interval":
            assert f"interval={shown / NS:.3g})" in advice["code"][0]


def test_a_run_that_is_too_short_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = str(unpack("auto_first", tmp_path))
    assert main(["plan", "--from", folder]) == 2
    assert code_of(capsys.readouterr().err) == "rate-unknown"
    assert main(["plan", "--from", folder, "--mtbf", "1d"]) == 0


@pytest.mark.parametrize(
    "words",
    [
        "--failures-a-day 3 --block 15s",
        "--nodes 8,64,512 --mtbf 60d --block 15s --durable 2min --tts 10min --ttr 5min",
    ],
)
@pytest.mark.timeout(60)
def test_the_docs_show_real_output(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "plan.md").read_text()
    lines = output(capsys, "plan", *words.split()).splitlines()
    assert f"    headway plan {words}\n" in page
    assert "\n".join(f"    {line}".rstrip() for line in lines) + "\n" in page


@pytest.mark.parametrize("wall_s", [1800, 30 * 86400])
def test_from_a_run_without_a_failure(
    wall_s: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A short run does not determine the failure rate; a long one shows that it is low."""
    line = Line().add("start.launcher_init", 3).add("train.effective", wall_s - 3)
    save = Checkpoint(attempt=0, rank=0, start=9 * NS, end=10 * NS, step=9, path="a")
    ledger = ledger_of(line, steps=9, checkpoints=(save,), saves=1, time_to_start=3 * NS)
    (tmp_path / "calm" / "journal").mkdir(parents=True)
    run = Run(path=tmp_path, name="calm", ledger=ledger)
    monkeypatch.setattr("headway.run.load", lambda path: run)
    monkeypatch.chdir(tmp_path)
    words = ("plan", "--from", "calm", "--length", "6h", "--trials", "5")
    content = as_json(capsys, *words)
    (row,) = content["rows"]
    assert content["measured"]["failures_a_day"] is None and row["failures_are_bound"]
    assert row["failures_a_day"] == pytest.approx(3 * 86400 / wall_s)
    assert row["interval_s"] == pytest.approx((2 * wall_s / 3) ** 0.5)
    least, most = row["ett_range_percent"]
    assert least == pytest.approx(row["closed"]["ett_percent"]) and most > least
    text = output(capsys, *words)
    assert f"<{row['failures_a_day']:.3g} per day" in text and "--failures-a-day" in text
    explicit = as_json(capsys, *words, "--mtbf", "1d")["rows"][0]
    assert not explicit["failures_are_bound"] and explicit["failures_a_day"] == 1


def test_points_are_not_simulated_if_that_takes_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    """20 trials of each would need a million attempts; with 1 % of them points are simulated."""
    words = ("plan", "--mtbf", "24s", "--block", "0.01s", "--trials", "2")
    assert as_json(capsys, *words)["rows"][0]["curve_played"] == []
    assert as_json(capsys, *words, "--length", "3h")["rows"][0]["curve_played"] != []
