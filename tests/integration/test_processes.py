"""No process of a failed attempt survives."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headway.launch import processes
from tests.support import NO_PROCESS, wait_until

# Runs in a separate process, as it ends everything below itself.
CLEAR = """
import os, subprocess, sys, time
from headway.launch import processes
assert processes.adopt_orphans()
spare = subprocess.Popen(["sleep", "60"])
# A daemon: its parent is gone, its session is its own, and it ignores SIGTERM.
subprocess.run(["sh", "-c", "trap '' TERM; setsid sh -c 'trap \\"\\" TERM; sleep 60; sleep 60' &"])
stopped = subprocess.Popen(["sleep", "60"]); os.kill(stopped.pid, 19)
while len(processes.descendants(os.getpid())) < 4: time.sleep(0.01)
left = processes.end_descendants({spare.pid}, grace_s=0.2)
print(left, sorted(processes.still_running(processes.descendants(os.getpid()))) == [spare.pid])
spare.kill()
"""


def test_everything_below_is_ended_but_what_is_spared() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", CLEAR], capture_output=True, text=True, timeout=60
    )
    assert completed.stdout == "[] True\n", completed.stderr


def test_how_a_process_ended_is_seen_before_anybody_waits_for_it() -> None:
    killed = subprocess.Popen(["sleep", "60"])
    assert processes.zombie_exit_code(killed.pid) is None
    killed.send_signal(signal.SIGKILL)
    failed = subprocess.Popen(["sh", "-c", "exit 7"])
    assert processes.wait_gone([killed.pid, failed.pid], 20)
    assert (processes.zombie_exit_code(killed.pid), processes.zombie_exit_code(failed.pid)) == (
        -9,
        7,
    )
    assert (killed.wait(), failed.wait()) == (-9, 7)
    assert processes.zombie_exit_code(killed.pid) is None


def test_what_a_killed_launcher_left_is_found() -> None:
    env = {**os.environ, "HEADWAY_DIR": "/some/journal", "HEADWAY_LAUNCH": "old.2"}
    with subprocess.Popen(["sleep", "60"], env=env) as orphan:
        wait_until(lambda: orphan.pid in processes.orphans_of_run("/some/journal", "new"))
        assert processes.orphans_of_run("/some/journal", "old") == set()
        assert processes.orphans_of_run("/another/journal", "new") == set()
        orphan.kill()


def test_the_exit_status_of_a_process_of_our_own_is_left_to_who_started_it() -> None:
    with processes.helper_process(["sh", "-c", "exit 3"]) as child:
        wait_until(lambda: processes.process_info(child.pid).state == "Z")
        processes.reap_zombies((), processes.process_table())
    assert child.returncode == 3


MAKER = """
import mmap, os, sys
path = f"/dev/shm/torch_{os.getpid()}_{sys.argv[1]}_0"
file = open(path, "xb+"); file.write(bytes(4096)); file.flush()
page = mmap.mmap(file.fileno(), 4096)
print(os.path.basename(path), flush=True)
input()
"""


@contextlib.contextmanager
def maker(*before: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process with a file in shared memory under its own pid, and the name of the file."""
    words = [*before, sys.executable, "-c", MAKER, f"test{os.getpid()}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        try:
            yield child, name
        finally:
            child.kill()
            (processes.SHARED_MEMORY / name).unlink(missing_ok=True)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs /dev/shm")
def test_shared_memory_of_a_killed_process_is_removed() -> None:
    shared = processes.SharedMemory()
    with maker() as (child, name):
        assert name == f"torch_{child.pid}_test{os.getpid()}_0"
        shared.record_files({child.pid})
        child.kill()
        child.wait(30)
        assert name in shared.remove_leftovers()
        assert not (processes.SHARED_MEMORY / name).exists()


@pytest.mark.skipif(
    not os.access("/dev/shm", os.W_OK)
    or shutil.which("unshare") is None
    or subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode != 0,
    reason="needs /dev/shm, and unshare of process numbers",
)
def test_a_neighbor_that_counts_its_own_processes_keeps_its_memory() -> None:
    """Two containers with one /dev/shm: pid 3 there may be a dead process here."""
    number = NO_PROCESS - 2  # not a process of this test
    start = f'echo {number - 1} > /proc/sys/kernel/ns_last_pid; "$@" & wait'
    shell = ("unshare", "--pid", "--fork", "--kill-child", "sh", "-c", start, "sh")
    with maker(*shell) as (_, name):
        assert name.startswith(f"torch_{number}_")
        shared = processes.SharedMemory()
        shared.record_files({number, os.getpid()})
        assert name not in shared.remove_leftovers()
        assert (processes.SHARED_MEMORY / name).exists()
