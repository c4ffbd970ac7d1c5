"""The technique pages: their figures are measured, and their commands exist."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from headway.cli import SHARED, VERBS, function

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TECHNIQUES = sorted(p for p in (DOCS / "techniques").glob("*.md") if p.name != "index.md")
AUDIENCES = [*sorted(DOCS.glob("for-*.md")), DOCS / "comparison.md"]
# Their figures must be in the result files.
MEASURED = ("benchmarks.md", "scheduling.md")


def named(path: Path) -> str:
    return path.stem


def section(text: str, heading: str) -> str:
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[str]:
    """The rows of tables below their headers."""
    lines = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        lines += block.splitlines()[2:]
    return lines


@pytest.mark.parametrize("path", TECHNIQUES, ids=named)
def test_a_page_says_what_how_how_much_and_when_not(path: Path) -> None:
    text = path.read_text()
    for heading in ("Switch it on", "Measured", "When it does not help"):
        assert section(text, heading).strip(), heading
    measured = section(text, "Measured")
    assert "benchmarks/results/" in measured or "There is no result file" in measured
    assert f"]({path.name})" in (DOCS / "techniques" / "index.md").read_text()


@pytest.mark.parametrize("path", [*TECHNIQUES, *AUDIENCES], ids=named)
def test_every_figure_stands_where_it_was_measured(path: Path) -> None:
    measured_rows = {line for name in MEASURED for line in (DOCS / name).read_text().splitlines()}
    text = path.read_text()
    missing = [row for row in rows(section(text, "Measured")) if row not in measured_rows]
    assert not missing, f"these rows are in none of {', '.join(MEASURED)} any more: {missing}"
    for result in re.findall(r"benchmarks/results/\w+\.json", text):
        assert (ROOT / result).is_file(), result


def commands(text: str) -> list[list[str]]:
    """Every `headway ...` of a code block or in back-ticks, up to what it starts."""
    blocks = re.findall(r"^    (.*headway .*)$", text, re.M)
    spans = re.findall(r"`(headway [^`]+)`", text)
    result = []
    for line in (*blocks, *spans):
        words = shlex.split(line.partition("  #")[0])
        for place, word in enumerate(words):
            if word == "headway":
                rest = words[place + 1 :]
                result.append(rest[: rest.index("--")] if "--" in rest else rest)
    return result


def flags(parser: argparse.ArgumentParser) -> set[str]:
    names: set[str] = set()
    for action in parser._actions:
        names |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for part in action.choices.values():
                names |= flags(part)
    return names


@pytest.mark.parametrize("path", [*TECHNIQUES, *AUDIENCES, DOCS / "plan.md"], ids=named)
def test_every_command_exists(path: Path) -> None:
    for verb, *words in commands(path.read_text()):
        assert verb in VERBS, verb
        parser = argparse.ArgumentParser(prog=verb)
        function(SHARED.get(verb, f"headway.cli.{verb}"), "prepare")(parser)
        for word in words:
            assert not word.startswith("--") or word.partition("=")[0] in flags(parser), word
