"""Faults in the launcher and its surroundings: the job runs, gets signals, keeps its exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.launch import processes
from tests.faults.launches import LOOP, PYTHON, TRAINING, Launch, Row, launch, names
from tests.support import BIN, wait_until

# A debugger attaches by ptrace, which stops the launcher.
TRACES = """
import ctypes, os, signal, sys, time
open("starts", "w").write("start"); open("up", "w").close()
ptrace, launcher = ctypes.CDLL(None).ptrace, os.getppid()
for _ in range(2):
    os.kill(launcher, signal.SIGSTOP); time.sleep(0.1)
    os.kill(launcher, signal.SIGCONT); time.sleep(0.1)
    if ptrace(16, launcher, 0, 0) == 0:
        os.waitpid(launcher, 0x40000000); time.sleep(0.1)
        ptrace(17, launcher, 0, 0)
if ptrace(16, launcher, 0, 0) == 0:
    os.waitpid(launcher, 0x40000000)
sys.exit(5)
"""
# In place of the report after the job: starts and never ends.
ENDLESS = """
from headway.session import session
def write_results(*args, **kwargs):
    open("closing", "w").close()
    time.sleep(60)
session.write_results = write_results
"""


def broken(place: str, error: str = 'KeyError("fault")') -> str:
    """A patch that makes a function of Headway raise: `module:name`."""
    module, _, name = place.partition(":")
    return f"""
import importlib
module = importlib.import_module("headway.{module}")
def broken(*args, **kwargs): raise {error}
owner, _, name = "{name}".rpartition(".")
setattr(getattr(module, owner) if owner else module, name, broken)
"""


def stop_and_continue(started: Launch, rounds: int, stopped_s: float = 1.1) -> None:
    """For longer than one wait of the launcher for signals; the job is not affected."""
    for _ in range(rounds):
        started.signal(signal.SIGSTOP)
        wait_until(lambda: processes.process_info(started.process.pid).state == "T")
        with pytest.raises(subprocess.TimeoutExpired):
            started.process.wait(stopped_s)
        started.signal(signal.SIGCONT)
        wait_until(lambda: processes.process_info(started.process.pid).state != "T")
    started.touch("end")


def suspend(started: Launch, stopped_s: float = 4.0) -> None:
    """As `scontrol suspend` does: all processes of the job and the launcher."""
    pids = [started.process.pid, *processes.descendants(started.process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        started.process.wait(stopped_s)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        started.process.wait(1.0)
    started.touch("end")


def terminate(started: Launch) -> None:
    started.signal(signal.SIGTERM)


def terminate_twice_when_closing(started: Launch) -> None:
    started.touch("end")
    started.wait_for("closing")
    started.signal(signal.SIGTERM)
    started.signal(signal.SIGINT)


def terminate_when_closing(started: Launch) -> None:
    started.touch("end")
    started.wait_for("closing")
    started.signal(signal.SIGTERM)


def storm(*numbers: signal.Signals) -> Callable[[Launch], None]:
    """Continuous signals, from the end of the job to that of the launcher."""

    def act(started: Launch) -> None:
        started.touch("end")
        while started.process.poll() is None:
            for number in numbers:
                started.signal(number)
            time.sleep(0.001)

    return act


def hang_up(started: Launch) -> None:
    started.signal(signal.SIGHUP)
    started.touch("end")


def gets_signals(patch: str, **more: object) -> Row:
    """The job ends itself on a stop signal."""
    values = {"act": terminate, "code": 9, "outcomes": ("preempted",), "patch": patch, **more}
    return Row(**values)  # type: ignore[arg-type]


# These descriptors are closed: what is written there must not reach a file of the launcher.
WRITES_ANYWAY = (
    TRAINING
    + """
for fd in range(3):
    try: os.write(fd, b"x" * 5000)
    except OSError: continue
    sys.exit(7)
