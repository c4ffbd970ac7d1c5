"""The public names, and what each package may import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headway

SOURCE = Path(headway.__file__).parent
# What runs beside the job. The import layers are in pyproject.toml and checked by `make lint`.
STDLIB_ONLY = (
    *("journal", "probe", "launch", "ledger"),
    *("storage/atomic_write.py", "storage/process_identity.py", "storage/remote.py"),
    *("auto.py", "errors.py", "eviction_cost.py", "format.py", "redact.py", "sdk.py"),
    *("settings.py", "slurm.py", "stats.py", "taxonomy.py", "torch_threads.py", "units.py"),
)
# fsspec and pandas are fetched by users who ask for a URL or a frame; torch is the user's own.
ALLOWED = {"fsspec", "pandas", "torch", "headway"}


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "headway":
                found |= {f"headway.{alias.name}" for alias in node.names}
    return found


def test_public_names_are_pinned() -> None:
    assert headway.__all__ == [
        "Run",
        "__version__",
        "compile",
        "load",
        "on_preempt",
        "progress",
        "span",
        "stage",
        "startup",
        "step",
        "track",
    ]
    for name in headway.__all__:
        assert getattr(headway, name) is not None
    with pytest.raises(AttributeError):
        _ = headway.nothing_of_that_name


@pytest.mark.parametrize("name", STDLIB_ONLY)
def test_what_runs_beside_the_job_needs_the_standard_library(name: str) -> None:
    place = SOURCE / name
    for path in place.rglob("*.py") if place.is_dir() else [place]:
        roots = {name.split(".")[0] for name in imported(path)}
        foreign = roots - ALLOWED - set(sys.stdlib_module_names)
        assert not foreign, f"{path.relative_to(SOURCE)} imports {foreign}"


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import headway", ("torch", "rich", "jinja2", "typing", "headway.probe")),
        ("import headway; headway.load", ("torch", "rich", "jinja2")),
        ("import headway.report.terminal, headway.report.html", ("torch",)),
        ("import headway; from headway.checkpoint import interval, tuner", ("torch",)),
        ("import headway.cli", ("torch", "rich", "jinja2")),
        ("import headway.probe.import_hook", ("typing", "dataclasses", "headway.probe.recorder")),
    ],
)
def test_nothing_heavy_is_loaded_early(statement: str, absent: tuple[str, ...]) -> None:
    script = f"import sys; {statement}; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {script}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert not set(absent) & set(done.stdout.split())
