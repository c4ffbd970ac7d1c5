"""The public face, and what each room may import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headway

SOURCE = Path(headway.__file__).parent
# A room and the rooms of headway it may import, besides itself; see design: data flows one way.
ROOMS = {
    "journal": {"errors"},
    "probe": {"journal"},
    # report only for Run._repr_html_, when it is shown
    "ledger": {"journal", "errors", "taxonomy", "report"},
    "launch": {"journal", "probe", "errors", "taxonomy"},
    "report": {"ledger", "journal", "errors", "compile"},  # compile for the advisor's cures
    "compile": {"journal", "probe", "errors", "report"},  # its advice is shown like the rest
    "startup": {"probe", "sdk", "errors", "threads"},
    "checkpoint": {"journal", "probe", "sdk", "errors", "threads"},
    "publish": {"checkpoint", "errors", "settings"},
    "fleet": {"ledger", "journal", "errors", "taxonomy"},
    "schedule": {"ledger", "errors"},
    "serve": {"fleet", "ledger", "report", "journal", "errors"},
    # schedule for the ticks of a plot
    "plan": {"checkpoint", "errors", "fleet", "ledger", "report", "schedule"},
    # each rule asks the room that knows: causes of recompiles, intervals, prices, limits
    "advise": {
        "ledger",
        "journal",
        "report",
        "compile",
        "checkpoint",
        "launch",
        "schedule",
        "fleet",
    },
    # settings for its reader of TOML
    "boosters": {"compile", "errors", "journal", "launch", "ledger", "probe", "settings"},
    "integrations": {"startup", "errors"},
}
STDLIB_ONLY = (
    *("journal", "probe", "launch", "ledger"),
    *("sdk.py", "auto.py", "errors.py", "threads.py"),
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


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_one_way(room: str) -> None:
    for path in (SOURCE / room).rglob("*.py"):
        rooms = {name.split(".")[1] for name in imported(path) if name.startswith("headway.")}
        rooms -= {room, "__version__"}
        assert rooms <= ROOMS[room], f"{path.relative_to(SOURCE)} imports {rooms - ROOMS[room]}"


@pytest.mark.parametrize("room", STDLIB_ONLY)
def test_what_runs_beside_the_job_needs_the_standard_library(room: str) -> None:
    found = SOURCE / room
    for path in found.rglob("*.py") if found.is_dir() else [found]:
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
        ("import headway.probe.imports", ("typing", "dataclasses", "headway.probe.recorder")),
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
