"""The rate limit, with a fake clock."""

from __future__ import annotations

from headway.serve import security
from headway.serve.security import RateLimit


def test_a_burst_and_the_refill() -> None:
    now = 0.0
    limit = RateLimit(burst=3, per_second=2, clock=lambda: now)
    assert [limit.allows("a") for _ in range(4)] == [True, True, True, False]
    assert limit.allows("b")  # somebody else
    now = 0.5
    assert [limit.allows("a") for _ in range(2)] == [True, False]
    now = 100.0
    assert [limit.allows("a") for _ in range(4)] == [True, True, True, False]


def test_the_number_of_callers_is_bounded() -> None:
    limit = RateLimit(burst=1, per_second=1, clock=lambda: 0.0)
    for caller in range(security.MAX_CALLERS + 10):
        limit.allows(str(caller))
    assert len(limit._callers) == security.MAX_CALLERS
