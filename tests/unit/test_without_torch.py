"""Failed tests if torch is not installed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.without_torch import _skip_without_torch


@pytest.mark.parametrize(
    ("outcome", "text", "expected"),
    [
        ("failed", "E   ModuleNotFoundError: No module named 'torch'", "skipped"),
        ("failed", "E   ModuleNotFoundError: No module named 'torchdata'", "failed"),
        ("failed", "E   assert 1 == 2", "failed"),
        ("passed", "", "passed"),
    ],
)
def test_only_a_missing_torch_is_a_reason(outcome: str, text: str, expected: str) -> None:
    report = SimpleNamespace(outcome=outcome, longrepr=text)
    _skip_without_torch(report, "tests/unit/test_x.py")
    assert report.outcome == expected
