"""Collect autotuning from journals: kernels, their configs, and the time of each config by key."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from headway.journal.reader import Journal

KINDS = ("triton", "inductor", "template")


@dataclass(frozen=True)
class Setup:
    """The hardware and versions that timings are valid for."""

    gpu: str | None
    triton: str | None
    torch: str | None
    driver: str | None = None

    def __str__(self) -> str:
        return f"{self.gpu}, Triton {self.triton}, torch {self.torch}"


@dataclass(frozen=True)
class Key:
    """A tuning key of a kernel, as JSON: the kernel is tuned once per key."""

    text: str
    rest: str = ""

    @property
    def values(self) -> list[Any]:
        """The values as recorded."""
        values: list[Any] = json.loads(self.text)
        return values


@dataclass
class KeyTimings:
    """Measurements for one key, by index of the config; None for a failed one."""

    ms: dict[int, list[float | None]] = field(default_factory=dict)
    seconds: dict[int, list[float]] = field(default_factory=dict)

    def time(self, config: int) -> float:
        """The median over all processes that tuned this key; infinite if it failed in any."""
        values = self.ms.get(config, [None])
        return math.inf if None in values else median(ms for ms in values if ms is not None)

    def times(self) -> dict[int, float]:
        """Times of the configs that worked in every process."""
        values = {config: self.time(config) for config in self.ms}
        return {config: ms for config, ms in values.items() if math.isfinite(ms)}


@dataclass
class Kernel:
    """A kernel with the measurements of all processes of a run."""

    kind: str
    id: str
    name: str
    where: str
    names: tuple[str, ...]
    setup: Setup
    configs: list[dict[str, Any]] = field(default_factory=list)
    keys: dict[Key, KeyTimings] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)  # journal -> seconds of benchmarks
    compiled: dict[str, float] = field(default_factory=dict)  # journal -> seconds of compiles
    pruned: int = 0  # tunings with configs removed by an earlier advice file
    unrecorded: int = 0  # tunings beyond the limits of the record
    numbers: dict[str, int] = field(default_factory=dict)  # config as JSON -> its index

    @property
    def seconds(self) -> float:
        """Benchmark time in the process with the most."""
        return max(self.spent.values(), default=0.0)

    @property
    def compile_seconds(self) -> float:
        """Compile time of its configs that is not part of `seconds`."""
        return max(self.compiled.values(), default=0.0)

    def index(self, config: Mapping[str, Any]) -> int:
        """The index of a config; appends it if it is new."""
        name = json.dumps(config, sort_keys=True)
        if name not in self.numbers:
            self.numbers[name] = len(self.configs)
            self.configs.append(dict(config))
        return self.numbers[name]


def collect(journals: Iterable[Journal]) -> list[Kernel]:
    """Every tuned kernel, most expensive first."""
    kernels: dict[tuple[Setup, str, str], Kernel] = {}
    for journal in journals:
        _read(journal, kernels)
    return sorted(kernels.values(), key=lambda kernel: -kernel.seconds)


def _read(journal: Journal, kernels: dict[tuple[Setup, str, str], Kernel]) -> None:
    """Read one journal; its config numbers are local to it."""
    here: dict[tuple[str, str], tuple[Kernel, list[int]]] = {}
    for event in journal.named("autotune_kernel", "autotune"):
        try:
            kind, name = str(event["kind"]), str(event["kernel"])
            if event["ev"] == "autotune_kernel":
                kernel = _kernel(event, kind, name, kernels)
                _, numbers = here.setdefault((kind, name), (kernel, []))
                if event["first"] == len(numbers):
                    numbers += [kernel.index(config) for config in event["configs"]]
            else:
                kernel, numbers = here[kind, name]
                _add(kernel, numbers, event, journal.name)
        except (KeyError, TypeError, ValueError, IndexError):
            continue  # damaged, or of a kernel whose line is missing


def _kernel(
    event: Mapping[str, Any],
    kind: str,
    name: str,
    kernels: dict[tuple[Setup, str, str], Kernel],
) -> Kernel:
    if kind not in KINDS or not all(isinstance(config, dict) for config in event["configs"]):
        raise ValueError(kind)
    setup = Setup(*(event.get(part) for part in ("gpu", "triton", "torch", "driver")))
    kernel = kernels.get((setup, kind, name))
    if kernel is None:
        names = tuple(str(word) for word in event.get("names") or ())
        labels = str(event["name"]), str(event.get("where", ""))
        kernel = kernels[setup, kind, name] = Kernel(kind, name, *labels, names, setup)
    return kernel


def _add(kernel: Kernel, numbers: list[int], event: Mapping[str, Any], journal: str) -> None:
    seconds = _seconds(event["seconds"])
    if "more" in event:
        kernel.unrecorded += int(event["more"])
        kernel.spent[journal] = kernel.spent.get(journal, 0.0) + seconds
        return
    entries = list(_entries(numbers, event))
    key = Key(json.dumps(list(event["key"])), str(event.get("rest", "")))
    kernel.spent[journal] = kernel.spent.get(journal, 0.0) + seconds
    compiled = _seconds(event.get("compiled", 0.0))
    kernel.compiled[journal] = kernel.compiled.get(journal, 0.0) + compiled
    if len(entries) < int(event["of"]):  # an earlier advice file removed some
        kernel.pruned += 1
        return
    timings = kernel.keys.setdefault(key, KeyTimings())
    for config in {entry[0] for entry in entries}:
        # Configs with equal descriptions are merged; tuning finds the best of them again.
        times = [ms for number, ms, _ in entries if number == config]
        worked = [ms for ms in times if ms is not None]
        timings.ms.setdefault(config, []).append(min(worked, default=None))
        costs = [cost for number, _, cost in entries if number == config and cost is not None]
        if costs:
            timings.seconds.setdefault(config, []).append(sum(costs))


def _entries(
    numbers: list[int], event: Mapping[str, Any]
) -> Iterator[tuple[int, float | None, float | None]]:
    which, times = event.get("c", []), event.get("ms", [])
    costs = event.get("s") or [None] * len(which)
    for number, ms, cost in zip(which, times, costs, strict=True):
        yield numbers[number], _time(ms), _time(cost)


def _time(value: Any) -> float | None:
    """A measured time; None if it failed or is invalid."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and value >= 0 else None


def _seconds(value: Any) -> float:
    seconds = _time(value)
    if seconds is None:
        raise ValueError(value)
    return seconds
