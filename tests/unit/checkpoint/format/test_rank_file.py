"""The file of a rank: where everything lies in it, and what is said when a disk fails."""

from __future__ import annotations

import errno
import json
import mmap
import os
import secrets
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.checkpoint.format.rank_file import BytesItem, TensorItem, write_part
from headway.checkpoint.store import layout as manifests
from headway.errors import SaveFailed
from headway.storage import output
from headway.storage.output import RateLimit
from headway.storage.place import open_place
from tests.support import has_code

ITEMS = [
    BytesItem("text", b"hello"),
    TensorItem("empty", b"record 1", memoryview(b"")),
    TensorItem("small", b"record 22", memoryview(os.urandom(1001))),
    TensorItem("large", b"record 333", memoryview(os.urandom(3 << 20))),
    BytesItem("nothing", b""),
    TensorItem("last", b"record 4444", memoryview(os.urandom(70_000))),
]


@pytest.fixture(params=["folder", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path) if request.param == "folder" else f"memory://{secrets.token_hex(8)}/s"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("spare", [True, False])
def test_everything_lies_where_it_is_said_to(
    spare: bool, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "USE_PAGE_CACHE", spare)
    part = write_part(folder, 3, iter(ITEMS))
    where = open_place(folder)
    stored = where.read("__3_0.distcp")
    assert (part.file.size, part.file.crc32) == (len(stored), zlib.crc32(stored))
    for given, item in zip(ITEMS, part.file.items, strict=True):
        assert item.name == given.name
        data = stored[item.data : item.data + item.size]
        assert data == bytes(given.data)
        assert item.crc32 == zlib.crc32(data)
        if isinstance(given, TensorItem):
            assert item.data % 64 == 0
    assert manifests.part_from_bytes(where.read("part-3.json")) == part
    assert sorted(where.list_names()) == ["__3_0.distcp", "part-3.json"]


def test_a_rate_is_kept() -> None:
    now, slept = 100.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    pace = RateLimit(1000.0, clock=lambda: now, sleep=sleep)
    pace.wait(500)
    now += 2.0  # the disk was slower than that for a while
    pace.wait(500)
    pace.wait(2000)
    assert slept == pytest.approx([0.5, 0.5])


def test_a_write_with_a_rate_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    plain = write_part(tmp_path, 0, ITEMS)
    assert write_part(tmp_path / "slow", 0, ITEMS, rate=1e12) == plain


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_failing_disk_is_told_of(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(SaveFailed, check=has_code("store-failed")) as raised:
        write_part(tmp_path, 0, ITEMS)
    assert raised.value.fields["errno"] == errno.EIO
    assert "part-0.json" not in os.listdir(tmp_path)


def test_memory_can_be_closed_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *args: 1 // 0)
    memory = mmap.mmap(-1, 3 << 20)
    view = memoryview(memory)
    with pytest.raises(ZeroDivisionError) as raised:
        write_part(tmp_path, 0, [TensorItem("large", b"", view)])
    view.release()
    memory.close()
    assert raised.value is not None, "what was raised still knows where"


def test_a_part_that_is_written_again_is_not_done_before_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_part(tmp_path, 0, ITEMS)
    assert "part-0.json" in os.listdir(tmp_path)
    monkeypatch.setattr(os, "pwrite", lambda *args: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        write_part(tmp_path, 0, ITEMS)
    assert "part-0.json" not in os.listdir(tmp_path)


FULL = """
import json, resource, sys
from headway.checkpoint.format.rank_file import TensorItem, write_part
from headway.errors import SaveFailed

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
assert "torch" not in sys.modules
try:
    write_part(sys.argv[1], 0, [TensorItem("a", b"", memoryview(bytes(2 << 20)))])
except SaveFailed as error:
    print(json.dumps([error.code, error.fields["errno"], str(error)]))
"""


@pytest.mark.timeout(60)
def test_a_disk_that_is_full_is_told_of(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    code, number, sentence = json.loads(done.stdout)
    assert (code, number) == ("store-failed", errno.EFBIG) and str(tmp_path) in sentence
    assert os.listdir(tmp_path) == ["__0_0.distcp"]


class Pieces:
    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def __iter__(self) -> Iterator[memoryview]:
        return map(memoryview, self.pieces)


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("size", [10, 300_000])
def test_pieces_are_one_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: bool, size: int
) -> None:
    monkeypatch.setattr(output, "USE_PAGE_CACHE", spare)
    pieces = Pieces(os.urandom(size), os.urandom(7), os.urandom(size))
    file = write_part(tmp_path, 0, [BytesItem("a", b"a"), BytesItem("b", pieces)]).file
    content = (tmp_path / file.name).read_bytes()
    (item,) = (one for one in file.items if one.name == "b")
    assert content[item.data : item.data + item.size] == b"".join(pieces.pieces)
    assert item.crc32 == zlib.crc32(b"".join(pieces.pieces))
    assert file.crc32 == zlib.crc32(content)
