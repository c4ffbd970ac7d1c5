"""Memory that outlives the process that filled it."""

from __future__ import annotations

import ctypes
import os

import pytest

from tests.support import lazy

torch = lazy("torch")
memory = lazy("headway.checkpoint.staging")


def test_pages_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds them made leaves them alone, and what is in them."""
    size, used = 8 * memory.PAGE, 6 * memory.PAGE
    descriptor = os.memfd_create("headway-test")
    os.ftruncate(descriptor, size)
    first = memory.MappedBuffer(descriptor, size)
    assert os.fstat(descriptor).st_blocks == 0
    first.populate(used)
    first.tensor(0, torch.uint8, (used,)).fill_(7)  # does it where a kernel knows no such call
    assert (
        os.fstat(descriptor).st_blocks * memory.STAT_BLOCK_BYTES == used
    )  # the rest costs nothing
    second = memory.MappedBuffer(descriptor, size)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: pytest.fail("the kernel was asked again"))
    second.populate(used)
    assert second.tensor(0, torch.uint8, (used,)).unique().tolist() == [7]
    os.close(descriptor)
