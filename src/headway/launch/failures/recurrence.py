"""Whether a failure has come before: the same step points at data or code, the same node at it."""

from __future__ import annotations

from collections.abc import Sequence

from headway.launch.failures.verdict import Verdict


def recurrence(
    verdict: Verdict,
    step: int | None,
    earlier: Sequence[tuple[Verdict, int | None, str | None]],
) -> str:
    """`same_step`, `same_node` or nothing; `earlier` holds verdict, step and node of each."""
    same = [(at, node) for other, at, node in earlier if other.fingerprint == verdict.fingerprint]
    if step is not None and any(at == step for at, _ in same):
        return "same_step"
    if verdict.node is not None and any(node == verdict.node for _, node in same):
        return "same_node"
    return ""
