"""Why a training job failed: from logs, exit codes, signals, kernel and scheduler facts.

The rules and signatures are loaded at the first question, as most jobs do not fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import BinaryIO

from headway.launch.failures.model import Fact, SecondaryFinding, Verdict

__all__ = ["Fact", "SecondaryFinding", "Verdict", "classify", "failed", "read_log"]


def classify(facts: Iterable[Fact]) -> Verdict:
    """The first cause that the facts show; category `unknown` if they show none."""
    from headway.launch.failures import classifier

    return classifier.classify(facts)


def failed(facts: Iterable[Fact]) -> bool:
    """Whether the facts show a failure at all."""
    from headway.launch.failures import classifier

    return classifier.failed(facts)


def read_log(
    stream: BinaryIO,
    *,
    rank: int | None = None,
    node: str | None = None,
    file: str = "",
    on_read: Callable[[int], None] | None = None,
) -> list[Fact]:
    """The facts of a log of any length, in its order; `rank` and `node` apply where it names none.

    The stream is read once, in bounded memory; `on_read` gets the number of bytes of each piece.
    """
    from headway.launch.failures import log_reader

    return log_reader.read_log(stream, rank=rank, node=node, file=file, on_read=on_read)
