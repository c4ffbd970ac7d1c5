"""A process whose threads work in torch ends as its script does, and not by an abort."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headway import threads
from headway.checkpoint.store.read import Store
from headway.threads import TorchThread

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

SAVE = """
import sys, torch
from headway.checkpoint import Checkpointer
model = torch.nn.Sequential(*[torch.nn.Linear(1500, 1500) for _ in range(12)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model(torch.randn(4, 1500)).sum().backward()
optimizer.step()
checkpointer = Checkpointer(sys.argv[1], {"model": model, "optimizer": optimizer})
checkpointer.save(7)
"""
AHEAD = """
import threading, torch
from headway.startup import CompileAhead
model, begun = torch.nn.Linear(2000, 2000), threading.Event()
def step(batch):
    while True:
        model(batch).sum().backward()
        begun.set()
CompileAhead(step, modules=[model]).start(torch.randn(500, 2000))
begun.wait()
"""
STAGE = """
import threading, torch
from headway.startup import Stages
begun, stages = threading.Event(), Stages()
@stages.stage()
def model():
    weight = torch.randn(1000, 1000)
    while True:
        weight @ weight
        begun.set()
@stages.stage(where="main")
def data():
    begun.wait()
    raise OSError("there is no such file")
"""


def ended(script: str, *args: str) -> tuple[int, str]:
    command = [sys.executable, "-c", script, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("raise KeyError('x')", 1)])
def test_an_image_under_way_is_finished_and_written(tmp_path: Path, end: str, code: int) -> None:
    returned, said = ended(SAVE + end, str(tmp_path))
    assert returned == code, said
    assert "terminate called" not in said
    for _ in range(600):  # by the writer, which is a process of its own
        if Store(str(tmp_path)).listed()[0]:
            return
        time.sleep(0.1)
    pytest.fail("the save is not there")


@pytest.mark.parametrize("script", [AHEAD + "raise OSError('no data')", STAGE + "stages.run()"])
def test_a_script_that_fails_while_a_thread_works(script: str) -> None:
    returned, said = ended(script)
    assert returned == 1, said
    assert "terminate called" not in said


def test_a_last_save_when_the_process_ends(tmp_path: Path) -> None:
    last = """
import atexit
@atexit.register
def save():
    checkpointer.save(8)
    checkpointer.close()
"""
    returned, said = ended(last + SAVE + "sys.exit(3)", str(tmp_path))
    assert returned == 3, said
    assert [one.manifest.step for one in Store(str(tmp_path)).listed()[0]][:1] == [8]


def test_threads_are_asked_at_the_same_time_and_again() -> None:
    swallowed = threading.Event()

    def deaf() -> None:
        with contextlib.suppress(SystemExit):
            while True:
                time.sleep(0.001)
        swallowed.set()
        while True:
            time.sleep(0.001)

    found = [TorchThread(deaf, name="deaf", patience_s=60) for _ in range(3)]
    for thread in found:
        thread.start()
    threads._leave_all()
    assert swallowed.is_set()
    assert not any(thread.is_alive() for thread in found)
    TorchThread(deaf, name="not begun", patience_s=60).leave()


def test_an_interrupted_restore_is_an_interrupt(tmp_path: Path) -> None:
    restore = """
from headway.checkpoint.store import dcp
def interrupted(*_):
    raise KeyboardInterrupt
checkpointer.close()
dcp.Reader.read_data = interrupted
Checkpointer(sys.argv[1], {"model": model, "optimizer": optimizer}).restore()
"""
    returned, said = ended(SAVE + restore, str(tmp_path))
    assert returned == -signal.SIGINT, said
