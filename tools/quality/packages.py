"""The packages of src/headway, and the test files that belong to each.

python -m tools.quality.packages PACKAGE    print them, for pytest
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SOURCE = "src/headway"
ROOT_MODULES = "root"  # the modules that are in no package: settings.py, errors.py, ...

# Patterns below tests/. unit/PACKAGE, integration/test_PACKAGE*.py and e2e/test_PACKAGE*.py belong
# to PACKAGE without an entry. A file may belong to several packages.
TESTS: dict[str, tuple[str, ...]] = {
    "advise": (),
    "chaos": ("e2e/test_hundred_kills.py",),
    "checkpoint": (
        "golden/test_*.py",
        "integration/test_async_save.py",
        "integration/test_copied_saves.py",
        "integration/test_data_*.py",
        "integration/test_killed_saves.py",
    ),
    "cli": (
        "unit/*/test_verb*.py",
        "unit/compile/cache/test_cache_command.py",
        "unit/serve/test_cli.py",
        "unit/fleet/test_metrics.py",
        "unit/fleet/test_queries.py",
        "unit/sim/test_fleet.py",
        "unit/schedule/test_publishers*.py",
        "e2e/test_classify.py",
        "e2e/test_simulate.py",
    ),
    "compile": (
        "golden/test_*.py",
        "integration/test_autotune.py",
        "integration/test_precompile.py",
        "integration/test_recompiles.py",
    ),
    "export": ("unit/report/test_verbs.py",),
    "fleet": ("golden/test_*.py", "integration/test_slurm.py"),
    "integrations": ("torchrec/test_*.py",),
    "journal": (
        "golden/test_*.py",
        "journals/test_*.py",
        "unit/launch/test_run_folder.py",  # run folders
    ),
    "launch": (
        "integration/test_hang.py",
        "integration/test_ingest.py",
        "integration/test_processes.py",
        "integration/test_warm*.py",
        "e2e/test_nodes.py",
        "e2e/test_recover.py",
        "faults/test_*.py",
    ),
    "ledger": (
        "truth/test_*.py",
        "journals/test_*.py",
        "integration/test_eviction_cost.py",
        "e2e/test_jobs.py",
    ),
    "plan": (),
    "probe": (
        "integration/test_autotune.py",
        "integration/test_compile_cache.py",
        "integration/test_groups.py",
        "integration/test_recompiles.py",
        "integration/test_start_report.py",
    ),
    "publish": ("golden/test_*.py",),
    "report": ("e2e/test_html_in_chromium.py",),
    "schedule": (
        "integration/test_eviction_cost.py",
        "integration/test_publish_cost.py",
        "integration/test_slurm_schedule.py",
        "e2e/test_simulate.py",
    ),
    "serve": (),
    "session": ("golden/test_*.py", "e2e/test_auto.py"),
    "sim": ("e2e/test_simulate.py",),
    "startup": (
        "integration/test_groups.py",
        "integration/test_sharding.py",
        "integration/test_start*.py",
    ),
    "storage": ("unit/checkpoint/store/test_crashes.py",),
    "web": ("e2e/test_html_in_chromium.py",),
    ROOT_MODULES: (
        "e2e/test_secrets.py",
        "unit/test_*.py",
        "truth/test_*.py",
        "integration/test_probe.py",
        "integration/test_torch_threads.py",
    ),
}

# Test files of no package: they need other environments or a GPU, or test examples and tools.
OTHERS = (
    "clickhouse/*",
    "gpu/*",
    "mlflow/*",
    "programs/*",
    "spark/*",
    "e2e/test_demo.py",
    "e2e/test_wheel.py",
    "tools/*",
)


def package_of(module: str) -> str:
    """The package of a file: "src/headway/plan/job.py" is of "plan"."""
    parts = Path(module).relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ROOT_MODULES


def files_of(tree: Path, package: str) -> list[str]:
    """The test files of a package, relative to the tree; its unit tests come first."""
    tests = tree / "tests"
    paths = sorted((tests / "unit" / package).rglob("test_*.py"))
    named = (f"integration/test_{package}*.py", f"e2e/test_{package}*.py")
    for pattern in (*named, *TESTS.get(package, ())):
        paths += sorted(tests.glob(pattern))
    return [str(path.relative_to(tree)) for path in dict.fromkeys(paths)]


def seconds(tree: Path) -> dict[str, float]:
    """How long test files took once, for their order; short ones are not in it."""
    path = tree / "tests" / "durations.json"
    return json.loads(path.read_text()) if path.exists() else {}


def unassigned(tree: Path) -> list[str]:
    """Packages and test files that this module does not know."""
    source = tree / SOURCE
    packages = {package_of(str(path.relative_to(tree))) for path in source.rglob("*.py")}
    assigned = {file for package in TESTS for file in files_of(tree, package)}
    assigned |= {str(path.relative_to(tree)) for p in OTHERS for path in (tree / "tests").glob(p)}
    files = {str(path.relative_to(tree)) for path in (tree / "tests").rglob("test_*.py")}
    return sorted(packages - set(TESTS)) + sorted(files - assigned)


if __name__ == "__main__":
    print(*files_of(Path(), sys.argv[1]))
