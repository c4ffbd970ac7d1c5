"""What the launcher knows about the processes of the job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.journal.writer import Writer, head
from headway.launch.process_watch import ProcessWatch
from tests.support import NO_PROCESS


def test_a_life_between_two_looks_is_seen_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ProcessWatch, "_loop", lambda self: None
    )  # a machine too busy for a single round
    launcher = Writer(str(tmp_path / "launcher-a-host-1.jsonl"), os.getpid())
    watch = ProcessWatch(tmp_path, "a", launcher)
    watch.start()
    name = f"{os.uname().nodename}-{NO_PROCESS}-1.jsonl"
    rank = Writer(str(tmp_path / name), NO_PROCESS)
    rank.write({**head("rank", launch="a"), "rank": 0})
    rank.write({"ev": "span", "t": 1, "end": 2, "name": "checkpoint_save", "step": 10})
    rank.close()
    watch.finish()
    (tail,) = watch.ranks()
    assert (tail.rank, len(tail.saves), tail.died is not None) == (0, 1, True)
    assert '"ev":"death"' in (tmp_path / "launcher-a-host-1.jsonl").read_text()
    launcher.close()
