"""The compile cache from code: problems with the store never stop the job."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from headway.compile.cache import context
from headway.compile.cache.archive import ArchiveStore
from headway.compile.cache.context import SharedCache
from headway.errors import UsageError
from tests.support import codes, has_code
from tests.unit.compile.cache.sample_archives import content, fill, library, save, tree, wanted

FILES = {"ab/x.so": library(), "ab/x.py": b"print()"}


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(b"0123456789abcdef")
    path.chmod(0o600)
    return str(path)


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job with an artificial machine and its own cache folder."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv(context.FOLDER, str(folder))
    monkeypatch.setattr(context, "_patch", lambda: None)
    monkeypatch.setattr(SharedCache, "_request", lambda self: wanted(job=self.job))
    return folder


def test_what_one_job_saves_the_next_one_has(tmp_path: Path, job: Path, key: str) -> None:
    url = f"memory://{tmp_path.name}"
    with SharedCache(url, job="train", key=key) as first:
        fill(job, FILES)
    assert first._lookup is not None and first._lookup.level == "exact"
    for path in job.rglob("*.*"):
        if path.is_file():
            path.unlink()
    again = SharedCache(url, job="train", key=key)
    assert again.load() == "exact" and not again.save()
    assert {name: body for name, body in content(job).items() if name in FILES} == FILES


def test_a_store_without_a_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code("archive-key-missing")):
        SharedCache(f"memory://{tmp_path.name}")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("entries", ["archive-not-fetched", "compile-cache-save-failed"]),
        ("read", ["archive-not-fetched"]),
        ("write", ["compile-cache-save-failed"]),
    ],
)
def test_a_store_that_fails_costs_no_job(
    call: str,
    expected: list[str],
    tmp_path: Path,
    job: Path,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"memory://{tmp_path.name}"
    other = ArchiveStore(url, SharedCache(url, key=key).store.key)
    save(other, tree(tmp_path / "a", FILES), wanted(job="train"))

    def fails(*args: Any, **more: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    cache = SharedCache(url, job="train", key=key)
    monkeypatch.setattr(cache.store.place, call, fails)
    with cache:
        fill(job, {"new.py": b"1"})
    assert codes(capsys.readouterr().err) == expected


def test_a_key_that_only_verifies(
    tmp_path: Path, job: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = SharedCache(f"memory://{tmp_path.name}", job="train", key=key)
    cache.store.key.signs = False  # type: ignore[union-attr]
    with cache:
        fill(job, FILES)
    assert codes(capsys.readouterr().err) == ["compile-cache-key-verify-only"]
    assert list(cache.store.place.entries("archives")) == []
