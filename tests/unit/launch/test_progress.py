"""The step that a job has reached, over its attempts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headway
from headway.journal.pulse import Pulse
from headway.launch.progress import Progress
from headway.launch.rank_tail import RankTail
from headway.testing import FakeRun


class Rank(RankTail):
    """A rank with a synthetic journal."""

    def __init__(
        self, steps: int, saves: list[dict[str, Any]] = (), loads: list[dict[str, Any]] = ()
    ) -> None:  # type: ignore[assignment]
        super().__init__("", 1)
        self.saves, self.loads, self._steps = list(saves), list(loads), steps

    def pulse(self) -> Pulse:
        return Pulse(steps=self._steps)


def save(step: int, file: str, path: str = "/last.pt") -> dict[str, Any]:
    return {"name": "checkpoint_save", "step": step, "file": file, "path": path}


def load(file: str, path: str = "/last.pt") -> dict[str, Any]:
    return {"name": "checkpoint_load", "file": file, "path": path}


def test_steps_count_on_from_what_was_loaded() -> None:
    progress = Progress()
    assert progress.conclude([Rank(25, [save(10, "a"), save(20, "b")])]) == (25, True)
    assert progress.conclude([Rank(7, [], [load("b")])]) == (27, False)
    assert progress.conclude([Rank(15, [save(10, "c")], [load("b")])]) == (35, True)
    assert progress.durable == 30


def test_an_older_checkpoint_saved_again_adds_nothing() -> None:
    progress = Progress()
    progress.conclude([Rank(25, [save(10, "a", "/10.pt"), save(20, "b", "/20.pt")])])
    fallen_back = Rank(12, [save(10, "c", "/20.pt")], [load("a", "/10.pt")])
    assert progress.conclude([fallen_back]) == (22, False)


def test_of_several_loads_the_highest_counts_unless_it_failed() -> None:
    saved = Rank(25, [save(10, "a", "/10.pt"), save(20, "b", "/20.pt")])
    for first, step in ((load("b", "/20.pt"), 23), ({**load("b"), "error": "EOFError"}, 13)):
        progress = Progress()
        progress.conclude([saved])
        assert progress.conclude([Rank(3, [], [first, load("a", "/10.pt")])]) == (step, False)


def test_a_load_that_nobody_saw_leaves_the_step_open() -> None:
    progress = Progress()
    progress.conclude([Rank(25, [save(20, "b")])])
    assert progress.conclude([Rank(5, [save(5, "c")])]) == (None, True)
    assert progress.conclude([Rank(5)]) == (None, False)


def test_saves_that_nobody_sees_are_not_missed() -> None:
    progress = Progress()
    assert progress.conclude([Rank(25)]) == (25, None)
    assert progress.conclude([Rank(0)]) == (0, False)


def test_the_loop_may_tell_where_it_starts() -> None:
    progress = Progress()
    progress.conclude([Rank(25, [save(20, "b")])])
    rank = Rank(5)
    rank.declared_start_step = 20
    assert progress.conclude([rank]) == (25, False)


def test_a_load_of_something_unknown_leaves_the_step_open() -> None:
    progress = Progress()
    assert progress.conclude([Rank(5, [save(5, "c")], [load("z", "/pretrained.pt")])]) == (
        None,
        True,
    )


def test_a_save_before_the_first_step_is_no_progress() -> None:
    assert Progress().conclude([Rank(0, [save(0, "a")])]) == (0, False)
    assert Progress().conclude([]) == (0, False)


def test_a_life_whose_start_is_unknown_does_not_mislead_those_after_it() -> None:
    progress = Progress()
    progress.conclude([Rank(1180, [save(1180, "a", "/1180.pt")])])
    unseen = load("never seen saved", "/1190.pt")
    assert progress.conclude([Rank(40, [save(40, "b", "/1230.tmp")], [unseen])]) == (None, True)
    assert progress.conclude([Rank(25, [save(20, "c")], [load("b", "/1230.pt")])]) == (None, True)
    assert progress.durable == 1180


@pytest.mark.parametrize("declared", [None, 15])
def test_the_ledger_comes_to_the_same_steps(tmp_path: Path, declared: int | None) -> None:
    """Two ranks, one behind the other; several loads; the loop returns to its own save. Finally
    another thread loads while the loop continues.
    """
    job = FakeRun()
    for number, steps in enumerate((30, 20)):
        job.launcher(100 * number, launch=f"L{number}", index=number).exit(
            100 * number + 90, code=1
        )
        for rank in range(2):
            process = job.process(100 * number, rank=rank, world=2, launch=f"L{number}")
            start = 100 * number + 10
            if number:
                for step in (10, 20)[: 2 - rank]:
                    process.span("checkpoint_load", start - 5, start - 4, path=f"{step}-{rank}.pt")
                if declared is not None:
                    process.event("progress", start - 3, step=declared)
            process.train(1, steps, start, 1)
            for step in (10, 20):
                path = f"{step}-{rank}.pt"
                process.span("checkpoint_save", start + step, start + step, step=step, path=path)
            end = start + steps
            process.span("checkpoint_load", end, end + 1, path=f"10-{rank}.pt")
            process.train(steps + 1, 5, end + 1, 1)
            process.span("checkpoint_load", end + 2.5, end + 4.5, th=9, path=f"10-{rank}.pt")
    folder = job.write(tmp_path) / "journal"
    progress, ends = Progress(), []
    for number in range(2):
        ranks = []
        for journal in job.journals:
            if journal.lines[0]["launch"] == f"L{number}" and journal.lines[0]["role"] == "process":
                rank = RankTail(str(folder / f"{journal.name}.jsonl"), 1)
                rank.read_new()
                rank.close()
                ranks.append(rank)
        ends.append(progress.conclude(ranks)[0])
    assert ends == [attempt.last_step for attempt in headway.load(tmp_path).ledger.attempts]
    assert ends == [15, (10 if declared is None else declared) + 15]
