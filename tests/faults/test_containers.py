"""The defaults of containers: the job runs, and recording works or reports why it does not."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from headway.launch import processes
from headway.run import load
from tests.faults import sandbox
from tests.faults.launches import PYTHON, TRAINING, Launch, Row, names

MAX_ARG_STRLEN = 32 * os.sysconf("SC_PAGE_SIZE")  # of one variable, with its end
NOBODY = ("setpriv", "--reuid=23456", "--regid=23456", "--clear-groups", "--no-new-privs")
SMALL_SHM = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
READ_ONLY = (
    'mount --make-rprivate / && mount --bind "$PWD" "$PWD" && mount -o remount,bind,ro / '
    '&& cd "$PWD" && exec "$@"'
)
# The first process of a container that waits only for its child, so that orphans stay zombies.
CARELESS = """
import os, sys
child = os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
# The wall clock is set back by an hour after half a second.
STEPPED = """
import time
began, now, now_ns = time.monotonic(), time.time, time.time_ns
def back(): return 3600 if time.monotonic() - began > 0.5 else 0
time.time = lambda: now() - back()
time.time_ns = lambda: now_ns() - back() * 10**9
"""
ORPHANS = """
echo start >> starts; touch up
(sleep 0.1 & sleep 0.1 & sleep 0.1 &)
for _ in 1 2 3 4 5 6 7 8 9 10; do
    sleep 0.5
    cat /proc/[0-9]*/stat 2>/dev/null | grep -q ') Z ' || exit 5
done
exit 1
"""
# A job without Python, as other users may not be able to read the tests' Python.
SHELL_FAILS_ONCE = """
echo start >> starts; touch up
while [ ! -e end ]; do sleep 0.02; done
[ -e done ] || { touch done; kill -9 $$; }
"""


def mounts(script: str) -> tuple[str, ...]:
    return ("unshare", "--mount", "sh", "-c", script, "sh")


def pids(*first: str) -> tuple[str, ...]:
    return ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *first)


def filtered(*kinds: str) -> tuple[str, ...]:
    return (PYTHON, sandbox.__file__, ",".join(kinds))


def terminate_inside(started: Launch) -> None:
    """Send SIGTERM to the first process of the container, as runtimes do."""
    table = processes.process_table()
    (first,) = (pid for pid, process in table.items() if process.parent == started.process.pid)
    os.kill(first, signal.SIGTERM)


TRAINS = Row(job=(PYTHON, "-c", TRAINING), code=0, outcomes=("completed",))
RESTARTS = ("-o", "run", "--restarts", "2")
FAILS_ONCE = (
    PYTHON,
    "-c",
    TRAINING + "if not os.path.exists('done'): open('done', 'w'); os.kill(os.getpid(), 9)",
)
COMES_BACK = replace(
    TRAINS, options=RESTARTS, job=FAILS_ONCE, starts=2, outcomes=("failed", "completed")
)

ROWS = {
    "64 MB of shared memory": replace(COMES_BACK, around=mounts(SMALL_SHM), slow=True),
    "a user without a name and a home": replace(
        COMES_BACK,
        options=(*RESTARTS, "--auto"),
        job=("sh", "-c", SHELL_FAILS_ONCE),
        around=NOBODY,
        unset=("HOME", "USER", "LOGNAME"),
    ),
    "a read-only root": replace(TRAINS, around=mounts(READ_ONLY)),
    "a run folder on a read-only root": replace(
        TRAINS,
        options=("-o", "/run-of-a-test"),
        around=mounts(READ_ONLY),
        codes=("target-unwritable",),
        outcomes=None,
    ),
    "no ptrace and no pidfd": replace(COMES_BACK, around=filtered("ptrace", "pidfd")),
    "nothing of the new": replace(
        COMES_BACK,
        around=filtered("ptrace", "pidfd", "signalfd", "priorities", "groups"),
        slow=True,
    ),
    "no prctl": replace(COMES_BACK, around=filtered("subreaper"), slow=True),
    "a run folder without mmap, links and locks": replace(
        COMES_BACK, around=filtered("mmap", "links", "locks")
    ),
    "few descriptors": replace(TRAINS, around=("prlimit", "--nofile=20"), slow=True),
    # What only the launcher requires is missing; what the job requires is there.
    "hardly any descriptors": Row(
        job=("env", PYTHON, "-c", TRAINING),
        around=("prlimit", "--nofile=8"),
        code=0,
        codes=("launcher-fault",),
        outcomes=("completed",),
    ),
    "an environment that is full": Row(
        env={"PYTHONPATH": "/" + "x" * (MAX_ARG_STRLEN - len("PYTHONPATH=/") - 1)},
        codes=("launcher-fault",),
    ),
    "few threads": Row(
        job=("sh", "-c", "echo start >> starts; : > up; while [ ! -e end ]; do :; done; exit 5"),
        around=("prlimit", "--nproc=3", *NOBODY),
        faulty=True,
    ),
    "a clock that is stepped": replace(
        COMES_BACK, patch=STEPPED, job=(*FAILS_ONCE[:2], STEPPED + FAILS_ONCE[2])
    ),
    "a first process that waits for nobody": replace(
        COMES_BACK, around=pids(PYTHON, "-c", CARELESS)
    ),
    "as the first process": Row(
        around=pids(), act=terminate_inside, code=9, outcomes=("preempted",)
    ),
    "orphans below the first process": Row(
        around=pids(), job=("sh", "-c", ORPHANS), act=lambda started: None, slow=True
    ),
    "another space of process numbers": Row(around=("unshare", "--pid"), faulty=True),
    "a user namespace": replace(TRAINS, around=("unshare", "--user", "--map-root-user"), slow=True),
}


@cache
def _starts(*around: str) -> bool:
    """Whether this machine can make such a container."""
    if not shutil.which(around[0]):
        return False
    return subprocess.run([*around, "true"], capture_output=True).returncode == 0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all users may enter and write."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack():
        os.chmod(name, 0o777)
        yield Path(name)


@names(ROWS)
def test_the_job_runs(folder: Path, name: str) -> None:
    row = ROWS[name]
    if row.around and not _starts(*row.around):
        pytest.skip(f"this machine cannot run {' '.join(row.around)}")
    row.check(folder)
    if row.job[0] == PYTHON and row.outcomes:
        assert (
            load(folder / row.run).ledger.steps >= 1
        )  # without mmap the last second of a killed process is not known
