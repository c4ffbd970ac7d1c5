"""Precompile packages: loaded if correct, refused if they would be wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.journal.reader import read_journals
from tests.support import probe_env

JOB = Path(__file__).parent / "precompile" / "job.py"
# No C++ code but the kernels': no programs that try the processor, no header of 150 MB.
PLAIN = {"TORCHINDUCTOR_VEC_ISA_OK": "0", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}

slow = pytest.mark.slow
pytestmark = pytest.mark.timeout(300)


def run(folder: Path, cache: Path, case: str = "") -> tuple[dict[str, Any], list[str]]:
    """Run a process; returns its output and the codes of the notes about its packages."""
    journal = folder / f"journal-{case.replace(' ', '-')}"
    journal.mkdir(exist_ok=True)
    (folder / "talk").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(JOB)],
        env=probe_env(
            journal,
            HEADWAY_COMPILE=str(folder),
            TORCH_CACHING_PRECOMPILE="1",
            TORCHINDUCTOR_CACHE_DIR=str(cache),
            CASE=case,
            **PLAIN,
        ),
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    journals, problems = read_journals(str(journal))
    assert not problems
    notes = [note for journal in journals for note in journal.named("note")]
    codes = [note["code"] for note in notes if note["hook"] == "precompile"]
    return json.loads(done.stdout.splitlines()[-1]), codes


def filled(tmp_path_factory: pytest.TempPathFactory, case: str) -> Path:
    """A cache folder with the package of a case."""
    cache = tmp_path_factory.mktemp("made")
    result, codes = run(tmp_path_factory.mktemp("talk"), cache, case)
    assert (result["hits"], result["graphs"], codes) == (0, 1, [])
    right(result)
    assert len(list(cache.glob("dynamo/*/headway-guards.json"))) == 1
    return cache


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory, "")


def right(result: dict[str, Any]) -> None:
    """The results equal those of eager."""
    assert result["got"] == pytest.approx(result["expected"], rel=1e-4)
    assert result["buffers"]


def consumed(made: Path, folder: Path, case: str) -> tuple[dict[str, Any], list[str]]:
    """Run another process with that folder."""
    shutil.copytree(made, folder / "cache")
    return run(folder, folder / "cache", case)


@pytest.mark.parametrize("case", ["small", pytest.param("", marks=slow)])
def test_an_equal_job_traces_nothing(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, case: str
) -> None:
    result, codes = consumed(filled(tmp_path_factory, case), tmp_path, case)
    assert (result["hits"], result["graphs"], codes) == (1, 0, [])
    right(result)


@slow
@pytest.mark.parametrize(
    "case", ["attribute", "own function", "global function", "default", "closure"]
)
def test_another_function_behind_a_dropped_guard_is_seen(
    made: Path, tmp_path: Path, case: str
) -> None:
    result, codes = consumed(made, tmp_path, case)
    assert (result["hits"], codes) == (0, ["package-guards-differ"])
    right(result)


@slow
@pytest.mark.parametrize("case", ["partial", "submodule", "number", "global number", "flag"])
def test_what_the_kept_guards_see_compiles_anew(made: Path, tmp_path: Path, case: str) -> None:
    result, _ = consumed(made, tmp_path, case)
    assert (result["hits"], result["graphs"]) == (1, 1)
    right(result)


@slow
def test_a_function_that_is_replaced_in_mid_run(made: Path, tmp_path: Path) -> None:
    result, codes = consumed(made, tmp_path, "in mid run")
    assert codes == ["package-outdated"]
    right(result)


@slow
@pytest.mark.parametrize("case", ["sizes", "eval in mid run"])
def test_a_recompile_after_a_load(made: Path, tmp_path: Path, case: str) -> None:
    result, _ = consumed(made, tmp_path, case)
    assert (result["hits"], result["graphs"]) == (1, 1)
    right(result)


@slow
def test_random_numbers_cannot_be_compared(made: Path, tmp_path: Path) -> None:
    _, codes = consumed(made, tmp_path, "random")
    assert codes[0] == "package-draws-random-numbers"


@slow
def test_a_package_that_was_made_with_gradients_set(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    made, _ = run(tmp_path, cache, "gradients")
    right(made)
    result, _ = run(tmp_path, cache, "gradients")
    right(result)


@slow
def test_a_package_that_is_wrong_for_a_reason_that_nobody_kept(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "cache")
    (guards,) = (tmp_path / "cache").glob("dynamo/*/headway-guards.json")
    rows = [row for row in json.loads(guards.read_text()) if row[0] != "L['self'].act"]
    guards.write_text(json.dumps(rows))
    result, codes = run(tmp_path, tmp_path / "cache", "attribute")
    assert (result["hits"], codes[0]) == (1, "package-other-numbers")
    right(result)
