"""The pages over HTTP: their content, and what clients cannot get."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headway.fleet.rows import to_rows
from headway.fleet.store.parquet import Store
from headway.run import load
from headway.serve.pages import PAGES
from headway.serve.sources import Source
from tests.support import codes, pages
from tests.unit.fleet.store_rows import run_rows
from tests.unit.serve.fleet import EVIL
from tests.unit.test_docs import code

if TYPE_CHECKING:
    from starlette.testclient import TestClient

pytestmark = pytest.mark.xdist_group("pages")


class Outline(HTMLParser):
    """Collects headings, and everything that a browser would execute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "script" and "src" not in named:
            self.inline.append(tag)
        self.inline += [name for name in named if name.startswith("on") or name == "style"]


@pytest.mark.parametrize("path", [*(page.path for page in PAGES), "/runs/run000000001", "/login"])
def test_pages_are_small_and_well_formed(client: TestClient, path: str) -> None:
    answer = client.get(path)
    if path == "/login":
        assert answer.status_code == 303  # there is no token to ask for
        return
    assert answer.status_code == 200
    assert len(answer.content) < 20_000
    outline = Outline(answer.text)
    assert outline.inline == []
    assert outline.headings[0] == 1
    steps = zip(outline.headings[1:], outline.headings[:-1], strict=True)
    assert all(after - before <= 1 for after, before in steps)
    assert re.findall(r'(?:src|href|action)="(?!/|#)', answer.text) == []


def test_a_page_reads_nothing_of_the_store(tmp_path: Path) -> None:
    client = pages(Source(Store(str(tmp_path / "nothing"))))
    for page in PAGES:
        assert client.get(page.path).status_code == 200


def test_store_errors_are_logged_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = pages(Source(Store(str(tmp_path / "gone")))).get("/data/headline")
    assert answer.status_code == 503 and answer.json()["code"] == "store-unreadable"
    assert str(tmp_path) not in answer.text
    log = capsys.readouterr().err
    assert codes(log) == ["store-not-found"] and str(tmp_path) in log


def test_texts_of_the_url_are_escaped(client: TestClient) -> None:
    for name in ("q", "category", "host", "team", "user"):
        text = client.get("/runs", params={name: f'"{EVIL}'}).text
        assert EVIL not in text
        assert "&lt;script&gt;" in text


def test_texts_of_journals_are_never_sent_as_html(client: TestClient) -> None:
    answer = client.get("/data/runs")
    assert EVIL in answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/pyproject.toml",
        "/static//etc/passwd",
        "/runs/..%2f..%2fetc",
        "/runs/%2e%2e/report",
        "/runs/run000000001/report",
        "/runs/a%00b",
        "/data/..%2fstore.json",
        "/data/nothing",
        "/nothing",
        "/store.json",
    ],
)
def test_no_path_of_the_disk_can_be_reached(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "root:" not in answer.text and "import" not in answer.text


def test_bad_parameters_are_one_line(client: TestClient) -> None:
    answer = client.get("/data/ett?by=password")
    assert answer.status_code == 400
    assert answer.json()["code"] == "split-unknown"
    assert client.get("/?since=never").status_code == 400


def test_a_fault_shows_no_traceback(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("secret of the server")

    monkeypatch.setattr(source, "choices", fail)
    answer = pages(source, raise_server_exceptions=False).get("/data/choices")
    assert answer.status_code == 500 and answer.json()["code"] == "internal-fault"
    assert "secret" not in answer.text
    assert "content-security-policy" in answer.headers


def test_static_files_are_immutable_and_compressed(client: TestClient) -> None:
    page = client.get("/").text
    for path in re.findall(r'"(/static/[^"]+)"', page):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-encoding"] == "gzip"
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == answer.content


def test_choices(client: TestClient) -> None:
    content = client.get("/data/choices").json()
    assert sorted(content["choices"]["team"]) == ["<b>search</b>", "ads"]
    assert content["about"]["runs"] == 12


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run on disk with a hostile name, written as described in docs/journal.md."""
    folder = tmp_path / "runs" / "night"
    script = tmp_path / "write.py"
    script.write_text(code("journal.md", "Writing one"))
    subprocess.run([sys.executable, "-I", script, folder], check=True, timeout=60)
    identity = {"run": EVIL, "created": "2026-11-16T00:00:00", "host": "node-1", "command": [EVIL]}
    (folder / "run.json").write_text(json.dumps(identity))
    return folder


def test_the_report_of_a_run_with_a_folder(run_folder: Path, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    tables = to_rows(load(run_folder).ledger)
    store.write(tables)
    source = Source(store, [run_folder.parent])
    client = pages(source)
    run_id = tables["runs"][0]["run_id"]
    page = client.get(f"/runs/{run_id}").text
    assert f'<iframe src="/runs/{run_id}/report"' in page
    answer = client.get(f"/runs/{run_id}/report")
    assert answer.status_code == 200
    assert EVIL not in answer.text and "&lt;script&gt;alert(1)" in answer.text
    policy = answer.headers["content-security-policy"]
    assert re.search(r"script-src 'sha256-[^']+';", policy)
    assert "frame-ancestors 'self'" in policy
    assert client.get("/runs/night/report").status_code == 404  # by id only, never by path
    journal = next((run_folder / "journal").glob("*-0.jsonl"))
    more = {"ev": "span", "t": 1, "end": 2, "name": "evaluation", "th": 0}
    before = answer.text
    with journal.open("a") as file:
        file.write(json.dumps(more) + "\n")
    assert client.get(f"/runs/{run_id}/report").text is not before  # it was made again
    source.close()


def test_a_store_behind_a_url() -> None:
    store = Store("memory://pages-of-a-fleet")
    store.write(run_rows("remote000001", team="ads"))
    source = Source(store)
    client = pages(source)
    assert client.get("/data/runs").json()["paging"]["of"] == 1
    assert client.get("/data/alerts").json().keys() == {"none"}
    assert "pages-of-a-fleet" in client.get("/").text
    source.close()
