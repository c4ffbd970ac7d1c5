"""Nothing of a dead attempt lives on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from headway.launch import reap, tree

# Runs in a process of its own, as it ends everything below itself.
CLEAR = """
import os, subprocess, sys, time
from headway.launch import reap, tree
assert reap.adopt_orphans()
spare = subprocess.Popen(["sleep", "60"])
# A daemon: its parent is gone, its session is its own, and it ignores SIGTERM.
subprocess.run(["sh", "-c", "trap '' TERM; setsid sh -c 'trap \\"\\" TERM; sleep 60; sleep 60' &"])
stopped = subprocess.Popen(["sleep", "60"]); os.kill(stopped.pid, 19)
while len(tree.below(os.getpid())) < 4: time.sleep(0.01)
left = reap.clear({spare.pid}, grace_s=0.2)
print(left, sorted(tree.alive(tree.below(os.getpid()))) == [spare.pid])
spare.kill()
"""


def test_everything_below_is_ended_but_what_is_spared() -> None:
    done = subprocess.run([sys.executable, "-c", CLEAR], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[] True\n", done.stderr


def test_how_a_process_ended_is_seen_before_anybody_waits_for_it() -> None:
    killed = subprocess.Popen(["sleep", "60"])
    assert tree.exit_code(killed.pid) is None
    killed.send_signal(signal.SIGKILL)
    failed = subprocess.Popen(["sh", "-c", "exit 7"])
    assert tree.wait_gone([killed.pid, failed.pid], 20)
    assert (tree.exit_code(killed.pid), tree.exit_code(failed.pid)) == (-9, 7)
    assert (killed.wait(), failed.wait()) == (-9, 7)
    assert tree.exit_code(killed.pid) is None


def test_parents_and_children() -> None:
    seen = {
        10: tree.Seen(1, 10, "S"),
        11: tree.Seen(10, 10, "S"),
        12: tree.Seen(11, 10, "Z"),
        20: tree.Seen(1, 20, "S"),
    }
    assert tree.below(10, seen) == {11, 12}
    assert tree.above(12, 10, seen) == [11, 10]
    assert tree.above(20, 10, seen) == []


def test_shared_memory_of_the_dead_is_removed(tmp_path: Path) -> None:
    dead, other = subprocess.Popen(["true"]), subprocess.Popen(["true"])
    dead.wait(), other.wait()
    mine = f"torch_{dead.pid}_1_0"
    kept = [f"torch_{os.getpid()}_1_0", f"torch_{other.pid}_1_0", "psm_left", "arena"]
    for name in (mine, *kept):
        (tmp_path / name).write_bytes(b"x")
    pids = {dead.pid, os.getpid()}
    assert reap.sweep_shared_memory(pids, time.time() + 60, tmp_path) == []  # older than we are
    assert reap.sweep_shared_memory(pids, time.time() - 60, tmp_path) == [mine]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)


def test_what_a_killed_launcher_left_is_found() -> None:
    env = {**os.environ, "HEADWAY_DIR": "/some/journal", "HEADWAY_LAUNCH": "old.2"}
    with subprocess.Popen(["sleep", "60"], env=env) as left:
        while left.pid not in reap.strays("/some/journal", "new"):
            time.sleep(0.01)
        assert reap.strays("/some/journal", "old") == set()
        assert reap.strays("/another/journal", "new") == set()
        left.kill()
