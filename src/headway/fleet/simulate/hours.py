"""The account of attempts cut into windows of time: hours for the store, days for a plot."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from headway.fleet.simulate.account import COLUMN, LOOP, Account
from headway.fleet.simulate.jobs import Floats, Ints
from headway.ledger.leaves import SHUTDOWN


@dataclass(frozen=True)
class Windows:
    """A row per attempt and window that it touches; columns are leaves."""

    attempt: Ints  # row of the attempt
    begin: Floats  # of the window, seconds since the epoch
    seconds: Floats


def split_windows(account: Account, grain: float = 3600.0) -> Windows:
    """Set-up comes first, then the loop evenly, then the shutdown."""
    lives = account.lives
    first = np.floor(lives.start / grain).astype(np.int64)
    last = np.maximum(np.ceil(lives.end / grain).astype(np.int64), first + 1)
    count = last - first
    attempt = np.repeat(np.arange(count.size), count)
    offset = np.arange(attempt.size) - np.repeat(np.cumsum(count) - count, count)
    begin = np.asarray((first[attempt] + offset) * grain, dtype=np.float64)
    stop = account.seconds[:, COLUMN[SHUTDOWN]]
    edges = (lives.start, lives.start + account.setup, lives.end - stop, lives.end)
    parts = [
        _overlap(low[attempt], high[attempt], begin, grain)
        for low, high in itertools.pairwise(edges)
    ]
    setup, loop, ending = parts
    share = np.where(LOOP, loop[:, None], setup[:, None])
    share[:, COLUMN[SHUTDOWN]] = ending
    return Windows(attempt, begin, account.seconds[attempt] * share)


def _overlap(low: Floats, high: Floats, begin: Floats, grain: float) -> Floats:
    """The share of [low, high) that falls into the window."""
    inside = np.minimum(high, begin + grain) - np.maximum(low, begin)
    length = high - low
    share = np.divide(inside, length, out=np.zeros_like(inside), where=length > 1e-6)
    return np.asarray(np.clip(share, 0.0, 1.0))
