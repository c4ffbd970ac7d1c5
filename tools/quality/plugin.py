"""A pytest plugin: names failed tests in a file, keeps their order, makes them repeatable."""

from __future__ import annotations

import os
import sys

import pytest

FAILED = "QUALITY_FAILED"  # the file, one test per line
TEST_FILE = "QUALITY_TEST_FILE"  # the context of what its tests and their processes execute


def pytest_runtest_logstart(nodeid: str) -> None:
    coverage = sys.modules.get("coverage")
    if coverage is not None and (current := coverage.Coverage.current()) is not None:
        os.environ[TEST_FILE] = nodeid.partition("::")[0]  # for the processes of the test
        current.switch_context(os.environ[TEST_FILE])


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed and FAILED in os.environ:
        with open(os.environ[FAILED], "a") as file:
            file.write(f"{report.nodeid}\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


@pytest.hookimpl(trylast=True)  # after a conftest has sorted them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run files in the order of the command line."""
    order = {argument: index for index, argument in enumerate(config.args)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))


@pytest.hookimpl(trylast=True)  # after a conftest has chosen a profile
def pytest_configure() -> None:
    from hypothesis import Phase, settings

    settings.register_profile(
        "quality",
        settings(),
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),  # a failure is enough, its smallest case is not
    )
    settings.load_profile("quality")
