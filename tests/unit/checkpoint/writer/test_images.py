"""Room for images: memory that stays as long as it fits."""

from __future__ import annotations

import os

import pytest

from headway.checkpoint.writer.images import EMPTY, FILLING, BufferSet


def test_room_stays_if_it_fits() -> None:
    images = BufferSet()
    images.reserve(2, 8192)
    first = images.all[0]
    os.pwrite(first.descriptor, b"there", 100)
    first.state, first.step, first.told = FILLING, 7, {"save": "a"}
    images.reserve(2, 8192)
    assert images.all[0] is first
    assert os.pread(images.all[0].descriptor, 5, 100) == b"there"
    assert first.public() == {"state": FILLING, "step": 7, "save": "a"}
    images.close()


@pytest.mark.parametrize(("count", "size"), [(3, 8192), (2, 4096)])
def test_other_room_is_new_and_the_old_is_let_go(count: int, size: int) -> None:
    images = BufferSet()
    images.reserve(2, 8192)
    before = len(os.listdir("/proc/self/fd"))
    images.reserve(count, size)
    assert len(os.listdir("/proc/self/fd")) == before + count - 2
    assert [os.fstat(image.descriptor).st_size for image in images.all] == [size] * count
    assert {image.state for image in images.all} == {EMPTY}
    images.close()
    assert images.all == []


def test_no_room() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError):
        BufferSet().reserve(1, -1)
    assert len(os.listdir("/proc/self/fd")) == before
