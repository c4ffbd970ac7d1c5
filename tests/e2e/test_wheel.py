"""What is built from the tree has all that the tree has: pages, rules and data as well as code."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = (
    "py.typed",
    "fleet/metrics_rules.yml",
    "sim/fleet/tables.json",
    "launch/failures/signatures.jsonl",
    "web/templates/report.html",
    "sim/data/philly_jobs.csv.gz",
    "web/assets/charts.js",
    "serve/templates/page.html",
)

pytest.importorskip("hatchling", reason="builds without a network, so hatchling must be there")


@pytest.mark.timeout(120)
def test_a_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "headway", source / "src" / "headway", ignore=leave)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*build, "--no-index", "-w", str(tmp_path), str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("headway-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = source / "src" / "headway"
    files = {
        f"headway/{path.relative_to(package)}" for path in package.rglob("*") if path.is_file()
    }
    assert {f"headway/{name}" for name in NEEDED} <= files <= names
    rest = names - files
    assert all(name.partition("/")[0].endswith(".dist-info") for name in rest), rest
