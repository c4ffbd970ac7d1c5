"""Which lines of the kernel log are about the job."""

from __future__ import annotations

import pytest

from headway.launch.evidence import _concerns_job, _exception_text
from headway.launch.failures.kernel_log import NO_OOM


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB", True),
        ("Memory cgroup out of memory: Killed process 8 (python) total-vm:1kB", False),
        ("Out of memory: Kill process 8 (python) score 900", False),
        ("oom_reaper: reaped process 7 (python), now anon-rss:0kB", True),
        ("oom_reaper: reaped process 8 (python), now anon-rss:0kB", False),
        ("python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0", False),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=7,uid=0", True),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=8,uid=0", False),
        ("python[7]: segfault at 0 ip 0 sp 0 error 4 in libtorch.so", True),
        ("python[8]: segfault at 0 ip 0 sp 0 error 4 in libtorch.so", False),
        ("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", True),
        ("NVRM: Xid (PCI:0000:02:00): 48, pid=8, name=python, DBE", False),
        (NO_OOM, True),
        ("the kernel counted 1 OOM kill(s) in this job", True),
    ],
)
def test_lines_about_the_job(text: str, about: bool) -> None:
    assert _concerns_job(text, {7}) is about


def test_an_exception_without_a_message_ends_with_its_type() -> None:
    assert _exception_text({"type": "StopIteration", "message": ""}) == "StopIteration"
    assert _exception_text({"type": "KeyError", "message": "'x'"}) == "KeyError: 'x'"
