"""What a snapshot has to pass before it serves. Every reason is a clause; none means it passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headway.errors import Reason
from headway.publish.examine import CheckResult
from headway.publish.recipe import Limits

# Reasons that another try may not find: what a machine had no room for, or measured when busy.
TRANSIENT_CODES = ("target-not-examined", "target-too-slow", "target-has-slowed")


def target_reasons(name: str, answer: CheckResult, tolerance: float) -> Iterator[Reason]:
    """Of one target: that it answers, with numbers, and with the same ones as the model."""
    if answer.error and answer.transient:
        yield Reason(f"{name} cannot be examined now: {answer.error}", code="target-not-examined")
    elif answer.error:
        yield Reason(f"{name} does not serve: {answer.error}", code="target-does-not-serve")
    elif not answer.finite:
        yield Reason(f"{name} gives numbers that are not finite", code="target-not-finite")
    elif answer.difference > tolerance:
        yield Reason(
            f"{name} differs from the model by {answer.difference:.3g} on the golden inputs, "
            f"and {tolerance:g} is allowed",
            code="target-differs",
        )


def size_reasons(limits: Limits, now: int, before: int | None) -> Iterator[Reason]:
    """Of all files together, in bytes."""
    if limits.size_mb is not None and now > limits.size_mb * 1e6:
        text = f"it has {now / 1e6:.1f} MB, and {limits.size_mb:g} are allowed"
        yield Reason(text, code="snapshot-too-large")
    if before and limits.size_growth is not None and now > before * limits.size_growth:
        yield Reason(
            f"it has {now / before:.2f} x the bytes of the snapshot that serves, "
            f"and {limits.size_growth:g} x is allowed",
            code="snapshot-has-grown",
        )


def latency_reasons(
    limits: Limits, now: Mapping[str, CheckResult], before: Mapping[str, CheckResult]
) -> Iterator[Reason]:
    """Of each target; `before` was measured on this machine too."""
    for name, answer in now.items():
        took = answer.latency_ms
        if limits.latency_ms is not None and took > limits.latency_ms:
            text = f"{name} takes {took:.2f} ms, and {limits.latency_ms:g} are allowed"
            yield Reason(text, code="target-too-slow")
        old = before.get(name)
        if old is None or limits.latency_growth is None:
            continue
        if old.error:
            if old.transient:
                text = f"{name} of the snapshot that serves cannot be examined now: {old.error}"
                yield Reason(text, code="target-not-examined")
            continue
        if took > old.latency_ms * limits.latency_growth:
            yield Reason(
                f"{name} takes {took / old.latency_ms:.2f} x as long as the snapshot that serves, "
                f"and {limits.latency_growth:g} x is allowed",
                code="target-has-slowed",
            )
