"""Choose the fewest configs that are fast enough for every key, and write the file the probe reads.

The choice is a set cover, exact for small problems and greedy for large ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from headway.compile.autotune.records import Kernel, Key, KeyTimings, Setup
from headway.errors import NewerSchema, RunNotFound, UsageError

SCHEMA = 1
ADVICE_FILE = "autotune.json"
FUSION = {"ExternKernel": "TritonTemplate", "TritonTemplate": "ExternKernel"}
EXACT = 200_000  # sets to check before the greedy solution is used


@dataclass(frozen=True)
class KeyAdvice:
    """For one key: the best config, and which of the kept configs to use."""

    key: Key
    timings: KeyTimings
    losses: dict[int, float]
    best: int
    use: tuple[int, ...]

    @property
    def loss(self) -> float:
        """Slowdown relative to the best config, as a fraction."""
        return self.losses[self.use[0]]


@dataclass(frozen=True)
class KernelAdvice:
    """For one kernel: the fewest configs that stay within the loss for every key."""

    kernel: Kernel
    kept_configs: tuple[int, ...]
    keys: tuple[KeyAdvice, ...]
    untunable: int  # keys without a working config, which are fully tuned again

    @property
    def loss(self) -> float:
        """Largest slowdown of any key, as a fraction."""
        return max((key.loss for key in self.keys), default=0.0)

    @property
    def spent(self) -> float:
        """Seconds of tuning in the process with the most."""
        return self.kernel.seconds + self.kernel.compile_seconds

    @property
    def predicted(self) -> float:
        """Upper bound of the seconds that the same keys cost with the kept configs."""
        return sum(self._cost(key) for key in self.keys)

    def _cost(self, key: KeyAdvice) -> float:
        """A single config is not benchmarked; its compile and benchmark time is an upper bound."""
        costs = [key.timings.seconds.get(config) for config in key.use]
        if all(costs):
            return sum(median(cost) for cost in costs if cost)
        share = len(key.use) / (len(key.timings.ms) * len(self.keys))
        benchmarks = self.kernel.seconds if len(key.use) > 1 else 0.0
        return share * (benchmarks + self.kernel.compile_seconds)

    def ranking(self) -> list[tuple[int, int, float, float]]:
        """Each config with its number of wins, median slowdown and worst slowdown."""
        rows = []
        for config in range(len(self.kernel.configs)):
            config_losses = [key.losses[config] for key in self.keys if config in key.losses]
            if config_losses:
                wins = sum(key.best == config for key in self.keys)
                worst = max(config_losses) if len(config_losses) == len(self.keys) else float("inf")
                rows.append((config, wins, median(config_losses), worst))
        return sorted(rows, key=lambda row: (-row[1], row[2]))


def advise(kernel: Kernel, loss: float) -> KernelAdvice:
    """The advice for one kernel; `loss` is a fraction."""
    times_by_key = {key: timings.times() for key, timings in kernel.keys.items()}
    untunable = sum(not times for times in times_by_key.values())
    losses_by_key = {key: losses(times) for key, times in times_by_key.items() if times}
    selected = set(cover(list(losses_by_key.values()), loss)) if losses_by_key else set()
    keys = []
    for key, losses_of_key in losses_by_key.items():
        best = min(losses_of_key, key=lambda config: (losses_of_key[config], config))
        use = min(
            selected & losses_of_key.keys(), key=lambda config: (losses_of_key[config], config)
        )
        partner = _partner(kernel, use, losses_of_key)
        keys.append(KeyAdvice(key, kernel.keys[key], losses_of_key, best, (use, *partner)))
        selected.update(partner)
    return KernelAdvice(kernel, tuple(sorted(selected)), tuple(keys), untunable)


def _partner(kernel: Kernel, use: int, losses_of_key: dict[int, float]) -> list[int]:
    """The best library kernel for a Triton template, and the other way round.

    Only a template can be fused with the operations after a product. torch decides which of the
    two is faster then, so both are kept.
    """
    partner_kind = FUSION.get(kernel.configs[use].get("by", ""))
    candidates = [
        config for config in losses_of_key if kernel.configs[config].get("by") == partner_kind
    ]
    candidates.sort(key=lambda config: (losses_of_key[config], config))
    return candidates[:1] if partner_kind else []


def same_setup(kernels: Sequence[Kernel]) -> tuple[Setup | None, list[Kernel]]:
    """The setup with most of the tuning time, and the kernels tuned there."""
    seconds: dict[Setup, float] = {}
    for kernel in kernels:
        seconds[kernel.setup] = seconds.get(kernel.setup, 0.0) + kernel.seconds + 1e-9
    if not seconds:
        return None, []
    setup = max(seconds, key=lambda candidate: seconds[candidate])
    return setup, [kernel for kernel in kernels if kernel.setup == setup]


def to_dict(
    setup: Setup, kernels: Sequence[KernelAdvice], loss: float, runs: Sequence[str]
) -> dict[str, Any]:
    """The content of autotune.json."""
    return {
        "schema": SCHEMA,
        "runs": list(runs),
        "loss_percent": round(loss * 100, 6),
        "gpu": setup.gpu,
        "driver": setup.driver,
        "triton": setup.triton,
        "torch": setup.torch,
        "kernels": [_kernel_to_dict(advice) for advice in kernels if advice.keys],
    }


def _kernel_to_dict(advice: KernelAdvice) -> dict[str, Any]:
    kernel = advice.kernel
    return {
        "kind": kernel.kind,
        "id": kernel.id,
        "name": kernel.name,
        "where": kernel.where,
        "names": list(kernel.names),
        "seconds": round(advice.spent, 3),
        "pruned_seconds": round(advice.predicted, 3),
        "configs": kernel.configs,
        "kept": list(advice.kept_configs),
        "keys": [
            {
                "key": key.key.values,
                "rest": key.key.rest,
                "tried": sorted(key.timings.ms),
                "best": key.best,
                "use": list(key.use),
                "ms": key.timings.time(key.use[0]),
                "loss_percent": round(key.loss * 100, 3),
            }
            for key in advice.keys
        ],
    }


def find_advice_file(path: str) -> Path:
    """The advice file for a path, which may be the file or a run folder."""
    named = Path(path)
    if not named.exists():
        raise RunNotFound(f"no run or file at {path}; type `ls headway` to see your runs")
    file = named / ADVICE_FILE if named.is_dir() else named
    if not file.exists():
        raise UsageError(
            f"{path} has no {ADVICE_FILE} yet; type `headway autotune {path}`",
            code="autotune-file-missing",
        )
    check_advice_file(file)
    return file.resolve()


def check_advice_file(path: Path) -> None:
    """UsageError if the file is not valid advice for the probe."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        schema = content["schema"]
        is_valid = isinstance(schema, int) and isinstance(content["kernels"], list)
    except (OSError, ValueError, KeyError, TypeError):
        is_valid, schema = False, 0
    if not is_valid:
        raise UsageError(
            f"{path} was not written by `headway autotune`; type `headway autotune RUN`",
            code="autotune-file-not-readable",
        )
    if schema > SCHEMA:
        raise NewerSchema(
            f"{path} has schema {schema}, newer than {SCHEMA}, which this version reads; "
            "install a newer Headway"
        )


