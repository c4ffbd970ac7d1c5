"""The fewest configs that are good enough for every key: a set cover."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

EXACT = 200_000  # sets that are looked at before the greedy answer is taken


def losses(times: Mapping[int, float]) -> dict[int, float]:
    """How much slower each config is than the best of this key, as a share of the best."""
    best = min(times.values())
    if best == 0:
        return {config: 0.0 if ms == 0 else math.inf for config, ms in times.items()}
    return {config: ms / best - 1 for config, ms in times.items()}


def cover(keys: Sequence[Mapping[int, float]], loss: float) -> list[int]:
    """The smallest set with a config within `loss` of the best for every key.

    `keys` are the losses of each key's configs. Of several smallest sets, the one that loses least
    in all. Exact as long as there are few enough sets of that size, greedy beyond.
    """
    covered: dict[int, int] = {}  # config -> the keys it is good for, as bits
    for bit, key in enumerate(keys):
        for config, lost in key.items():
            if lost <= loss:
                covered[config] = covered.get(config, 0) | 1 << bit
    everything = (1 << len(keys)) - 1
    candidates = _undominated(covered, keys)
    greedy = _greedy(candidates, everything, keys)
    looked_at = 0
    for size in range(1, len(greedy) + 1):
        looked_at += math.comb(len(candidates), size)
        if looked_at > EXACT:
            return greedy
        found = _best_of_size(candidates, everything, size, keys)
        if found:
            return found
    return greedy


def _best_of_size(
    candidates: Mapping[int, int],
    everything: int,
    size: int,
    keys: Sequence[Mapping[int, float]],
) -> list[int]:
    enough: list[tuple[float, tuple[int, ...]]] = []
    for chosen in combinations(sorted(candidates), size):
        bits = 0
        for config in chosen:
            bits |= candidates[config]
        if bits == everything:
            enough.append((_total_loss(chosen, keys), chosen))
    return list(min(enough)[1]) if enough else []


def _greedy(
    candidates: Mapping[int, int], everything: int, keys: Sequence[Mapping[int, float]]
) -> list[int]:
    chosen: list[int] = []
    bits = 0
    while bits != everything:
        gains = {config: (covers & ~bits).bit_count() for config, covers in candidates.items()}
        most = max(gains.values())
        best = min(
            (config for config, gain in gains.items() if gain == most),
            key=lambda config: (_total_loss((*chosen, config), keys), config),
        )
        chosen.append(best)
        bits |= candidates[best]
    return sorted(chosen)


def _undominated(covered: Mapping[int, int], keys: Sequence[Mapping[int, float]]) -> dict[int, int]:
    """Without those whose keys another one has too, and more of them or with less lost."""
    kept: dict[int, int] = {}
    order = sorted(
        covered, key=lambda one: (-covered[one].bit_count(), _config_loss(one, keys), one)
    )
    for config in order:
        if not any(covered[config] & ~bits == 0 for bits in kept.values()):
            kept[config] = covered[config]
    return kept


def _config_loss(config: int, keys: Sequence[Mapping[int, float]]) -> float:
    return sum(min(key.get(config, math.inf), 1e9) for key in keys)


def _total_loss(chosen: Sequence[int], keys: Sequence[Mapping[int, float]]) -> float:
    return sum(min(min(key.get(config, math.inf) for config in chosen), 1e9) for key in keys)
