"""Whether the process of a journal has ended."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from headway.journal.reader import SILENT_NS, Journal, has_ended, parse
from headway.journal.writer import head, started_at
from tests.support import NO_PROCESS


def journal(**fields: Any) -> Journal:
    """The journal of a launcher that has just started."""
    result = parse(
        json.dumps({**head("launcher", launch="L"), **fields}).encode() + b"\n", "launcher"
    )
    assert result is not None
    return result


HERE = {"pid": os.getpid()}
KILLED = {"pid": NO_PROCESS}
ELSEWHERE = {"boot": "another", "pid": NO_PROCESS}
CONTAINER = {"pids": 1, "pid": NO_PROCESS}


@pytest.mark.parametrize(
    ("fields", "silent", "ended"),
    [
        (HERE, 10 * SILENT_NS, False),  # stopped, or the machine was suspended
        (KILLED, 0, True),
        ({**HERE, "t": 1, "begin": 1}, 0, True),  # the pid belongs to another process now
        (ELSEWHERE, 0, False),
        (ELSEWHERE, 2 * SILENT_NS, True),
        (CONTAINER, 0, False),
        (CONTAINER, 2 * SILENT_NS, True),
        ({"pids": None, "pid": NO_PROCESS}, 2 * SILENT_NS, False),
    ],
)
def test_gone(fields: dict[str, Any], silent: int, ended: bool) -> None:
    assert has_ended(journal(**fields), time.time_ns() + silent) is ended


def test_a_process_may_be_ready_within_the_tick_of_its_start() -> None:
    began = started_at(os.getpid())
    assert began is not None
    ready = {**HERE, "t": began - 9_000_000, "begin": began - 9_000_000}
    assert not has_ended(journal(**ready), time.time_ns())
