"""The kernel's counters and its log, from folders of the same structure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.launch.failures import Fact, classify, kernel_log


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A cgroup v2 machine: /sys below `cg`, /proc below `proc`."""
    job = tmp_path / "cg" / "slurm" / "job_7"
    job.mkdir(parents=True)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/slurm/job_7\n")
    (tmp_path / "kmsg").write_bytes(b"")
    count(tmp_path, own=0, above=4, machine=9)
    return tmp_path


def count(root: Path, *, own: int, above: int, machine: int) -> None:
    (root / "cg/slurm/job_7/memory.events").write_text(f"low 0\noom 1\noom_kill {own}\n")
    (root / "cg/slurm/memory.events").write_text(f"oom_kill {above}\n")
    (root / "proc/vmstat").write_text(f"nr_free_pages 3\noom_kill {machine}\n")


def texts(root: Path, before: kernel_log.Snapshot) -> list[str]:
    facts = kernel_log.since(before, root / "cg", root / "proc", root / "kmsg")
    assert all(fact.source == "kernel" for fact in facts)
    return [fact.text for fact in facts]


def kills(root: Path, before: kernel_log.Snapshot) -> list[str]:
    """The numbers in the one fact about kills in this job."""
    (text,) = texts(root, before)
    assert classify([Fact(source="kernel", text=text)]).category == "host_oom"
    return re.findall(r"\d+", text)


def test_no_kill_was_counted(machine: Path) -> None:
    before = kernel_log.snapshot(machine / "cg", machine / "proc")
    assert len(before.kills) == 3
    assert texts(machine, before) == [kernel_log.NO_OOM]


def test_kills_of_this_job(machine: Path) -> None:
    before = kernel_log.snapshot(machine / "cg", machine / "proc")
    count(machine, own=2, above=6, machine=11)
    assert kills(machine, before) == ["2"]


def test_a_kill_above_may_be_another_jobs(machine: Path) -> None:
    before = kernel_log.snapshot(machine / "cg", machine / "proc")
    count(machine, own=0, above=5, machine=10)
    assert texts(machine, before) == []


def test_a_kill_on_this_machine_may_be_another_jobs(machine: Path) -> None:
    """If no group can be read."""
    (machine / "proc/self/cgroup").write_text("")
    before = kernel_log.snapshot(machine / "cg", machine / "proc")
    count(machine, own=0, above=4, machine=10)
    assert texts(machine, before) == []


def test_an_older_kernel(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("5:cpu:/x\n4:memory:/slurm/job_7\n0::/\n")
    folder = machine / "cg/memory/slurm/job_7"
    folder.mkdir(parents=True)
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    before = kernel_log.snapshot(machine / "cg", machine / "proc")
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert kills(machine, before) == ["1"]


def test_nothing_can_be_read(tmp_path: Path) -> None:
    before = kernel_log.snapshot(tmp_path / "cg", tmp_path / "proc")
    assert before.kills == ()
    assert kernel_log.since(before, tmp_path / "cg", tmp_path / "proc", tmp_path / "kmsg") == []


def test_the_log_since_then(machine: Path) -> None:
    before = kernel_log.snapshot(machine / "cg", machine / "proc")
    old, new = int((before.clock - 500) * 1e6), int((before.clock + 1) * 1e6)
    (machine / "kmsg").write_text(
        f"3,1,{old},-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"
        f"3,2,{new},-;NVRM: Xid (PCI:0000:02:00): 48, pid=7, name=python, DBE\n"
        " SUBSYSTEM=pci\n"
        f"6,3,{new},-;usb 1-1: new device\n"
        f"3,4,{new},-;Memory cgroup out of memory: Killed process 99 (python)\n"
    )
    assert texts(machine, before)[1:] == [
        "NVRM: Xid (PCI:0000:02:00): 48, pid=7, name=python, DBE",
        "Memory cgroup out of memory: Killed process 99 (python)",
    ]


def test_on_this_machine() -> None:
    for fact in kernel_log.since(kernel_log.snapshot()):
        assert fact.source == "kernel" and fact.node
