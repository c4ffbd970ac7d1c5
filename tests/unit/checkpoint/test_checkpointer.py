"""Which image a save takes, and what a Checkpointer refuses."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from headway.checkpoint.checkpointer import Checkpointer, _choice
from headway.checkpoint.pacing import Level
from headway.checkpoint.preempt import Preemption
from headway.errors import UsageError

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("level", "busy", "images"),
    [
        ("memory", [(False, False), (False, False)], [0]),  # the older one
        ("memory", [(False, True), (False, False)], [0]),
        ("memory", [(True, False), (False, False)], [1]),  # it is written by one rank: not by any
        ("disk", [(True, False), (False, False)], [1]),
        ("memory", [(True, False), (False, True)], []),  # none is free on all ranks: left out
        ("disk", [(True, False), (False, True)], [0]),  # waits for the older one
    ],
)
def test_all_ranks_take_the_same_image(
    level: Level, busy: list[tuple[bool, bool]], images: list[int]
) -> None:
    everyone: list[dict[str, Any]] = [{"busy": one, "wanted": n} for n, one in enumerate(busy)]
    assert _choice(level, everyone) == {"images": images, "wanted": 0}


def test_a_store_of_the_ranks_that_is_gone_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> bool:
        raise RuntimeError("connection reset")

    monkeypatch.setattr(Preemption, "look", gone)
    checkpointer = Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, grace_s=5.0, linger_s=0.1)
    with pytest.warns(UserWarning, match="no notice .* any more: connection reset"):
        assert checkpointer.due(1) is None
    assert checkpointer.due(2) is None and not checkpointer.preempted
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    checkpointer.close()


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, linger_s=0.1)
    with pytest.raises(UsageError, match="to memory or to disk, not to tape"):
        checkpointer.save(1, level="tape")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="an anchor is saved to disk"):
        checkpointer.save(1, level="memory", anchor=True)
    with pytest.raises(UsageError, match="without an interval"):
        checkpointer.due(1)
    checkpointer.close()
