"""Xid errors of the NVIDIA driver: which are causes, which are consequences, which are harmless."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

_LINE = re.compile(
    r"(?:NVRM: +)?Xid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): (?P<number>\d+)(?:, (?:pid=(?P<pid>\d+))?)?"
    r"|\b[Xx][Ii][Dd](?: ?(?:error|code|event|errors))?[ :=#]+(?P<other>\d{1,3})\b"
)
# Memory, links, bus, the GPU's own processors, its power: the board is at fault.
HARDWARE = frozenset({
    46, 48, 54, 56, 57, 58, 61, 62, 64, 74, 79, 81, 88, 95, 109, 110, 119, 120,
    121, 122, 123, 136, 140, 142, 143, 144, 145, 146, 147, 148, 149, 150, 151, 154, 155, 156,
    157, 158, 160, 161,
})  # fmt: skip
CONTAINED = 94  # a contained ECC error: only the application dies, but the hardware is at fault
APPLICATION = frozenset({13, 31, 32, 68, 69})
SECONDARY = frozenset({43, 45})  # the channel of a process that has died or is being killed
IGNORED = frozenset({63, 92})  # rows remapped, single-bit errors: not a failure on their own
MANY_PROCESSES = 3  # with so many processes on one GPU the GPU is at fault, not the processes


class Xid(NamedTuple):
    """One Xid line of the driver."""

    number: int
    gpu: str
    pid: str


def parse(text: str) -> Xid | None:
    """The Xid in a line, if any."""
    match = _LINE.search(text)
    if match is None:
        return None
    return Xid(int(match["number"] or match["other"]), match["gpu"] or "", match["pid"] or "")


def role(number: int) -> tuple[str, str, int]:
    """Category, role and weight of an Xid on its own."""
    if number in HARDWARE or number == CONTAINED:
        return "gpu_hardware", "root", 97
    if number in APPLICATION:
        return "cuda_fault", "root", 70
    if number in SECONDARY:
        return "cuda_fault", "symptom", 40
    if number in IGNORED:
        return "unknown", "fact", 0
    return "gpu_hardware", "symptom", 40


def faulty_gpus(errors: Iterable[Xid]) -> set[str]:
    """The GPUs whose faults hit many processes: hardware, even for an application's Xid."""
    pids: dict[str, set[str]] = defaultdict(set)
    for error in errors:
        if error.number in APPLICATION and error.gpu and error.pid:
            pids[error.gpu].add(error.pid)
    return {gpu for gpu, hit in pids.items() if len(hit) >= MANY_PROCESSES}
