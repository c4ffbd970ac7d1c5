"""The verbs that show a run, with the run itself made up."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from headway.cli import main
from headway.ledger.model import Ledger
from headway.run import Run
from tests.support import Golden
from tests.unit.report.ledgers import Line, killed, ledger_of, no_steps, still_running


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`load("killed")` gives that sample; its folder is the test's own."""
    samples = {"killed": killed, "no_steps": no_steps, "still_running": still_running}

    def load(path: str) -> Run:
        return Run(path=tmp_path, name=path, ledger=samples[path]())

    monkeypatch.setattr("headway.run.load", load)
    monkeypatch.chdir(tmp_path)


def test_report_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "killed"]) == 0
    out = capsys.readouterr().out
    assert "68.9 %" in out.splitlines()[0] and len(out.splitlines()) > 30


def test_report_as_json_is_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "killed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(killed().to_dict()))


@pytest.mark.parametrize("args", [["killed", "--html"], ["--html", "killed"]])
def test_report_as_html_goes_into_the_run(
    args: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # a report may be made again
        assert main(["report", *args]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(str(tmp_path / "report.html"))
    assert "68.9" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_report_replaces_an_older_report_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mine.html"
    target.write_text("my thesis")
    assert main(["report", "killed", "--html", str(target)]) == 2
    assert capsys.readouterr().err.endswith("--force to overwrite it [target-exists]\n")
    assert target.read_text() == "my thesis"
    assert main(["report", "killed", "--html", str(target), "--force"]) == 0
    assert main(["report", "killed", "--html", str(target)]) == 0


def test_report_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 2
    assert "[run-not-given]" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["missing/x.html", "."])
def test_report_to_where_it_cannot_be(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "killed", "--html", target]) == 2
    error = capsys.readouterr().err
    assert error.startswith("headway: ")
    assert error.count("\n") == 1
    assert target in error


def test_export_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "killed", "--to", "csv"]) == 0
    assert capsys.readouterr().out.startswith("rank,attempt,start_s,end_s,leaf\nrun,0,0.000000000,")
    assert main(["export", "killed", "--to", "openmetrics"]) == 0
    assert capsys.readouterr().out.endswith("# EOF\n")
    assert main(["export", "killed", "--to", "perfetto"]) == 0
    assert json.loads(capsys.readouterr().out)["otherData"]["run"] == "train-0815"


def test_export_packs_by_name_and_never_overwrites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", "killed", "--to", "perfetto", "-o", "trace.json.gz"]
    assert main(command) == 0
    packed = (tmp_path / "trace.json.gz").read_bytes()
    assert json.loads(gzip.decompress(packed))["traceEvents"]
    assert main(command) == 2
    assert "[target-exists]" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0


def test_export_to_a_format_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["export", "killed", "--to", "excel"])
    assert stop.value.code == 2
    assert "[wrong-usage]" in capsys.readouterr().err


def test_compare_is_a_gate(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    command = ["compare", "still_running", "killed"]
    assert main(command) == 0
    assert main([*command, "--fail-if", "ett<-10"]) == 0
    golden("compare-passed.txt", capsys.readouterr().out)
    assert main([*command, "--fail-if", "ett<-10", "--fail-if", "failures_ambiguous>0"]) == 1
    golden("compare-failed.txt", capsys.readouterr().out)


def test_compare_names_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "no_steps", "killed"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()[2:]}
    assert rows["tts"] == ["tts", "never", "4", "m", "15", "s", "-"]
    assert rows["failures"] == ["failures", "0", "0", "+0"]
    assert rows["failures_ambiguous"] == ["failures_ambiguous", "0", "1", "+1"]
    assert rows["start.launcher_init"][1:5] == ["3.2", "s", "31.0", "s"]
    assert "start.scheduling" not in rows  # nothing in either


def test_compare_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "no_steps", "killed", "--json", "--fail-if", "wall>+1s"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["failed"] is True
    assert result["gates"][0]["gate"] == "wall>+1s"


def test_compare_refuses_a_gate_before_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "missing", "missing", "--fail-if", "eet<-1"]) == 2
    assert "[gate-measure-unknown]" in capsys.readouterr().err


def test_top_once(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert main(["top", "still_running", "--once"]) == 0
    golden("top.txt", capsys.readouterr().out)


def test_top_refuses_a_mad_interval(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "still_running", "--interval", "0"]) == 2
    assert "[interval-out-of-range]" in capsys.readouterr().err


class Screen:
    """A terminal that remembers, and runs that `top` reads one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *reads: Ledger | type[BaseException]):
        self.out = io.StringIO()
        self.slept: list[float] = []
        console = Console(file=self.out, force_terminal=True, width=100, _environ={})
        monkeypatch.setattr("headway.report.screen.console", lambda: console)
        monkeypatch.setattr("headway.cli.report.time.sleep", self.slept.append)
        following = self.reads = iter(reads)

        def load(path: str) -> Run:
            read = next(following)
            if isinstance(read, Ledger):
                return Run(path=Path(path), name=path, ledger=read)
            raise read

        monkeypatch.setattr("headway.run.load", load)


def test_top_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch, still_running(), still_running(), killed())
    assert main(["top", "x", "--interval", "2"]) == 0
    assert screen.slept[0] == 2
    assert not list(screen.reads)


def test_top_ends_with_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch, still_running(), KeyboardInterrupt)
    assert main(["top", "x"]) == 0
    assert screen.out.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_top_before_the_first_attempt(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    empty = ledger_of(Line(), attempts=(), ranks=(), running=False)
    screen = Screen(monkeypatch, empty)
    assert main(["top", "x"]) == 0
    golden("top-before-start.txt", re.sub(r"\x1b\[[?\d;]*[a-zA-Z]|\r", "", screen.out.getvalue()))
