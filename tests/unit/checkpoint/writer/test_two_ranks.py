"""Two real writers of one checkpoint: if one gives it up, the other does not wait."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headway.checkpoint.store.store import Store
from headway.checkpoint.writer import protocol
from headway.checkpoint.writer.client import WriterClient
from headway.storage.place import open_place
from tests.support import lazy, wait_until

if TYPE_CHECKING:
    from tests.writers import Started

torch = lazy("torch")
plans = lazy("headway.checkpoint.plan")
layout_of = lazy("headway.checkpoint.staging:_describe_layout")

pytestmark = pytest.mark.timeout(60)
BAD_RATE = -1.0  # with which nothing can be written
BAD = ("rate-invalid", None, None)


Problem = tuple[str, Any, Any]  # its code; of a save that was given up by which rank and why
NONE: Problem = ("", None, None)


def problem(outcome: dict[str, Any]) -> Problem:
    fields = outcome.get("fields", {})
    return outcome.get("code", ""), fields.get("rank"), fields.get("cause")


def by(rank: int, cause: str) -> Problem:
    return "save-given-up", rank, cause


class Rank:
    """One of two, with its writer. Rank 0 has the only tensor."""

    def __init__(self, number: int, store: str) -> None:
        self.number, self.store = number, store
        self.client = WriterClient(f"headway-test-{secrets.token_hex(8)}", writer_idle_s=60.0)
        self.client.reserve(1, 4096)
        protocol.close(self.client.descriptors())
        state = {"w": torch.zeros(4)}
        plan = plans.make_plan(state)
        layout = layout_of(plan, plan.local_items(state).tensors, [0])
        if number:
            layout |= {"tensors": [], "values": []}
        self.client.send("layout", id="plan", layout=layout)

    def save(self, step: int, *, good: bool = True, rate: float | None = None) -> None:
        job = {"store": self.store, "save_id": f"s-{step}", "rank": self.number, "world": 2}
        job |= {"extra": {}, "keep": None, "anchor": False, "rate": rate, "parent": ""}
        about = {"layout": "plan", "values": [], "changed": [], "write": True}
        ids = os.memfd_create("rows")
        os.write(ids, bytes(8))
        self.client.send("filling", image=0, step=step)
        self.client.send("whole", ids, image=0, good=good, job=job, **about)
        os.close(ids)

    def problems(self, count: int) -> list[Problem]:
        """Of so many saves, once they are over."""

        def over() -> list[Problem] | None:
            status = self.client.status()
            outcomes = status["outcomes"]
            done = not status["busy"] and len(outcomes) >= count
            return [problem(one) for one in outcomes] if done else None

        return wait_until(over)

    def waits(self) -> None:
        """Until its part is written, and the other's is not there."""
        wait_until(lambda: self.client.status()["waiting"])


@pytest.fixture(params=["folder", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else f"local://{tmp_path}/store"


@pytest.fixture
def ranks(store: str, writers: list[Started]) -> Iterator[list[Rank]]:
    both = [Rank(0, store), Rank(1, store)]
    yield both
    for rank in both:
        rank.client.close()
    for writer in writers:
        writer.kill()


def marks(store: str) -> list[str]:
    return [name for name in open_place(store).list_names() if name.startswith(".given-up")]


def test_rank_0_gave_up_before_the_other_began(ranks: list[Rank], store: str) -> None:
    first, second = ranks
    first.save(1, rate=BAD_RATE)
    assert first.problems(1) == [BAD]
    second.save(1)
    assert [problem(one) for one in second.client.end()["outcomes"]] == [by(0, "rate-invalid")]
    assert len(marks(store)) == 1 and Store(store).checkpoints() == []


def test_rank_0_gives_up_while_the_other_waits(ranks: list[Rank], store: str) -> None:
    first, second = ranks
    second.save(1)
    second.waits()
    first.save(1, rate=BAD_RATE)
    assert second.problems(1) == [by(0, "rate-invalid")]
    assert first.problems(1) == [BAD]


def test_an_image_that_is_void_is_given_up(ranks: list[Rank], store: str) -> None:
    first, second = ranks
    first.save(1, good=False)
    second.save(1)
    assert second.problems(1) == [by(0, "image-not-whole")]


def test_rank_0_hears_of_the_other_too(ranks: list[Rank], store: str) -> None:
    first, second = ranks
    first.save(1)
    first.waits()
    second.save(1, rate=BAD_RATE)
    assert first.problems(1) == [by(1, "rate-invalid")]
    assert second.problems(1) == [BAD]


def test_the_next_checkpoint_takes_the_mark_away(ranks: list[Rank], store: str) -> None:
    first, second = ranks
    first.save(1, rate=BAD_RATE)
    first.problems(1)
    second.save(1)
    second.problems(1)
    for rank in ranks:
        rank.save(2)
    assert [rank.problems(2)[1] for rank in ranks] == [NONE, NONE]
    assert [one.step for one in Store(store).checkpoints()] == [2]
    assert marks(store) == []


def test_the_mark_is_there_after_rank_0_was_killed(ranks: list[Rank], store: str) -> None:
    first, second = ranks
    first.save(1, rate=BAD_RATE)
    first.problems(1)
    os.kill(first.client.hello["pid"], 9)
    second.save(1)
    assert second.problems(1) == [by(0, "rate-invalid")]
