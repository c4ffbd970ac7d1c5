"""Without torch, tests that fail because of that are skipped.

`--at-least N` fails a session in which fewer tests pass, as nearly all tests may be skipped.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

MISSING = "No module named 'torch'"
Reports = Generator[None, pytest.CollectReport, pytest.CollectReport]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--at-least", type=int, default=1, help="tests that have to pass")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Reports:
    report = yield
    _skip_without_torch(report, str(collector.path))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _skip_without_torch(report, str(item.path))
    return report


def _skip_without_torch(report: Any, path: str) -> None:
    """Whether its traceback, or the output of other processes, shows an import of torch."""
    if report.outcome == "failed" and MISSING in f"{report.longrepr}":
        report.outcome = "skipped"
        report.longrepr = (path, 0, "Skipped: needs torch")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    least: int = session.config.getoption("--at-least")
    if hasattr(session.config, "workerinput"):
        return
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    passed, skipped = (len(reporter.stats.get(key, ())) for key in ("passed", "skipped"))
    reporter.ensure_newline()
    reporter.write_line(f"without torch: {passed} passed, {skipped} skipped; at least {least}")
    if passed < least:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
