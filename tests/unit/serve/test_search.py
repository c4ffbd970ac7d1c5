"""What takes long is looked for by another process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.serve.search import Search

pytestmark = pytest.mark.timeout(120)


def search_by(code: str) -> Search:
    made = Search("nowhere")
    made._command = [sys.executable, "-c", code]
    return made


def test_nobody_waits_and_it_is_found_once(tmp_path: Path) -> None:
    note = tmp_path / "begun"
    search = search_by(f"open({str(note)!r}, 'a').write('x'); print('{{\"jobs\": 7}}')")
    assert search.found("v1") is None
    search.wait(60)
    assert search.found("v1") == {"jobs": 7}
    assert search.found("v2") == {"jobs": 7}  # newer, but just looked for
    search.close()
    assert note.read_text() == "x"


def test_a_failure_is_told_and_not_tried_at_once_again() -> None:
    search = search_by("import sys; sys.exit('headway: the store is gone')")
    search.found("v1")
    search.wait(60)
    for _ in range(2):
        with pytest.raises(HeadwayError, match="the store is gone"):
            search.found("v1")


def test_it_ends_with_the_server() -> None:
    search = search_by("import time; time.sleep(600)")
    search.found("v1")
    while search._child is None:
        search.wait(0.05)
    search.close()
    assert search._child.poll() is not None
    with pytest.raises(HeadwayError):
        search.found("v2")
