"""What is read from the arguments of fork_exec."""

from __future__ import annotations

import os
import sys

import pytest

from headway.launch.warm import spawn_hook
from headway.launch.warm.interpreter_command import ColdStartRequired


def call(**values: object) -> dict[str, object]:
    pipes = dict.fromkeys(("p2cread", "c2pwrite", "errwrite"), -1)
    return {"close_fds": True, "pass_fds": (), "errpipe_write": 90, "errpipe_read": 91,
            **pipes, **values}  # fmt: skip


def test_descriptors_of_a_child() -> None:
    assert spawn_hook._descriptors(call()) == {0: 0, 1: 1, 2: 2}
    mapping = spawn_hook._descriptors(call(c2pwrite=7, errwrite=7, pass_fds=(5, 90)))
    assert mapping == {0: 0, 1: 7, 2: 7, 5: 5}


def test_what_is_to_be_executed() -> None:
    candidates = [b"/nowhere/python", os.fsencode(sys.executable)]
    assert spawn_hook._executable(candidates) == sys.executable
    with pytest.raises(ColdStartRequired):
        spawn_hook._executable([b"/nowhere/python"])


def test_ranks_and_helpers_have_no_child_forkserver() -> None:
    assert spawn_hook.needs_child_forkserver({}, ["python", "a.py"])
    assert not spawn_hook.needs_child_forkserver({"RANK": "0"}, ["python", "a.py"])
    assert not spawn_hook.needs_child_forkserver(
        {}, ["python", "-c", "...", "--multiprocessing-fork"]
    )
