"""What a snapshot has to pass before it serves. Every reason is a clause; none means it passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headway.publish.examine import Answer
from headway.publish.recipe import Limits


def target(name: str, answer: Answer, tolerance: float) -> Iterator[str]:
    """Of one target: that it answers, with numbers, and with the same ones as the model."""
    if answer.error:
        yield f"{name} does not serve: {answer.error}"
    elif not answer.finite:
        yield f"{name} gives numbers that are not finite"
    elif answer.difference > tolerance:
        yield (
            f"{name} differs from the model by {answer.difference:.3g} on the golden inputs, "
            f"and {tolerance:g} is allowed"
        )


def size(limits: Limits, now: int, before: int | None) -> Iterator[str]:
    """Of all files together, in bytes."""
    if limits.size_mb is not None and now > limits.size_mb * 1e6:
        yield f"it has {now / 1e6:.1f} MB, and {limits.size_mb:g} are allowed"
    if before and limits.size_growth is not None and now > before * limits.size_growth:
        yield (
            f"it has {now / before:.2f} x the bytes of the snapshot that serves, "
            f"and {limits.size_growth:g} x is allowed"
        )


def latency(
    limits: Limits, now: Mapping[str, Answer], before: Mapping[str, Answer]
) -> Iterator[str]:
    """Of each target; `before` was measured on this machine too."""
    for name, answer in now.items():
        took = answer.latency_ms
        if limits.latency_ms is not None and took > limits.latency_ms:
            yield f"{name} takes {took:.2f} ms, and {limits.latency_ms:g} are allowed"
        old = before.get(name)
        if old is None or old.error or limits.latency_growth is None:
            continue
        if took > old.latency_ms * limits.latency_growth:
            yield (
                f"{name} takes {took / old.latency_ms:.2f} x as long as the snapshot that serves, "
                f"and {limits.latency_growth:g} x is allowed"
            )
