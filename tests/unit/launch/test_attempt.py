"""One life of the command."""

from __future__ import annotations

import pytest

from headway.launch.attempt import restarts_itself


@pytest.mark.parametrize(
    ("command", "does"),
    [
        ("torchrun --max-restarts 3 train.py", True),
        ("torchrun --max-restarts=3 train.py", True),
        ("torchrun --max_restarts 3 train.py", True),
        ("torchrun --max-restarts 0 train.py", False),
        ("torchrun --max-restarts", False),
        ("torchrun train.py", False),
    ],
)
def test_torchruns_own_restarts_are_seen(command: str, does: bool) -> None:
    assert restarts_itself(command.split()) is does
