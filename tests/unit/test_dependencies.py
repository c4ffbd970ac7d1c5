"""docs/dependencies.md and the extras that are named anywhere, against pyproject.toml."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "dependencies.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
TOOLS = ("test", "dev", "dev-full", "docs")  # not for users, so without a lower bound
REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(\[[\w,-]+\])?(?P<bound>.*)")
# `pip install '.[fleet,serve]'`, `pip install -e .[dev]`, headway[fleet]
NAMED = re.compile(r"(?:\bheadway|(?<=[\s'\"])\.)\[([a-z][\w,-]*)\]")


def requirements(extra: str) -> Iterator[tuple[str, str]]:
    """Name and bound of each package, without what other extras bring."""
    for line in PROJECT["dependencies"] if extra == "core" else EXTRAS[extra]:
        match = REQUIREMENT.fullmatch(line)
        assert match, line
        if match["name"] != "headway":
            yield match["name"], match["bound"]


def declared() -> dict[str, str]:
    """The extras of each package, as the page lists them."""
    packages: dict[str, list[str]] = {}
    for extra in ("core", *EXTRAS):
        for name, _ in requirements(extra):
            packages.setdefault(name, []).append(extra)
    return {name: ", ".join(extras) for name, extras in packages.items()}


def rows() -> dict[str, list[str]]:
    """Of the table of packages: the cells after the name."""
    table = PAGE.partition("| package |")[2].partition("\n\n")[0].splitlines()[2:]
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    return {name: cells for name, *cells in lines}


def test_the_page_lists_what_is_declared() -> None:
    assert {name: cells[0] for name, cells in rows().items()} == declared()
    assert all(len(cells) == 4 and all(cells) for cells in rows().values())


@pytest.mark.parametrize("extra", ["core", *(name for name in EXTRAS if name not in TOOLS)])
def test_what_users_install_has_a_lower_bound(extra: str) -> None:
    bounds = dict(requirements(extra))
    assert bounds and all(re.fullmatch(r">=\d+(\.\d+)*", bound) for bound in bounds.values())


def test_import_costs_are_those_that_were_measured() -> None:
    measured = json.loads((RESULTS / "imports.json").read_text())["rows"]
    listed = {name: cells[2] for name, cells in rows().items() if cells[2] != "-"}
    assert listed == {name: f"{row['ms']} ms" for name, row in measured.items()}


def test_compression_is_as_it_was_measured() -> None:
    for row in json.loads((RESULTS / "compression.json").read_text())["rows"]:
        assert (
            f"| {row['what']} | {row['bytes'] / 1e6:.1f} MB | {row['way']} "
            f"| {100 * row['packed'] / row['bytes']:.1f} % | {row['pack_s'] * 1e3:,.1f} ms "
            f"| {row['unpack_s'] * 1e3:,.1f} ms |\n"
        ) in PAGE


def texts() -> list[Path]:
    files = [ROOT / name for name in ("Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    files += [*(ROOT / "docs").rglob("*.md"), *(ROOT / ".ci").iterdir()]
    return files + [path for name in ("src", "examples") for path in (ROOT / name).rglob("*.py")]


def test_extras_that_are_named_exist() -> None:
    named = {
        (path.name, extra)
        for path in texts()
        for match in NAMED.findall(path.read_text())
        for extra in match.split(",")
    }
    assert len(named) > 8
    assert [(file, extra) for file, extra in sorted(named) if extra not in EXTRAS] == []


def test_extras_of_errors_exist() -> None:
    extras = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("MissingExtra"):
                (extra,) = [word.value for word in node.keywords if word.arg == "extra"]
                extras.add(ast.unparse(extra).strip("'"))
    # The trackers of `headway export` are extras by their own names.
    assert extras - {"tracker"} | {"mlflow", "tensorboard", "wandb"} <= set(EXTRAS)
    assert len(extras) > 8


def test_docs_install_from_a_checkout() -> None:
    """The package is on no index: `pip install headway` installs nothing, or something else."""
    for path in texts():
        assert not re.search(r"pip install (-\S+ )*'?headway", path.read_text()), path
