"""`headway serve` reports invalid arguments in one line, with exit code 2."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from headway.cli import main
from headway.errors import install_command
from headway.fleet.store.parquet import Store
from tests.support import codes

pytestmark = pytest.mark.xdist_group("pages")


def test_a_missing_package_is_named(
    capsys: pytest.CaptureFixture[str], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: Any = None) -> Any:
        return None if name == "plotly" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert main(["serve", store.url]) == 2
    error = capsys.readouterr().err
    assert codes(error) == ["missing-package"]
    assert "needs plotly" in error and install_command("serve") in error
