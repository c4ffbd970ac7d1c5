"""How far the job has come, over its attempts."""

from __future__ import annotations

from typing import Any

from headway.journal.pulse import Pulse
from headway.launch.follow import Followed
from headway.launch.progress import Progress


class Rank(Followed):
    """A rank with a journal made up."""

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


def test_the_last_load_is_the_one_that_did() -> None:
    progress = Progress()
    progress.conclude([Rank(25, [save(10, "a", "/10.pt"), save(20, "b", "/20.pt")])])
    damaged_first = Rank(3, [], [load("b", "/20.pt"), load("a", "/10.pt")])
    assert progress.conclude([damaged_first]) == (13, False)


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
    rank.told_base = 20
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
