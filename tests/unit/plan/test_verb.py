"""`headway plan` as a person types it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.ledger.run import Run, load
from tests.unit.report.ledgers import killed

META = ("plan", "--failures-a-day", "3", "--block", "15s", "--length", "2d", "--trials", "20")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told(capsys, *words, "--json"))
    return found


def test_figure_7_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, *META).splitlines()
    assert lines[0].startswith("2 d 00 h of training; a node fails every 8 h 00 m; a save costs 15")
    row = next(line for line in lines if "a day" in line)
    assert row.split()[:7] == ["1", "3", "a", "day", "15.5", "min", "3.23"]
    assert any(line.startswith("Young") and "15.5 min  3.23 %" in line for line in lines)
    curve = lines[lines.index("wasted time of the loop by checkpoint interval") + 1 :]
    assert sum(line.count("o") for line in curve[:12]) == 1
    assert curve[-1].split() == ["1.3", "min", "15.5", "min", "3.1", "h"]


def test_a_sweep_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*META, "--nodes", "1,4", "--interval", "best,1h", "--ttr", "5min")
    found = as_json(capsys, *words)
    rows = found["rows"]
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
        as_json(capsys, *META, "--nodes", "1,4", "--interval", "best,1h", "--ttr", "5min") == found
    )


def test_failures_seen_on_many_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "--block", "15", "--length", "1d", "--trials", "2", "--nodes", "32")
    seen = as_json(capsys, *words, "--failures-a-day", "3@64")["rows"][0]
    assert seen["failures_a_day"] == pytest.approx(1.5)
    none = as_json(capsys, *words, "--failures-a-day", "0")["rows"][0]
    assert (none["mtbf_s"], none["interval_by"], none["curve"]) == (None, "length", [])


def test_the_curve_as_csv(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(told(capsys, *META, "--nodes", "1,2", "--csv"))))
    force = [row for row in rows if row["in_force"] == "1"]
    assert [row["nodes"] for row in force] == ["1", "2"]
    assert float(force[0]["interval_s"]) == pytest.approx(929.5, abs=0.1)
    assert len(rows) == 2 * 62


def test_the_picture_is_one_file_without_a_network(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "plan.html"
    words = (*META, "--nodes", "8,64", "--html", str(target))
    assert told(capsys, *words) == f"headway: wrote {target}\n"
    text = target.read_text()
    assert "default-src 'none'" in text and "://" not in text.replace("http://www.w3.org", "")
    assert text.count("<polyline") == 4 and "64 nodes</text>" in text
    assert main(list(words)) == 2
    assert "add --force to overwrite it" in capsys.readouterr().err


@pytest.fixture
def night(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`night` is a run."""
    (tmp_path / "night" / "journal").mkdir(parents=True)
    run = Run(path=tmp_path, name="<i>night</i>", ledger=killed())
    monkeypatch.setattr(
        "headway.ledger.run.load", lambda path: run if path == "night" else load(path)
    )
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("night")
def test_from_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("plan", "--from", "night", "--length", "6h", "--trials", "20")
    measured = as_json(capsys, *words)
    row = measured["rows"][0]
    assert (row["nodes"], measured["measured"]["failures"]) == (2, 1)
    low, high = row["ett_range_percent"]
    assert low < row["closed"]["ett_percent"] < high
    faster = as_json(capsys, *words, "--compile", "0s")["rows"][0]
    assert faster["closed"]["ett_percent"] > row["closed"]["ett_percent"]
    given = as_json(capsys, *words, "--mtbf", "1d")["rows"][0]
    assert given["failures_a_day"] == 2 and given["ett_range_percent"] is None
    assert "over the 95 % interval of the failure rate" in told(capsys, *words)
    told(capsys, *words, "--html", str(tmp_path / "p.html"))
    text = (tmp_path / "p.html").read_text()
    assert "&lt;i&gt;night" in text and "<i>night" not in text


@pytest.mark.usefixtures("night")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--block 15s", "how often nodes fail is not known; give --mtbf"),
        ("--mtbf 1d --failures-a-day 1", "say the same; give one of them"),
        ("--mtbf 5x --block 1s", "--mtbf is '5x', which is no time"),
        ("--mtbf 0s --block 1s", "the mean time between failures is above 0"),
        ("--mtbf 1d --block -1s", "--block"),
        ("--mtbf 1d", "a save that costs nothing has no best interval"),
        ("--mtbf 1d --block 1s --nodes 8,x", "--nodes is '8,x'; give numbers"),
        ("--mtbf 1d --block 1s --nodes ,", "--nodes is ',', which names nothing"),
        ("--mtbf 1d --block 1s --interval often", "--interval is 'often', which is no time"),
        ("--mtbf 1d --block 1s --length 0s", "the length of a job is above 0"),
        ("--mtbf 1d --block 1s --trials 1", "give 2 or more"),
        ("--failures-a-day 3@0 --block 1s", "3@64 if 64 nodes have 3"),
        ("--mtbf 1min --nodes 100000 --block 1s", "cannot be played"),
        ("--from nowhere", "there is no run at nowhere"),
        ("--from .", "there is no store at ."),
        ("--from night --where team=ads", "--where and --since are for one"),
        ("--json --csv", "not allowed with"),
    ],
)
def test_bad_input_is_one_sentence(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["plan", *words.split()])
    except SystemExit as error:  # by argparse
        code = int(error.code or 0)
    said = capsys.readouterr()
    assert code == 2 and said.out == ""
    assert sentence in said.err and len(said.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        "--failures-a-day 3 --block 15s",
        "--nodes 8,64,512 --mtbf 60d --block 15s --durable 2min --tts 10min --ttr 5min",
    ],
)
@pytest.mark.timeout(60)
def test_the_page_shows_what_is_printed(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "plan.md").read_text()
    lines = told(capsys, "plan", *words.split()).splitlines()
    assert f"    headway plan {words}\n" in page
    assert "\n".join(f"    {line}".rstrip() for line in lines) + "\n" in page
