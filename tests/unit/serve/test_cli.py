"""`headway serve` before it serves: what is wrong is one sentence and exit code 2."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.fleet.store import Store


@pytest.fixture(autouse=True)
def without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_TOKEN", raising=False)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["serve", *words]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    return told.err


def test_wrong_use(capsys: pytest.CaptureFixture[str], store: Store, tmp_path: Path) -> None:
    assert "there is no store" in refused(capsys, str(tmp_path / "nothing"))
    assert "HOST:PORT" in refused(capsys, store.url, "--listen", "8787")
    assert "give a token" in refused(capsys, store.url, "--listen", "0.0.0.0:0")
    short = refused(capsys, store.url, "--listen", "0.0.0.0:0", "--token", "short")
    assert "16 or more" in short
    assert "is no folder" in refused(capsys, store.url, "--runs", str(tmp_path / "nothing"))


def test_a_missing_package_is_named(
    capsys: pytest.CaptureFixture[str], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: Any = None) -> Any:
        return None if name == "plotly" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    told = refused(capsys, store.url)
    assert told == "headway: `headway serve` needs plotly; type: pip install 'headway[serve]'\n"
