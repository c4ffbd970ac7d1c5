"""A watch that is told to end at any instant ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from headway.fleet.alerts.rules import Rules
from headway.fleet.alerts.watcher import AlertWatcher
from headway.fleet.store.parquet import Store

pytestmark = pytest.mark.timeout(30)


class Sending(threading.Thread):
    """Is not done before somebody waits for it."""

    def __init__(self, sent: threading.Event) -> None:
        super().__init__()
        self.sent, self.joined = sent, threading.Event()

    def run(self) -> None:
        assert self.joined.wait(30)
        self.sent.set()

    def join(self, timeout: float | None = None) -> None:
        self.joined.set()
        super().join(timeout)


def test_an_interrupt_before_a_notification_is_noted_as_done(tmp_path: Path) -> None:
    watch = AlertWatcher(Store(str(tmp_path)), Rules(), 1.0, lambda _: None)
    sent = threading.Event()
    kept: list[Any] = []
    watch._state_store.save = lambda *what: kept.append(what)  # type: ignore[method-assign]
    watch._busy.add("pager")  # its result was taken, and then came the interrupt
    watch._threads["pager"] = Sending(sent)
    watch._threads["pager"].start()
    watch._end()
    assert sent.is_set() and kept == [(watch._state, None)]
