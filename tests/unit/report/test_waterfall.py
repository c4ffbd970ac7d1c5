from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headway.cli import main
from headway.ledger.model import Ledger
from headway.report.waterfall import OTHER, Waterfall, bar_of_run, by_stage, with_distinct_names
from headway.run import Run, load
from headway.units import NS
from tests.support import Golden
from tests.unit.report.ledgers import Line, ledger_of, no_steps
from tests.unit.report.rendering import words_of


def made(run: str, compiled: float, data: float, trained: float = 60) -> Ledger:
    line = Line().start("start", get_first_batch_data=data, pt2_compile=compiled)
    line.add("unknown", 2).add("train.effective", trained).add("waste.data_stall", 8)
    return ledger_of(line, run=run, steps=9, time_to_start=round((compiled + data + 2) * NS))


RUNS = {
    "old": made("old", 20, 10),
    "cached": made("cached", 1, 10),
    "slow": made("slow", 1, 12, trained=177),
    "none": replace(no_steps(), run="none"),
}


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`load("old")` gives that sample."""

    def sample(path: str) -> Run:
        return Run(path=tmp_path, name=path, ledger=RUNS[path]) if path in RUNS else load(path)

    monkeypatch.setattr("headway.run.load", sample)
    monkeypatch.chdir(tmp_path)


def test_a_bar_is_the_start_by_stage_and_the_lost_time_by_bucket() -> None:
    one = bar_of_run(RUNS["old"])
    assert one.start == {"start.get_first_batch_data": 10, "start.pt2_compile": 20, OTHER: 2}
    assert one.total("start") == one.time_to_start == 32
    assert one.lost["waste.data_stall"] == one.lost["start.pt2_compile"] * 8 / 20
    assert one.total("lost") + one.ett_percent == pytest.approx(100)


def test_a_rest_is_never_below_nothing() -> None:
    assert by_stage({"start.pt2_compile": 5.0, "start.scheduling": 0.0}, 4.0) == {
        "start.pt2_compile": 5.0
    }
    assert by_stage({}, None) == {}


def test_a_step_says_what_fell_and_what_rose_and_the_largest_first() -> None:
    fall = Waterfall(tuple(bar_of_run(RUNS[name]) for name in ("old", "cached", "slow")))
    first, second = fall.steps
    assert (first.before, first.after, first.start) == ("old", "cached", {"start.pt2_compile": -19})
    assert second.start == {"start.get_first_batch_data": 2}
    assert first.total("lost") == pytest.approx(
        RUNS["old"].ett_percent - RUNS["cached"].ett_percent
    )
    sizes = [abs(change) for change in second.lost.values()]
    assert sizes == sorted(sizes, reverse=True)


def test_runs_of_one_name_are_told_apart() -> None:
    found = with_distinct_names([bar_of_run(RUNS["old"])] * 3)
    assert [one.name for one in found] == ["old", "old (2)", "old (3)"]


def test_in_the_terminal(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert main(["compare", "old", "cached", "slow", "none", "--waterfall"]) == 0
    text = capsys.readouterr().out
    golden("waterfall.txt", text)
    lines = text.splitlines()
    bars = {line.split()[0]: line for line in lines[1:5]}
    letter = next(line.split()[0] for line in lines if line.split()[1:2] == ["pt2_compile"])
    assert bars["old"].count(letter) == pytest.approx(20 * bars["cached"].count(letter), abs=12)


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "old", "cached", "--waterfall", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["time_to_start_s"] for one in found["bars"]] == [32, 13]
    assert found["steps"][0]["start_s"] == {"start.pt2_compile": -19}
    assert sum(found["steps"][0]["lost_points"].values()) == pytest.approx(
        found["bars"][0]["ett_percent"] - found["bars"][1]["ett_percent"]
    )


def test_as_one_html_file(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUNS, "evil", made("<script>alert(1)</script>", 3, 3))
    words = ["compare", "old", "evil", "--waterfall", "--html", "fall.html"]
    assert main(words) == 0
    text = (tmp_path / "fall.html").read_text()
    assert "default-src 'none'" in text and "://" not in text
    assert "<script" not in text and "&lt;script&gt;alert" in text
    golden("waterfall-html.txt", words_of(text))
    assert main(words) == 2 and main([*words, "--force"]) == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("old", "compare-needs-two-runs"),
        ("old cached slow", "compare-needs-two-runs"),
        ("old cached --html x.html", "flag-needs-waterfall"),
        ("old cached --by torch", "flag-needs-waterfall"),
        ("--waterfall", "run-not-given"),
        ("old --waterfall", "waterfall-too-short"),
        ("old nowhere --waterfall", "run-not-found"),
        ("old cached --waterfall --fail-if ett<-1", "gate-needs-two-runs"),
        ("old cached --waterfall --by torch", "flag-needs-store"),
        ("old --waterfall --store s", "store-and-runs"),
        ("--waterfall --store s --by colour", "release-field-unknown"),
        ("--waterfall --store nothing", "store-not-found"),
    ],
)
def test_bad_input_is_one_sentence(
    words: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words.split()]) == 2
    printed = capsys.readouterr()
    assert printed.err.endswith(f" [{code}]\n") and printed.out == ""
    assert len(printed.err.splitlines()) == 1
