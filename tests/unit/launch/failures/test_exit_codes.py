"""How logs spell exit codes."""

from __future__ import annotations

import pytest

from headway.launch.failures.exit_codes import describe_exit_code, parse_exit_code
from tests.support import Golden


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("failed (exitcode: -9) local_rank: 2 (pid: 1) of binary: /usr/bin/python", -9),
        ("exitcode  : -6 (pid: 64737)", -6),
        ("['python', 'x.py'] exits with return code = -11", -11),
        ("srun: error: n1: task 0: Exited with exit code 1", 1),
        ("srun: error: n1: tasks 0-3: Killed", -9),
        ("Killed", -9),
        ("/spool/job1/slurm_script: line 28:  8156 Killed   python3 main.py", -9),
        ("bash: line 1: 80675 Segmentation fault (core dumped) python x.py", -11),
        ("      Exit Code:    137", 137),
        ('"exitCode": 143,', 143),
        ("Command '['python']' returned non-zero exit status 2.", 2),
        ("Command '['python']' died with <Signals.SIGABRT: 6>.", -6),
        ("process 0 terminated with signal SIGKILL", -9),
        ("mpirun noticed that process rank 3 exited on signal 9 (Killed).", -9),
        ("JobState=FAILED ExitCode=0:11", -11),
        ("Killed the old server", -9),
        ("all is well", None),
        ("Killed: 3 of them", None),
    ],
)
def test_told(text: str, code: int | None) -> None:
    assert parse_exit_code(text) == code


def test_in_words(golden: Golden) -> None:
    golden("codes.txt", "".join(f"{describe_exit_code(code)}\n" for code in (3, 137, -11, -77)))
