"""One store for all tests of the pages, and a browser that is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from headway.fleet.store import Store
from headway.serve.app import application
from headway.serve.guard import Keys
from headway.serve.source import Source
from tests.unit.serve import fleet


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fleet.make(tmp_path_factory.mktemp("fleet") / "store")


@pytest.fixture(scope="session")
def source(store: Store) -> Iterator[Source]:
    made = Source(store)
    yield made
    made.close()


@pytest.fixture
def client(source: Source) -> TestClient:
    """On this machine, without a token."""
    return TestClient(
        application(source, Keys(None)), base_url="http://127.0.0.1:8787", follow_redirects=False
    )
