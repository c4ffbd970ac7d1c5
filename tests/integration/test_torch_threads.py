"""A process whose threads work in torch ends as its script does, and not by an abort."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from headway import torch_threads
from headway.checkpoint.store.store import Store
from headway.torch_threads import TorchThread
from tests.support import ForkServer, wait_until

Ended = Callable[..., tuple[int, str]]

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


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    if find_spec("torch") is None:
        pytest.skip("needs torch")
    made = ForkServer({k: v for k, v in os.environ.items() if not k.startswith("HEADWAY")})
    yield made
    made.close()


@pytest.fixture
def ended(server: ForkServer, tmp_path: Path) -> Ended:
    """Run a script in a process of its own, to the end of its interpreter."""

    def run(script: str, *args: str) -> tuple[int, str]:
        (tmp_path / "script.py").write_text(script)
        return server.run(tmp_path / "script.py", *args, env=dict(os.environ), finalize=True)

    return run


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("raise KeyError('x')", 1)])
def test_an_image_under_way_is_finished_and_written(
    ended: Ended, tmp_path: Path, end: str, code: int
) -> None:
    store = tmp_path / "store"
    returned, said = ended(SAVE + end, str(store))
    assert returned == code, said
    assert "terminate called" not in said
    wait_until(lambda: Store(str(store)).scan()[0])  # written by a process of its own


@pytest.mark.parametrize("script", [AHEAD + "raise OSError('no data')", STAGE + "stages.run()"])
def test_a_script_that_fails_while_a_thread_works(ended: Ended, script: str) -> None:
    returned, said = ended(script)
    assert returned == 1, said
    assert "terminate called" not in said


def test_a_last_save_when_the_process_ends(ended: Ended, tmp_path: Path) -> None:
    last = """
import atexit
@atexit.register
def save():
    checkpointer.save(8)
    checkpointer.close()
"""
    returned, said = ended(last + SAVE + "sys.exit(3)", str(tmp_path / "store"))
    assert returned == 3, said
    assert [one.manifest.step for one in Store(str(tmp_path / "store")).scan()[0]][:1] == [8]


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
    torch_threads._stop_all_at_exit()
    assert swallowed.is_set()
    assert not any(thread.is_alive() for thread in found)
    TorchThread(deaf, name="not begun", patience_s=60).stop()


def test_an_interrupted_restore_is_an_interrupt(ended: Ended, tmp_path: Path) -> None:
    restore = """
from headway.checkpoint.format.checkpoint_reader import CheckpointReader
def interrupted(*_):
    raise KeyboardInterrupt
checkpointer.close()
CheckpointReader.read_data = interrupted
Checkpointer(sys.argv[1], {"model": model, "optimizer": optimizer}).restore()
"""
    returned, said = ended(SAVE + restore, str(tmp_path / "store"))
    assert returned == -signal.SIGINT, said
