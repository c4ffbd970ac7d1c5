"""The search for regressions runs in a separate process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.fleet.store.parquet import Store
from headway.serve.search import RETRY_S, Search
from tests.support import has_code, wait_until
from tests.unit.serve.fleet import RUNS

pytestmark = pytest.mark.timeout(120)


def search_by(code: str) -> Search:
    search = Search("nowhere")
    search._command = [sys.executable, "-c", code]
    return search


def test_nobody_waits_and_it_is_found_once(tmp_path: Path) -> None:
    note = tmp_path / "begun"
    search = search_by(f"open({str(note)!r}, 'a').write('x'); print('{{\"jobs\": 7}}')")
    assert search.result("v1") is None
    search.wait(60)
    assert search.result("v1") == {"jobs": 7}
    assert search.result("v2") == {"jobs": 7}  # newer, but just looked for
    search.close()
    assert note.read_text() == "x"


def test_a_failure_is_told_and_tried_again_later() -> None:
    now = 1000.0
    search = Search("nowhere", lambda: now)
    search._command = [sys.executable, "-c", "import sys; sys.exit('headway: the store is gone')"]
    search.result("v1")
    search.wait(60)
    for _ in range(2):
        with pytest.raises(HeadwayError, check=has_code("search-failed")) as error:
            search.result("v1")
        assert "the store is gone" in str(error.value)
    search._command = [sys.executable, "-c", "print('{\"jobs\": 7}')"]
    now += RETRY_S
    with pytest.raises(HeadwayError, check=has_code("search-failed")):
        search.result("v1")  # the same version of the store: it is looked for again meanwhile
    search.wait(60)
    assert search.result("v1") == {"jobs": 7}
    search.close()


@pytest.mark.parametrize("command", [["/no/such/program"], [sys.executable, "-c", "print('{')"]])
def test_a_search_that_cannot_be_started_or_read_is_a_failure(command: list[str]) -> None:
    search = Search("nowhere")
    search._command = command
    search.result("v1")
    search.wait(60)
    with pytest.raises(HeadwayError, check=has_code("search-failed")):
        search.result("v1")
    search.close()


def test_it_ends_with_the_server() -> None:
    search = search_by("import time; time.sleep(600)")
    search.result("v1")
    child = wait_until(lambda: search._child)
    search.close()
    assert child.poll() is not None
    with pytest.raises(HeadwayError):
        search.result("v2")


@pytest.mark.xdist_group("pages")
def test_a_store_is_searched(store: Store) -> None:
    search = Search(store.url)
    assert search.result("v1") is None
    search.wait(100)
    result = search.result("v1")
    assert result is not None and result["jobs"] == RUNS
    assert (result["regressions"], result["lemons"]) == ([], [])
    search.close()
