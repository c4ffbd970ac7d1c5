"""Reports of runs whose folders are available."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from headway.serve import sources
from headway.serve.sources import RunFolders
from headway.testing import FakeRun


@pytest.fixture
def roots(tmp_path: Path) -> Path:
    """Two runs."""
    for name in ("one", "two"):
        run = FakeRun()
        run.launcher(begin=0)
        run.process(begin=1).train(first=1, count=5, start=5, each=0.5)
        folder = run.write(tmp_path / name)
        (folder / "run.json").write_text(f'{{"run": "{name}", "created": "2026-11-1{len(name)}"}}')
    return tmp_path


def test_a_slow_report_does_not_block_others(roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def page(ledger: Any) -> str:
        if ledger.run == "one":
            begun.set()
            assert go.wait(30)
        return f"the report of {ledger.run}"

    monkeypatch.setattr(sources, "page", page)
    folders = RunFolders([roots])
    one, two = (sources._run_id(roots / name) for name in ("one", "two"))
    texts: list[str | None] = []
    thread = threading.Thread(target=lambda: texts.append(folders.report(one)))
    thread.start()
    assert begun.wait(30)
    assert folders.report(two) == "the report of two" and not texts
    go.set()
    thread.join(30)
    assert texts == ["the report of one"]


def test_a_removed_folder_has_no_report(roots: Path) -> None:
    folders = RunFolders([roots])
    name = sources._run_id(roots / "one")
    assert folders.find(name) == roots / "one"
    shutil.rmtree(roots / "one")
    assert folders.report(name) is None
