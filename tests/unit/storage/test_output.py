"""What is written past the page cache is what was given, and a disk that fails is told of."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from headway.storage import disk, output
from headway.storage.output import DirectFile

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, DirectFile]:
    fd = disk.create(str(tmp_path / "file"))
    if not disk.set_direct_io(fd, True):
        os.close(fd)
        pytest.skip("this file system has no O_DIRECT")
    return tmp_path / "file", DirectFile(fd)


@pytest.mark.parametrize(
    "size",
    [
        0,
        1,
        4096,
        output.DIRECT_BUFFER_BYTES,
        2 * output.DIRECT_BUFFER_BYTES,
        2 * output.DIRECT_BUFFER_BYTES + 4097,
    ],
)
def test_the_file_is_what_was_given(file: tuple[Path, DirectFile], size: int) -> None:
    path, out = file
    content = os.urandom(1 << 20) * (size // (1 << 20) + 1)
    at, step = 0, 1
    while at < size:  # in pieces of all sizes
        piece = memoryview(content)[at : min(at + step, size)]
        out.write(piece)
        at, step = at + len(piece), step * 3
    out.commit(sync=True)
    assert path.read_bytes() == content[:size]


@pytest.mark.parametrize("before", [0, 1, output.PAGE, output.DIRECT_BUFFER_BYTES + output.PAGE])
def test_pages_go_to_the_disk_from_where_they_are(
    file: tuple[Path, DirectFile], before: int
) -> None:
    path, out = file
    pages = mmap.mmap(-1, 3 * output.DIRECT_MIN_BYTES)
    pages[:] = os.urandom(1 << 20) * 3
    out.write(bytes(before))
    for piece in (
        memoryview(pages)[: 2 * output.DIRECT_MIN_BYTES],
        memoryview(pages)[output.PAGE : -5],
    ):
        out.write(piece)
    out.commit(sync=True)
    content = pages[: 2 * output.DIRECT_MIN_BYTES] + pages[output.PAGE : -5]
    assert path.read_bytes() == bytes(before) + content


def test_a_disk_that_fails_is_told_of_by_the_next_call(
    file: tuple[Path, DirectFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out = file

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(disk, "write_at", full)
    out.write(bytes(output.DIRECT_BUFFER_BYTES))
    with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOSPC):
        out.write(bytes(output.DIRECT_BUFFER_BYTES))
    out.discard()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_file_system_that_will_not_is_written_to_as_any_other(
    file: tuple[Path, DirectFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = file
    write_at = disk.write_at

    def refuses(fd: int, data: bytes | memoryview, at: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        write_at(fd, data, at)

    monkeypatch.setattr(disk, "write_at", refuses)
    content = os.urandom(1 << 20) * 17
    out.write(content)
    out.commit(sync=True)
    assert path.read_bytes() == content


def test_the_end_tells_of_a_failure_too(
    file: tuple[Path, DirectFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out = file
    out.write(bytes(output.DIRECT_BUFFER_BYTES + 1))
    monkeypatch.setattr(disk, "sync", lambda fd: os.fsync(1 << 20))
    with pytest.raises(OSError, check=lambda error: error.errno == errno.EBADF):
        out.commit(sync=True)
