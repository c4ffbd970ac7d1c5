"""Journals with tunings, with the same fields that the probe writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.compile.autotune.records import Kernel, collect
from headway.testing import FakeJournal, FakeRun

H200 = {"gpu": "NVIDIA H200", "driver": "580.65", "triton": "3.6.0", "torch": "2.11.0"}


def configs(*blocks: int) -> list[dict[str, Any]]:
    return [{"BLOCK": block, "num_warps": 4, "num_stages": 3, "num_ctas": 1} for block in blocks]


def tell_kernel(
    journal: FakeJournal,
    blocks: Sequence[int] = (64, 128, 256),
    *,
    kernel: str = "k1",
    kind: str = "triton",
    first: int = 0,
    setup: Mapping[str, Any] = H200,
    **fields: Any,
) -> None:
    event: dict[str, Any] = {"name": "scale", "where": "job.py:20", "names": ["n"]}
    event |= {"configs": configs(*blocks), **fields}
    journal.event("autotune_kernel", 2, kernel=kernel, kind=kind, first=first, **event, **setup)


def tell(
    journal: FakeJournal,
    key: Sequence[Any],
    ms: Sequence[float | None],
    *,
    kernel: str = "k1",
    kind: str = "triton",
    **fields: Any,
) -> None:
    event: dict[str, Any] = {"rest": "", "of": len(ms), "seconds": 0.5, "c": list(range(len(ms)))}
    event |= {"ms": list(ms), **fields}
    journal.event("autotune", 3, kernel=kernel, kind=kind, key=list(key), **event)


def kernel(
    times: Mapping[tuple[Any, ...], Sequence[float | None]],
    *,
    kind: str = "triton",
    cost: float | None = None,
    **fields: Any,
) -> Kernel:
    """A kernel with these keys, read back by `collect`."""
    journal = FakeRun().process(begin=1)
    widest = max(len(ms) for ms in times.values())
    tell_kernel(journal, [64 << number for number in range(widest)], kind=kind, **fields)
    for key, ms in times.items():
        costs = {} if cost is None else {"s": [cost] * len(ms)}
        tell(journal, key, ms, kind=kind, **costs)
    (kernels,) = collect([journal.journal()])
    return kernels