"""
).replace("import headway", "import sys, headway")
DEAF = ("sh", "-c", "trap '' TERM HUP QUIT USR1 USR2\n" + LOOP.replace("trap", "# trap"))
RESTARTS = ("-o", "run", "--restarts", "2")

ROWS = {
    "stopped and continued": Row(act=lambda started: stop_and_continue(started, 2)),
    "stopped with its job": Row(
        options=("-o", "run", "--restarts", "2", "--hang-after", "1"),
        job=(PYTHON, "-c", TRAINING),
        act=suspend,
        code=0,
        outcomes=("completed",),
        slow=True,
    ),
    "stopped and traced by its job": Row(job=(PYTHON, "-c", TRACES), act=lambda started: None),
    # Signals
    "a signal before the job starts": Row(
        patch="from headway.launch import run_folder\nprepare = run_folder.prepare\n"
        "def told(*args, **kwargs):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n    return prepare(*args, **kwargs)\n"
        "run_folder.prepare = told",
        act=lambda started: None,
        code=128 + signal.SIGTERM,
        starts=0,
        outcomes=("preempted",),
    ),
    "a thread before the job starts": gets_signals(
        "from headway.launch import run_folder\nprepare = run_folder.prepare\n"
        "def threaded(*args, **kwargs):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "    return prepare(*args, **kwargs)\n"
        "run_folder.prepare = threaded"
    ),
    "a signal while a warm process imports": Row(
        options=("-o", "run", "--warm"),
        job=(str(BIN / "torchrun"), "train.py"),
        patch="""
from headway.launch.warm.client import ForkserverClient
def hear(self, wait_s):
    open("hearing", "w").close()
    time.sleep(max(wait_s, 0))
    raise TimeoutError
ForkserverClient.receive_report = hear
""",
        act=lambda started: (started.wait_for("hearing"), terminate(started)),
        code=128 + signal.SIGTERM,
        starts=0,
        outcomes=("preempted",),
    ),
    "nohup": Row(
        options=RESTARTS,
        patch="signal.signal(signal.SIGHUP, signal.SIG_IGN)",
        act=hang_up,
        job=("sh", "-c", LOOP.replace("exit 5", "exit 0")),
        code=0,
        outcomes=("completed",),
    ),
    "no signalfd": gets_signals(
        "from headway.launch import signals\nsignals._signalfd = lambda numbers: None", slow=True
    ),
    "no ctypes": gets_signals(
        "sys.modules['ctypes'] = None", codes=("launcher-fault",), outcomes=None, slow=True
    ),
    # Descriptors
    "no standard streams": Row(
        options=RESTARTS,
        around=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"),
        job=(PYTHON, "-c", WRITES_ANYWAY),
        code=0,
        outcomes=("completed",),
    ),
    "no standard error": Row(
        around=("sh", "-c", 'exec "$@" 2>&-', "sh"),
        job=(PYTHON, "-c", WRITES_ANYWAY.replace("range(3)", "range(2, 3)")),
        code=0,
        outcomes=("completed",),
        slow=True,
    ),
    # Internal faults
    "a fault in the preparation": Row(
        patch=broken("launch.run_folder:prepare"), codes=("launcher-fault",), outcomes=None
    ),
    "a fault before an attempt": Row(
        patch=broken("launch.supervisor:Attempt"), codes=("launcher-fault",), outcomes=(), slow=True
    ),
    "a fault in the supervisor": Row(
        patch=broken("launch.supervisor:Progress"), codes=("launcher-fault",), outcomes=()
    ),
    "a fault in the watch": gets_signals(
        broken("launch.process_watch:ProcessWatch.start"), options=RESTARTS
    ),
    "a fault in the wait": gets_signals(broken("launch.attempt:Attempt._wait"), options=RESTARTS),
    "faults wherever it waits": Row(
        patch=broken("launch.signals:next_signal", 'ValueError("0 is not a valid Signals")'),
        starts=1,
    ),
    "a fault when a signal comes": gets_signals(
        broken("launch.signals:forward_targets", "OSError(24, 'x')")
    ),
    "a fault in a warm start": Row(
        options=("-o", "run", "--warm"), patch=broken("launch.supervisor:WarmStart"), slow=True
    ),
    "a fault in the verdict": Row(
        options=RESTARTS,
        patch=broken("launch.supervisor:Supervisor._conclude"),
        codes=("launcher-fault",),
    ),
    "a fault in the evidence": Row(
        options=RESTARTS,
        patch=broken("launch.evidence:Evidence.all_facts"),
        act=terminate,
        code=9,
        outcomes=("preempted",),
        slow=True,
    ),
    "a fault in the report": Row(
        patch=broken("session.session:write_results"), codes=("ledger-not-written",), slow=True
    ),
    "no threads": Row(
        options=RESTARTS,
        starts=3,
        outcomes=("failed", "failed", "failed"),
        patch="from threading import Thread\n"
        + broken(
            "launch.process_watch:ProcessWatch.start", 'RuntimeError("can\'t start new thread")'
        ),
        slow=True,
    ),
    "no pipes": Row(
        options=RESTARTS,
        starts=3,
        outcomes=("failed", "failed", "failed"),
        patch="""
