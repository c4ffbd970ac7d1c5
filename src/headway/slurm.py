"""Run Slurm commands and parse their output: host lists, trackable resources (TRES), numbers."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headway.errors import SlurmRefused

MAX_HOSTS = 1_000_000  # a longer list is damaged
_NAME = re.compile(r"(?:[^,\[\]]|\[[^\[\]]+\])+")
_PART = re.compile(r"\[([^\[\]]+)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand_hosts(text: str) -> list[str]:
    """Expand `rack[1-2]node[01-03,7],login`; ValueError if it is not a host list."""
    if text in ("", "None assigned", "(null)"):
        return []
    names = _NAME.findall(text)
    if ",".join(names) != text:
        raise ValueError(f"{text[:80]!r} is not a host list")
    hosts: list[str] = []
    for name in names:
        parts = [_numbers(range_) if range_ else [word] for range_, word in _PART.findall(name)]
        if len(hosts) + math.prod(map(len, parts)) > MAX_HOSTS:
            raise ValueError(f"{text[:80]!r} has more than {MAX_HOSTS:,} hosts")
        hosts += map("".join, itertools.product(*parts))
    return hosts


def _numbers(text: str) -> list[str]:
    """Expand `01-03,7`; leading zeros are kept."""
    numbers: list[str] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or not 0 <= last - first < MAX_HOSTS - len(numbers):
            raise ValueError(f"[{text[:80]}] is not a range of hosts")
        numbers += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return numbers


def parse_tres(text: str) -> dict[str, int]:
    """Parse `cpu=64,mem=1T,gres/gpu=8`; values that are not whole numbers are omitted."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name: int(value) for name, _, value in pairs if value.isascii() and value.isdecimal()}


def count_gpus(resources: Mapping[str, int]) -> int:
    """Number of GPUs in TRES. `gres/gpu` includes all types, but a site may track types only."""
    typed = sum(count for name, count in resources.items() if name.startswith("gres/gpu:"))
    return max(resources.get("gres/gpu", 0), typed)


def count_gres_gpus(text: str) -> int:
    """Number of GPUs in `gpu:a100:2(IDX:0,3),gpu:1g.5gb:1(IDX:4),nic:1`, the format of squeue."""
    entries = (entry.split(":") for entry in re.sub(r"\([^)]*\)", "", text).split(","))
    return sum(
        int(words[-1])
        for words in entries
        if words[0] == "gpu" and words[-1].isascii() and words[-1].isdecimal()
    )


def json_number(value: Any) -> float | None:
    """A number in JSON; newer versions write {"set": true, "number": 3}."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) else None
    return None if value is None else float(value)


def json_tres(entries: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Convert [{"type": "gres", "name": "gpu:a100", "count": 4}] to the names of `parse_tres`."""
    resources = {}
    for entry in entries:
        name = "/".join(filter(None, (str(entry["type"]), str(entry.get("name") or ""))))
        resources[name] = int(json_number(entry["count"]) or 0)
    return resources


RunCommand = Callable[..., str]  # program and arguments -> standard output
TIMEOUT_S = 60.0  # a busy slurmctld may take this long


def run_command(*words: str) -> str:
    """Run a Slurm command and return its standard output."""
    try:
        result = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise SlurmRefused(
            f"{words[0]} did not finish within {TIMEOUT_S:g} s; check that slurmctld is running",
            code="slurm-timeout",
        ) from None
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines() or ["no output"]
        raise SlurmRefused(
            f"`{' '.join(words[:4])}` failed: {lines[-1]}", code="slurm-refused", reason=lines[-1]
        )
    return result.stdout
