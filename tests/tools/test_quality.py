"""`make quality`: mutants are found again, and only a failure of the mutant is a kill."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.quality import plugin
from tools.quality.mutants import Mutant, Renames, find_candidates, place, shares, skipped
from tools.quality.packages import files_of, package_of, unassigned
from tools.quality.runs import Outcome, changed, judge

ROOT = Path(__file__).parents[2]
OLD = "src/headway/plan/job.py"
NEW = "src/headway/plan/input.py"
SOURCE = """\
class Case:
    def steps(self, told):
        if told.count <= self.limit and told.good:
            return told.count
        return 0

def other(told):
    if told.count <= 3:
        return 1
    if told.count <= 3:
        return 2
"""
MUTANT = Mutant(
    OLD,
    "Case.steps",
    "if told.count <= self.limit and told.good:",
    "if told.count < self.limit and told.good:",
    "ReplaceComparisonOperator_LtE_Lt",
)
SECOND = Mutant(OLD, "other", "if told.count <= 3:", "if not told.count <= 3:", "AddNot", nth=1)


def mutated(mutant: Mutant, sources: dict[str, str]) -> list[tuple[str, str]]:
    """The lines that differ, as (module, line)."""
    placed = place(mutant, sources)
    assert placed is not None
    where, text = placed
    pairs = zip(sources[where.module].splitlines(), text.splitlines(), strict=True)
    return [(where.module, after.strip()) for before, after in pairs if before != after]


def test_a_mutant_is_placed_in_its_function() -> None:
    assert mutated(MUTANT, {OLD: SOURCE}) == [(OLD, MUTANT.mutated)]


def test_of_equal_lines_the_stored_one_changes() -> None:
    placed = place(SECOND, {OLD: SOURCE})
    assert placed is not None
    assert placed[0].lineno == 10
    assert placed[1] == SOURCE.replace(
        "    if told.count <= 3:\n        return 2", "    if not told.count <= 3:\n        return 2"
    )


@pytest.mark.parametrize(
    ("renames", "text", "line"),
    [
        ({}, SOURCE, MUTANT.mutated),
        ({}, SOURCE.replace("class Case", "class Input"), MUTANT.mutated),
        (
            {"modules": {OLD: NEW}, "names": {"told": "event", "steps": "count_steps"}},
            SOURCE.replace("told", "event").replace("steps", "count_steps"),
            "if event.count < self.limit and event.good:",
        ),
    ],
    ids=["module moved", "class renamed", "identifiers renamed"],
)
def test_a_mutant_is_found_after_a_rename(renames: Any, text: str, line: str) -> None:
    assert mutated(Renames(**renames).apply(MUTANT), {NEW: text}) == [(NEW, line)]


def test_a_mutant_is_found_after_a_reformat() -> None:
    mutant = Mutant(OLD, "f", "return min(a, b <= c)", "return min(a, not b <= c)", "AddNot")
    source = "def f(a, b, c):\n    return min(\n        a,\n        b <= c,\n    )\n"
    placed = place(mutant, {OLD: source})
    assert placed is not None
    assert ast.unparse(ast.parse(placed[1])).endswith("return min(a, not b <= c)")


def test_folders_are_renamed_by_whole_names() -> None:
    renames = Renames(modules={"src/headway/plan": "src/headway/whatif"})
    assert renames.module(OLD) == "src/headway/whatif/job.py"
    assert renames.module("src/headway/planner/job.py") == "src/headway/planner/job.py"


@pytest.mark.parametrize(
    "sources",
    [
        {OLD: SOURCE.replace("told.good", "told.valid")},
        {OLD: "x = 1\n"},
        {"src/headway/a.py": SOURCE, "src/headway/b.py": SOURCE},
    ],
    ids=["line changed", "code gone", "several places"],
)
def test_a_mutant_without_one_place_is_not_placed(sources: dict[str, str]) -> None:
    assert place(MUTANT, sources) is None


def test_every_package_has_a_mutant_and_the_rest_go_by_lines() -> None:
    assert shares({"a": 900, "b": 90, "c": 10}, 20) == {"a": 18, "b": 1, "c": 1}
    assert shares({"a": 1, "b": 1}, 1) == {"a": 1, "b": 1}
    sizes = shares({str(n): n * n for n in range(1, 19)}, 60)
    assert sum(sizes.values()) == 60 and min(sizes.values()) == 1


def test_types_messages_and_decorators_are_left_out() -> None:
    lines = [
        "Text = str | None",
        "@cache(maxsize=1)",
        "def f(x: int | None = 1) -> int | str:",
        "    raise ValueError(f'{x + 1}')",
        "    warn(x + 1)",
        "    assert x + 1",
        "    return x + 1",
    ]
    ranges = skipped(ast.parse("\n".join(lines)))

    def is_skipped(lineno: int, text: str) -> bool:
        at = (lineno, lines[lineno - 1].index(text))
        return any(first <= at < last for first, last in ranges)

    assert is_skipped(1, "|") and is_skipped(2, "1")
    assert is_skipped(3, "|") and not is_skipped(3, "= 1")
    assert [is_skipped(n, "+ 1") for n in (4, 5, 6, 7)] == [True, True, True, False]


def test_candidates_are_cosmic_rays() -> None:
    pytest.importorskip("cosmic_ray", reason="make quality installs it")
    source = "LIMIT = 3\ndef f(x):\n    return x == 3 and x is None\n"
    operators = {candidate.operator for candidate in find_candidates(source)}
    assert {"NumberReplacer", "ReplaceAndWithOr", "ReplaceComparisonOperator_Eq_Lt"} <= operators
    assert "ReplaceComparisonOperator_Is_Eq" not in operators
    assert {candidate.lineno for candidate in find_candidates(source)} == {3}


def test_bytecode_of_a_mutant_does_not_outlive_it(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("value = 1\n")
    command = [sys.executable, "-c", "import module; print(module.value)"]

    def value() -> str:
        os.utime(module, (1e9, 1e9))  # as if all texts were written within a second
        return subprocess.check_output(command, cwd=tmp_path, text=True).strip()

    assert value() == "1"
    with changed(module, "value = 2\n"):
        assert value() == "2"
    assert value() == "1"


class Runs:
    """In place of a Tree: outcomes by what the module holds, in their order."""

    def __init__(self, path: Path, mutant: list[Outcome], plain: list[Outcome]) -> None:
        self.path = path
        self.outcomes = {"mutant": mutant, "plain": plain}
        self.arguments: list[list[str]] = []

    def run(self, tests: list[str], **_: Any) -> Outcome:
        self.arguments.append(tests)
        return self.outcomes[(self.path / "module.py").read_text()].pop(0)


PASSED = Outcome(0, 1.0, (), "")
FAILED = Outcome(1, 1.0, ("t.py::a",), "")
CRASHED = Outcome(4, 1.0, (), "")
LATE = Outcome(None, 90.0, (), "")


@pytest.mark.parametrize(
    ("mutant", "plain", "outcome", "unstable"),
    [
        ([PASSED], [], "survived", None),
        ([LATE], [], "timeout", None),
        ([CRASHED], [], "killed", None),
        ([FAILED, FAILED], [PASSED], "killed", None),
        ([FAILED, PASSED, PASSED], [], "survived", ["t.py::a"]),
        ([FAILED, FAILED, PASSED], [FAILED], "survived", ["t.py::a"]),
        ([FAILED, PASSED] * 3, [], "unclear", ["t.py::a"] * 3),
    ],
)
def test_a_kill_is_a_failure_of_the_mutant_alone(
    tmp_path: Path, mutant: list[Outcome], plain: list[Outcome], outcome: str, unstable: Any
) -> None:
    (tmp_path / "module.py").write_text("plain")
    runs: Any = Runs(tmp_path, list(mutant), list(plain))
    result = judge(runs, "module.py", "mutant", ["t.py"], 90.0)
    assert result["outcome"] == outcome
    assert result.get("unstable") == unstable
    assert not runs.outcomes["mutant"] and not runs.outcomes["plain"]
    assert (tmp_path / "module.py").read_text() == "plain"
    if unstable == ["t.py::a"]:
        assert runs.arguments[-1] == ["t.py", "--deselect=t.py::a"]


def test_the_plugin_keeps_the_order_and_names_failures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("""
import pytest
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.nodeid)
""")
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(
            "def test(): assert False\ndef test_more(): pass\n"
        )
    failed = tmp_path / "failed"
    command = [sys.executable, "-m", "pytest", "-p", "tools.quality.plugin", "-n", "0", "-q"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), plugin.FAILED: str(failed)}
    subprocess.run([*command, "test_b.py", "test_a.py"], cwd=tmp_path, env=env, capture_output=True)
    assert failed.read_text().splitlines() == ["test_b.py::test", "test_a.py::test"]


ORPHANS = """
import subprocess
from tools.quality.runs import adopt_orphans, descendants, kill_descendants
adopt_orphans()
subprocess.run(["sh", "-c", "setsid sleep 300 & setsid sh -c 'sleep 300 & sleep 300' & exit 0"])
before = len(descendants())
kill_descendants()
print(before > 0, descendants())
"""


def test_no_process_outlives_a_run() -> None:
    output = subprocess.check_output([sys.executable, "-c", ORPHANS], cwd=ROOT, text=True)
    assert output.strip() == "True []"


def test_every_package_and_test_file_is_assigned() -> None:
    assert unassigned(ROOT) == []
    assert package_of("src/headway/plan/html.py") == "plan"
    assert package_of("src/headway/errors.py") == "root"
    assert files_of(ROOT, "plan")[0].startswith("tests/unit/plan/")
