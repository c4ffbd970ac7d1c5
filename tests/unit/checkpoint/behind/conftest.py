"""torch.save as `--async-save` has it, in this process; the disk can be held up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from headway.checkpoint.behind import aside, save
from headway.checkpoint.behind.queue import queued
from headway.probe.recorder import recorder

Behind = Callable[..., Any]


class Disk:
    """Holds back what is synced, or fails it."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.error: OSError | None = None

    def sync(self, path: str) -> None:
        assert self.free.wait(30)
        if self.error is not None:
            raise self.error


@pytest.fixture
def behind() -> Iterator[Behind]:
    """In place of torch.save."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return save.save(torch.serialization, torch.save, *args, **kwargs)

    yield call
    queued.wait("the test")
    queued.failed.clear()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Where everything is synced to."""
    disk = Disk()
    monkeypatch.setattr(aside, "sync", disk.sync)
    yield disk
    disk.free.set()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is told of saves."""
    told: list[dict[str, Any]] = []

    def emit(ev: str, t: int | None = None, **fields: Any) -> None:
        told.append({"ev": ev, **fields})

    monkeypatch.setattr(recorder, "emit", emit)
    return told
