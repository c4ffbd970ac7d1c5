"""The command `headway advise` on a run folder; its advice refers to flags and pages that exist."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import re
from pathlib import Path

import pytest

from headway.advise import rules
from headway.advise.gather import advise, gather
from headway.advise.model import Evidence
from headway.advise.show import report_lines, to_dict
from headway.cli import VERBS, main
from headway.cli.run import prepare
from headway.ledger.model import AutoRun, BoosterResult
from headway.testing import FakeRun
from tests.support import Golden
from tests.unit.report.ledgers import killed

ROOT = Path(__file__).resolve().parents[3]
RULES = Path(rules.__file__).parent
COMMAND = ["python", "train.py"]


def texts(rule: str) -> list[str]:
    """All strings of a rule, including those shared within its module."""
    tree = ast.parse((RULES / f"{rules.OWN[rule]}.py").read_text())
    tree.body = [
        node
        for node in tree.body
        if not isinstance(node, ast.FunctionDef)
        or not node.name.startswith("propose_")
        or node.name == f"propose_{rule}"
    ]
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [node.value for node in constants if isinstance(node.value, str)]


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("rule", rules.OWN)
def test_flags_and_pages_of_a_rule_exist(rule: str) -> None:
    parser = argparse.ArgumentParser()
    prepare(parser)
    flags = {name for action in parser._actions for name in action.option_strings}
    lines = texts(rule)
    assert {text for text in lines if re.fullmatch(r"--[a-z-]+", text)} <= flags
    pages = [text for text in lines if text.startswith("docs/")]
    assert pages
    for text in pages:
        name, _, anchor = text.partition("#")
        assert not anchor or anchor in anchors(ROOT / name)
    read = "\n".join((ROOT / text.partition("#")[0]).read_text() for text in pages)
    for text in lines:
        for name in re.findall(r"headway(?:\.\w+)+", text):
            assert name.rpartition(".")[2] in read
        for verb in re.findall(r"`?headway ([a-z]+) ", text):
            assert verb in VERBS


def test_every_rule_has_a_module_and_documentation() -> None:
    files = {path.stem for path in RULES.glob("*.py")} - {"__init__"}
    assert files == set(rules.OWN.values())
    page = (ROOT / "docs" / "advise.md").read_text()
    assert not [name for name in rules.OWN if f"`{name}`" not in page]


def test_the_json_adds_up() -> None:
    content = to_dict(advise(Evidence(ledger=killed(), where="runs/night")))
    assert content["schema"] == 1
    whole = content["with_all"]
    for name in ("seconds", "accelerator_hours"):
        assert sum(advice[name] for advice in content["advice"]) == pytest.approx(whole[name])
    gained = whole["ett_percent"] - content["ett_percent"]
    assert sum(advice["points"] for advice in content["advice"]) == pytest.approx(gained)
    assert whole["seconds"] <= content["lost_s"]
    assert whole["command"].startswith("headway run --")
    assert whole["command"].count("--restarts") == 1
    assert whole["command"].endswith(" -- torchrun train.py")
    page = (ROOT / "docs" / "advise.md").read_text()
    names = {*content, *whole, *content["advice"][0], *content["covered"][0]}
    assert not [name for name in names if f"`{name}`" not in page]


def test_the_terminal_output_has_commands(golden: Golden) -> None:
    lines = list(report_lines(advise(Evidence(ledger=killed(), where="runs/night"))))
    assert any(line.strip() == "headway run --async-save -- COMMAND" for line in lines)
    golden("killed.txt", "\n".join(lines) + "\n")


def _advised(*boosters: str, auto: AutoRun | None = None) -> set[str]:
    ledger = dataclasses.replace(killed(), metadata={"boosters": list(boosters)}, auto=auto)
    return {advice.rule for advice in advise(Evidence(ledger=ledger)).advice}


def test_boosters_in_use_are_not_proposed() -> None:
    by_flag = {
        "compile_cache": "compile_cache",
        "async_save": "async_checkpoint",
        "publish": "publish_off",
    }
    for booster, rule in by_flag.items():
        assert rule in _advised() and rule not in _advised(booster)
    assert "restart_warmth" in _advised("restarts") and "restart_warmth" in _advised("warm")
    assert "restart_warmth" not in _advised("restarts", "warm")
    auto = AutoRun(
        job="j",
        comparison_key="k",
        boosters=(BoosterResult(name="async_save", state="off", why="slow"),),
    )
    assert "async_checkpoint" not in _advised(auto=auto)


def test_a_run_with_auto_keeps_auto() -> None:
    auto = AutoRun(job="j", comparison_key="k", boosters=())
    for ledger, offered in ((killed(), 1), (dataclasses.replace(killed(), auto=auto), 0)):
        plan = advise(Evidence(ledger=ledger))
        command = str(to_dict(plan)["with_all"]["command"])
        assert command.startswith("headway run --auto ") is not bool(offered)
        assert "\n".join(report_lines(plan)).count("headway run --auto -- ") == offered


def test_small_changes_share_a_line() -> None:
    plan = advise(Evidence(ledger=killed()))
    assert plan.advice[-1].marginal * 100 > plan.lost
    small = dataclasses.replace(plan.advice[-1], marginal=10_000_000, rule="small_rule")
    lines = list(report_lines(dataclasses.replace(plan, advice=(*plan.advice, small, small))))
    (line,) = [line for line in lines if "small_rule" in line]
    assert "20 ms" in line and line.count("small_rule") == 2
    only = list(report_lines(dataclasses.replace(plan, advice=(small,))))
    assert not any(line.startswith("  1. ") for line in only)


def write(path: Path, *, command: list[str] = COMMAND, blocked: float = 10.0) -> None:
    job = FakeRun()
    launcher = job.launcher(begin=0)
    rank = job.process(begin=1, rank=0, world=1)
    end = rank.train(first=1, count=10, start=5, each=0.5)
    rank.span("checkpoint_save", end, end + blocked, path="a", step=10)
    end = rank.train(first=11, count=10, start=end + blocked, each=0.5)
    rank.exit(end + 1)
    launcher.exit(end + 1, code=0)
    job.write(path)
    content = {"run": path.name, "command": command, "created": blocked}
    (path / "run.json").write_text(json.dumps(content))


def test_other_runs_of_the_same_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "one")
    write(tmp_path / "same", blocked=9.0)
    write(tmp_path / "other", command=["python", "eval.py"])
    assert [seen.ledger.run for seen in gather(str(tmp_path / "one")).others] == ["same"]
    named = gather(str(tmp_path / "one"), [str(tmp_path / "other")])
    assert [seen.ledger.run for seen in named.others] == ["other", "same"]
    assert main(["advise", str(tmp_path / "one"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert {advice["rule"] for advice in content["advice"]} >= {"async_checkpoint"}
    assert main(["advise", str(tmp_path / "one")]) == 0
    titles = [advice["title"] for advice in content["advice"]]
    assert all(title in capsys.readouterr().out for title in titles[:1]) and titles


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nowhere"], "run-not-found"),
        (["."], "not-a-run"),
        (["run", "--with", "nowhere"], "run-not-found"),
        (["run", "--since", "30d"], "flag-needs-store"),
    ],
)
def test_bad_input_is_one_error_line(
    words: list[str],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert main(["advise", *words]) == 2
    content = capsys.readouterr().err
    assert content.endswith(f" [{code}]\n")
    assert content.count("\n") == 1


def test_the_example_of_the_docs_is_real_output() -> None:
    page = (ROOT / "docs" / "advise.md").read_text()
    example = page.partition("```text\n")[2].partition("```")[0].splitlines()
    lines = list(report_lines(advise(Evidence(ledger=killed(), where="headway/train-0815"))))
    assert len(example) > 10
    assert not [line for line in example if line != "  ..." and line not in lines]


def test_the_docs_have_the_figures_of_the_benchmark() -> None:
    page = (ROOT / "docs" / "advise.md").read_text()
    result = json.loads((ROOT / "benchmarks" / "results" / "advise.json").read_text())
    for rule, row in result["rows"].items():
        content = (
            f"| `{rule}` | `{row['taken']}` | {row['promised_s']:.2f} s | {row['confidence']} "
        )
        assert f"{content}| {row['before_s']:.2f} s | {row['measured_s']:.2f} s |" in page
