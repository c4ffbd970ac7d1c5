"""The global order of samples, and each rank's part of it."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import UsageError
from tests.support import examples, has_code, lazy

torch = lazy("torch")
GlobalBatches = lazy("headway.checkpoint.data:GlobalBatches")


def every_rank(
    length: int, batch: int, world: int, tail: str, offset: int = 0
) -> list[list[list[int]]]:
    found = []
    for rank in range(world):
        sampler = GlobalBatches(range(length), batch, tail=tail, rank=rank, world=world)
        sampler.seek(0, offset)
        found.append(list(sampler))
        assert len(sampler) == len(found[-1])
    return found


def test_ranks_take_their_part_of_one_order() -> None:
    order = GlobalBatches(range(12), 1).order(0).tolist()
    assert sorted(order) == list(range(12)) != order
    first, second = every_rank(12, 3, 2, "pad")
    assert first == [order[0:3], order[6:9]] and second == [order[3:6], order[9:12]]


def test_the_order_is_of_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        torch.rand(seed + epoch)  # torch's own state does not matter
        found: list[int] = GlobalBatches(range(50), 4, seed=seed).order(epoch).tolist()
        return found

    assert order(0, 1) == order(0, 1)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    state = torch.get_rng_state()
    list(GlobalBatches(range(50), 4))
    assert torch.equal(state, torch.get_rng_state())
    plain = GlobalBatches(range(5), 2, shuffle=False)
    assert list(plain) == [[0, 1], [2, 3], [4]]


def test_the_default_device_does_not_matter() -> None:
    with torch.device("meta"):
        assert sorted(chain(*GlobalBatches(range(9), 2))) == list(range(9))


def test_the_tail() -> None:
    parts = {tail: every_rank(10, 2, 4, tail) for tail in ("pad", "short", "drop")}
    order = GlobalBatches(range(10), 1).order(0).tolist()
    assert [rank[1:] for rank in parts["pad"]] == [[[at]] for at in (*order[8:], *order[:2])]
    assert [rank[1:] for rank in parts["short"]] == [[[order[8]]], [[order[9]]], [], []]
    assert [rank[1:] for rank in parts["drop"]] == [[], [], [], []]


def test_fewer_samples_than_ranks() -> None:
    assert [len(rank) for rank in every_rank(2, 8, 5, "pad")] == [1] * 5
    assert [len(rank) for rank in every_rank(2, 8, 5, "short")] == [1, 1, 0, 0, 0]


@settings(derandomize=True, deadline=None, max_examples=examples(150))
@given(st.data(), st.integers(1, 60), st.integers(1, 7), st.integers(1, 6))
def test_the_rest_of_an_epoch_is_covered(
    data: st.DataObject, length: int, batch: int, world: int
) -> None:
    offset = data.draw(st.integers(0, length))
    tail = data.draw(st.sampled_from(["pad", "short", "drop"]))
    parts = every_rank(length, batch, world, tail, offset)
    counts = Counter(sample for rank in parts for step in rank for sample in step)
    rest = set(GlobalBatches(range(length), batch).order(0)[offset:].tolist())
    if tail == "short":
        assert counts == Counter(rest)
    elif tail == "drop":
        assert set(counts.values()) <= {1} and counts.keys() <= rest
        assert len(rest) - len(counts) == len(rest) % (batch * world)
    else:
        assert counts.keys() >= rest and counts.total() - len(rest) < world
        assert len({tuple(len(step) for step in rank) for rank in parts}) == 1  # in step


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, check=has_code("batches-invalid")):
        GlobalBatches([], 4)
    with pytest.raises(UsageError, check=has_code("tail-unknown")):
        GlobalBatches(range(4), 4, tail="keep")
    with pytest.raises(UsageError, check=has_code("rank-out-of-range")):
        GlobalBatches(range(4), 4, rank=2, world=2)
    with pytest.raises(UsageError, check=has_code("rank-without-world")):
        GlobalBatches(range(4), 4, rank=2)


def test_rank_and_world_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    sampler = GlobalBatches(range(9), 2)
    assert (sampler.rank, sampler.world) == (1, 3)
