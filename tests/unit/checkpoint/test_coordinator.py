"""What ranks tell each other, as threads on a real store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import lazy

dist = lazy("torch.distributed")
RankCoordinator = lazy("headway.checkpoint.coordinator:RankCoordinator")

pytestmark = pytest.mark.timeout(30)
WORLD = 3


def everyone(store: Any) -> list[RankCoordinator]:
    found = [RankCoordinator() for _ in range(WORLD)]
    for rank, ranks in enumerate(found):
        ranks.rank, ranks.world, ranks._store = rank, WORLD, store
        ranks.set_name("test")
    return found


def together(ranks: list[RankCoordinator], ask: Callable[[RankCoordinator], Any]) -> list[Any]:
    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(ask, ranks))


def test_rank_0_is_heard_by_all_and_nothing_stays_in_the_store() -> None:
    store = dist.HashStore()
    ranks = everyone(store)
    before = store.num_keys()
    for number in range(5):
        said = together(ranks, lambda one, number=number: one.from_rank0([one.rank, number]))
        assert said == [[0, number]] * WORLD
    assert store.num_keys() == before


def test_everybody_is_asked_before_one_is_answered() -> None:
    store = dist.HashStore()
    ranks = everyone(store)
    before = store.num_keys()
    for _ in range(3):
        sums = together(ranks, lambda one: one.decide(one.rank + 1, lambda all: sum(all)))
        assert sums == [6] * WORLD
    assert store.num_keys() == before


def test_rank_0_sees_who_waves() -> None:
    ranks = everyone(dist.HashStore())
    assert not ranks[0].flag_raised()
    ranks[2].raise_flag()
    assert ranks[0].flag_raised()


def test_a_rank_alone_asks_nobody() -> None:
    alone = RankCoordinator()
    assert (alone.from_rank0(3), alone.decide(3, lambda all: all)) == (3, [3])
    alone.raise_flag()
    assert not alone.flag_raised()