import types
from headway.launch import stderr_tap
def pipe(): raise OSError(24, "x")
stderr_tap.os = types.SimpleNamespace(**{**vars(os), "pipe": pipe})
""",
        slow=True,
    ),
    "another program in the place of the job": Row(
        options=(*RESTARTS, "--hang-after", "2"),
        job=(
            PYTHON,
            "-c",
            TRAINING.replace("while not", "while step < 20 and not")
            + "os.execlp('sh', 'sh', '-c', 'sleep 15')",
        ),
        act=lambda started: None,
        code=0,
        outcomes=("completed",),
        slow=True,
    ),
    # After the job
    "two signals after the job": Row(
        patch=ENDLESS, act=terminate_twice_when_closing, codes=("closing-cut-short",)
    ),
    "a signal after the job": Row(
        patch=ENDLESS + "session.HURRIED_LIMIT_S = 0.1",
        act=terminate_when_closing,
        codes=("closing-cut-short",),
    ),
    "signals to the very end": Row(
        patch="import atexit\natexit.register(time.sleep, 0.3)",
        job=DEAF,
        act=storm(signal.SIGUSR1, signal.SIGUSR2),
    ),
    "signals to stop to the very end": Row(
        job=DEAF,
        act=storm(signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
        outcomes=("preempted",),
        slow=True,
    ),
    "an end that does not come": Row(
        patch="import atexit\natexit.register(time.sleep, 60)\n"
        "from headway.session import session\nsession.HURRIED_LIMIT_S = 0.5",
    ),
    "no end of what follows the job": Row(
        patch=ENDLESS + "session.CLOSING_LIMIT_S = 0.5", codes=("closing-cut-short",), slow=True
    ),
}


@names(ROWS)
def test_the_job_keeps_its_end(tmp_path: Path, name: str) -> None:
    ROWS[name].check(tmp_path / "job")


def test_a_reader_that_has_stopped_does_not_hold_the_launcher(tmp_path: Path) -> None:
    """Standard error is a full pipe that is no longer read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    # The shell would wait for that reader too, to report a terminated `sleep`.
    with launch(tmp_path, job=("sh", "-c", f"exec 2>&-\n{LOOP}"), stderr=writer) as job:
        job.wait_for("up")
        job.signal(signal.SIGTERM)
        assert job.finish() == 9
    assert job.outcomes() == ["preempted"]
    os.close(reader)
    os.close(writer)


def test_what_the_job_leaves_running_does_not_hold_the_launcher(tmp_path: Path) -> None:
    """The exit code is returned at once, and later output of other processes is copied too."""
    late = "(while [ ! -e go ]; do sleep 0.02; done; echo late >&2) &"
    with launch(tmp_path, *RESTARTS, job=("sh", "-c", f"{late} echo early >&2")) as started:
        assert started.process.wait(30) == 0
        started.touch("go")
        started.finish()
    assert started.stderr.count("early") == 1
    assert started.stderr.endswith("late\n")


@pytest.mark.slow
def test_two_hundred_stops_cost_nothing(tmp_path: Path) -> None:
    """As `scontrol suspend` and a debugger do, to the launcher only."""
    often = "from headway.launch import child_process\nchild_process.WAKE_S = 0.05"
    options = {"plain": (), "restarts": ("--restarts", "2"), "warm": ("--restarts", "2", "--warm")}
    with contextlib.ExitStack() as stack:
        all_of_them = [
            stack.enter_context(
                launch(
                    tmp_path / name, "-o", "run", *words, job=(PYTHON, "-c", TRAINING), patch=often
                )
            )
            for name, words in options.items()
        ]
        for started in all_of_them:
            started.wait_for("up")
        for _ in range(200):
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for started in all_of_them:
                    started.signal(number)
                time.sleep(0.07)
        for started in all_of_them:
            started.touch("end")
            assert (started.finish(), started.starts) == (0, 1), started.stderr
            assert started.outcomes() == ["completed"]


def test_the_report_after_a_kill_says_when_the_launcher_died(tmp_path: Path) -> None:
    with launch(tmp_path, job=(PYTHON, "-c", TRAINING)) as started:
        started.wait_for("up")
        started.signal(signal.SIGKILL)
        started.finish()
    assert started.outcomes() == ["failed"]
    assert "launcher-died" in started.notes()