def losses(times: Mapping[int, float]) -> dict[int, float]:
    """Slowdown of each config relative to the best of this key, as a fraction."""
    best = min(times.values())
    if best == 0:
        return {config: 0.0 if ms == 0 else math.inf for config, ms in times.items()}
    return {config: ms / best - 1 for config, ms in times.items()}


def cover(keys: Sequence[Mapping[int, float]], loss: float) -> list[int]:
    """The smallest set with a config within `loss` of the best for every key.

    `keys` are the losses of each key's configs. Of several smallest sets, returns the one with the
    least total loss. Exact up to EXACT sets, greedy beyond.
    """
    covered: dict[int, int] = {}  # config -> bit mask of the keys it is good for
    for bit, key in enumerate(keys):
        for config, key_loss in key.items():
            if key_loss <= loss:
                covered[config] = covered.get(config, 0) | 1 << bit
    everything = (1 << len(keys)) - 1
    candidates = _undominated(covered, keys)
    greedy = _greedy(candidates, everything, keys)
    checked = 0
    for size in range(1, len(greedy) + 1):
        checked += math.comb(len(candidates), size)
        if checked > EXACT:
            return greedy
        best = _best_of_size(candidates, everything, size, keys)
        if best:
            return best
    return greedy


def _best_of_size(
    candidates: Mapping[int, int],
    everything: int,
    size: int,
    keys: Sequence[Mapping[int, float]],
) -> list[int]:
    covering: list[tuple[float, tuple[int, ...]]] = []
    for subset in combinations(sorted(candidates), size):
        bits = 0
        for config in subset:
            bits |= candidates[config]
        if bits == everything:
            covering.append((_total_loss(subset, keys), subset))
    return list(min(covering)[1]) if covering else []


def _greedy(
    candidates: Mapping[int, int], everything: int, keys: Sequence[Mapping[int, float]]
) -> list[int]:
    selected: list[int] = []
    bits = 0
    while bits != everything:
        gains = {config: (covers & ~bits).bit_count() for config, covers in candidates.items()}
        largest_gain = max(gains.values())
        best = min(
            (config for config, gain in gains.items() if gain == largest_gain),
            key=lambda config: (_total_loss((*selected, config), keys), config),
        )
        selected.append(best)
        bits |= candidates[best]
    return sorted(selected)


def _undominated(covered: Mapping[int, int], keys: Sequence[Mapping[int, float]]) -> dict[int, int]:
    """Remove configs whose keys are covered by another one with more keys or less loss."""
    undominated: dict[int, int] = {}
    order = sorted(
        covered,
        key=lambda config: (-covered[config].bit_count(), _config_loss(config, keys), config),
    )
    for config in order:
        if not any(covered[config] & ~bits == 0 for bits in undominated.values()):
            undominated[config] = covered[config]
    return undominated


def _config_loss(config: int, keys: Sequence[Mapping[int, float]]) -> float:
    return sum(min(key.get(config, math.inf), 1e9) for key in keys)


def _total_loss(configs: Sequence[int], keys: Sequence[Mapping[int, float]]) -> float:
    return sum(min(min(key.get(config, math.inf) for config in configs), 1e9) for key in keys)
