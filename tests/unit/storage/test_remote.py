"""Run folders at a URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError, UsageError
from headway.journal import run_files
from headway.storage import remote
from tests.support import cli, code_of, has_code

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def memory() -> Iterator[Any]:
    file_system = fsspec.filesystem("memory")
    yield file_system
    file_system.rm("/", recursive=True)


def test_only_the_record_of_a_run_is_fetched(memory: Any, tmp_path: Path) -> None:
    for name in ("run.json", "publish.json", "journal/rank-0.jsonl", "journal/rank-0.pulse"):
        memory.pipe_file(f"/bucket/r/{name}", name.encode())
    for name in ("report.html", "checkpoints/step-5/weights", "journal/below/x.jsonl"):
        memory.pipe_file(f"/bucket/r/{name}", b"x" * 1000)
    run_files.fetch_run("memory://bucket/r", tmp_path)
    files = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert files == {"run.json", "publish.json", "journal/rank-0.jsonl", "journal/rank-0.pulse"}
    assert (tmp_path / "journal" / "rank-0.jsonl").read_text() == "journal/rank-0.jsonl"


def test_a_url_without_journals_is_no_run(memory: Any, tmp_path: Path) -> None:
    memory.pipe_file("/bucket/r/run.json", b"{}")
    for url in ("memory://bucket/r", "memory://bucket/none"):
        with pytest.raises(UsageError, check=has_code("run-not-found")):
            run_files.fetch_run(url, tmp_path)


def test_a_place_that_cannot_be_reached_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no credentials\nmore of it")

    monkeypatch.setattr(fsspec.filesystem("memory"), "find", refuse)
    with pytest.raises(HeadwayError, check=has_code("run-unreachable")) as caught:
        run_files.fetch_run("memory://bucket/r", tmp_path)
    assert "more of it" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/r", "gs://a:b@c", "s3://k:s/t@c/d"])
def test_a_bucket_has_no_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: pytest.fail("it was tried"))
    with pytest.raises(UsageError, check=has_code("url-unusable")):
        remote.filesystem(url)
    with pytest.raises(UsageError, check=has_code("url-unusable")):
        remote.check_url(url)


def test_what_can_never_be_used_is_told_before_a_job_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code("url-unusable")):
        remote.check_url("nothing://there/r")
    for url in ("s3://bucket/r", "memory://x", "simplecache::s3://bucket/r"):
        remote.check_url(url)
    mark = tmp_path / "started"
    done = cli("run", "--store", "nothing://there", "--", "touch", str(mark), cwd=tmp_path)
    assert (done.returncode, code_of(done.stderr)) == (2, "url-unusable")
    assert not mark.exists()
