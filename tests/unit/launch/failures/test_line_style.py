"""What a line states, and what it only advises or repeats."""

from __future__ import annotations

import pytest

from headway.launch.failures.line_style import is_config_echo, level, strip_advice


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Bus error. It is possible that workers are out of shared memory.", "Bus error."),
        ("Task died. This can happen if the node was preempted.", "Task died."),
        ("CUDA unknown error - this may be due to a wrong setup", "CUDA unknown error"),
        ("(SlowDown) in PutObject: Please reduce your request rate.", "(SlowDown) in PutObject"),
        ("Expected a thing. You can enable X by passing Y.", "Expected a thing."),
        ("Worker exited. (1) The process is killed by the OOM killer", "Worker exited."),
        ("plain words", "plain words"),
        ("You should check your shared memory", ""),
    ],
)
def test_advice_is_dropped(text: str, kept: str) -> None:
    assert strip_advice(text) == kept


def test_the_flags_of_a_command_are_dropped() -> None:
    assert "nan" not in strip_advice(
        "['python', '--on_nan', 'skip', 'x'] exits with return code = -9"
    )
    assert strip_advice("python x.py --signal SIGKILL failed").split() == [
        "python",
        "x.py",
        "failed",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "+ export NCCL_DEBUG=INFO",
        "Namespace(on_nan='abort')",
        "  kill_signal: SIGKILL",
        "NCCL_ASYNC_ERROR_HANDLING=1",
        "    raise RuntimeError('CUDA out of memory')",
        '{"detect_nan": "loss is nan"}',
        "lr: 0.001",
        "# handles OOMKilled",
    ],
)
def test_echoes(text: str) -> None:
    assert is_config_echo(text)


@pytest.mark.parametrize(
    "text",
    ["mce: [Hardware Error]: CPU 1", "loss is nan, stopping", "Killed", "slurmstepd: error: x"],
)
def test_no_echoes(text: str) -> None:
    assert not is_config_echo(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025 ERROR watchdog: it hangs", "error"),
        ("slurmstepd: error: Detected 1 oom_kill event", "error"),
        ("run.sh: line 12: torchrun: command not found", "error"),
        ("UserWarning: CUDA initialization", "warning"),
        ("wandb: ERROR Network error", "warning"),
        ("WARNING: an ERROR was ignored", "warning"),
        ("[INFO] all fine", "info"),
        ("loss 2.3", ""),
    ],
)
def test_level(text: str, expected: str) -> None:
    assert level(text) == expected
