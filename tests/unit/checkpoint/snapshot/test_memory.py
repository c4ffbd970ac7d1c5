"""Memory that outlives the process that filled it."""

from __future__ import annotations

import ctypes
import os

import pytest
import torch

from headway.checkpoint.snapshot.memory import BLOCK, PAGE, Memory

SIZE, USED = 8 * PAGE, 6 * PAGE


def test_pages_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds them made leaves them alone, and what is in them."""
    descriptor = os.memfd_create("headway-test")
    os.ftruncate(descriptor, SIZE)
    first = Memory(descriptor, SIZE)
    assert os.fstat(descriptor).st_blocks == 0
    first.populate(USED)
    first.tensor(0, torch.uint8, (USED,)).fill_(7)  # does it where a kernel knows no such call
    assert os.fstat(descriptor).st_blocks * BLOCK == USED  # the rest costs nothing
    second = Memory(descriptor, SIZE)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: pytest.fail("the kernel was asked again"))
    second.populate(USED)
    assert second.tensor(0, torch.uint8, (USED,)).unique().tolist() == [7]
    os.close(descriptor)
