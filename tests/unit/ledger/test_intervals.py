"""Sets of instants, against sets of instants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.ledger.segments import (
    Intervals,
    intersect,
    length,
    subtract,
    take_first,
    take_last,
    union,
    union_of_two,
)

pairs = st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1]))
intervals = st.lists(pairs, max_size=5).map(lambda found: union(found))


def instants(found: Intervals) -> list[int]:
    return [at for start, end in found for at in range(start, end)]


@given(intervals, intervals)
def test_they_are_what_sets_of_instants_are(one: Intervals, other: Intervals) -> None:
    here, there = set(instants(one)), set(instants(other))
    assert set(instants(union(one, other))) == here | there
    assert union_of_two(one, other) == union(one, other)
    assert set(instants(intersect(one, other))) == here & there
    assert set(instants(subtract(one, other))) == here - there
    assert length(one) == len(here)


@given(intervals, st.integers(0, 40))
def test_so_much_from_either_end(found: Intervals, ns: int) -> None:
    assert instants(take_first(found, ns)) == instants(found)[:ns]
    assert instants(take_last(found, ns)) == instants(found)[max(len(instants(found)) - ns, 0) :]
