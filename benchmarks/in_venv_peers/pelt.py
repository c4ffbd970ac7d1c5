"""ruptures on the daily values of one fleet; prints alarms by way and penalty as JSON.

KernelCPD with a linear kernel is PELT with the squared-error cost, in C. The penalty is
`factor * columns * log(days)` in units of each column's own noise.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import ruptures

FACTORS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512)
LEAST_DROP = 0.5  # points of ETT, or of what stands for it
MIN_SIZE = 3


def standardised(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Columns in units of their noise, from the differences of days that follow each other."""
    noise = np.median(np.abs(np.diff(values, axis=0)), axis=0) / 0.6745 / np.sqrt(2)
    kept = noise > 1e-9
    return values[:, kept] / noise[kept]


def breaks(values: np.ndarray[Any, Any]) -> dict[int, list[int]]:
    """Where PELT cuts, by penalty factor."""
    signal = standardised(values)
    days, columns = signal.shape
    if days < 2 * MIN_SIZE or not columns:
        return {factor: [] for factor in FACTORS}
    search = ruptures.KernelCPD(kernel="linear", min_size=MIN_SIZE).fit(signal)
    return {
        factor: [int(b) for b in search.predict(pen=factor * columns * np.log(days))[:-1]]
        for factor in FACTORS
    }


def worse(trained: np.ndarray[Any, Any], cut: int, edges: list[int], least: float) -> bool:
    """Whether training fell at a cut, beside the stretches before and after it."""
    before = max((edge for edge in edges if edge < cut), default=0)
    after = min((edge for edge in edges if edge > cut), default=len(trained))
    return float(trained[before:cut].mean() - trained[cut:after].mean()) >= least


def main(path: str) -> None:
    told = np.load(path)
    trained, first, shares = int(told["trained"]), int(told["first"]), told["shares"]
    found: dict[str, dict[str, list[list[float]]]] = {}
    slices, last = shares.shape[:2]
    for today in range(first, last + 1):
        values = told[f"values_{today - first}"]
        for number in range(slices):
            daily = shares[number, :today]
            ways = {
                "daily ETT": (daily[:, [trained]], daily[:, trained], LEAST_DROP),
                "all buckets by day": (daily, daily[:, trained], LEAST_DROP),
                "on Headway's values": (values[number], values[number][:, trained], 0.0),
            }
            for way, (signal, effective, least) in ways.items():
                for factor, cuts in breaks(signal).items():
                    alarms = found.setdefault(way, {}).setdefault(str(factor), [])
                    alarms += [
                        [number, today, cut] for cut in cuts if worse(effective, cut, cuts, least)
                    ]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
