"""Which checkpoints are kept: rules as data, and the deletion of the others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headway.checkpoint.store import manifest as manifests
from headway.checkpoint.store import names
from headway.checkpoint.store.place import LocalPlace, Place, os_errors_as_save_failed
from headway.checkpoint.store.read import Checkpoint, Store, without_replaced
from headway.checkpoint.store.sweep import move_to_trash
from headway.errors import UsageError


@dataclass(frozen=True)
class Best:
    """The `n` best by a metric that saves put into `extra["metrics"]`."""

    metric: str
    n: int = 1
    mode: Literal["min", "max"] = "min"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A checkpoint is kept if any of these wants it; anchors and what deltas need always are."""

    last: int = 1  # the newest so many
    every: int | None = None  # those at multiples of so many steps
    best: tuple[Best, ...] = ()

    def __post_init__(self) -> None:
        if self.last < 1:
            raise UsageError(
                f"at least the last checkpoint is kept; last={self.last} is not 1",
                code="retention-last-too-small",
            )
        if self.every is not None and self.every < 1:
            raise UsageError(
                f"every={self.every} is not a number of steps", code="retention-every-too-small"
            )


def kept_by_policy(newest_first: Sequence[Checkpoint], policy: Policy) -> list[Checkpoint]:
    """Those that the rules keep, of checkpoints that are good."""
    kept = [*newest_first[: policy.last]]
    if policy.every is not None:
        kept += [one for one in newest_first if one.step % policy.every == 0]
    for best in policy.best:
        kept += _best(newest_first, best)
    return kept


def _best(newest_first: Sequence[Checkpoint], best: Best) -> list[Checkpoint]:
    measured = [(value, one) for one in newest_first if (value := _metric(one, best)) is not None]
    measured.sort(key=lambda pair: pair[0], reverse=best.mode == "max")
    return [one for _, one in measured[: best.n]]


def _metric(one: Checkpoint, best: Best) -> float | None:
    """Its value; NaN is none."""
    metrics = one.manifest.extra.get("metrics")
    value = metrics.get(best.metric) if isinstance(metrics, dict) else None
    return float(value) if isinstance(value, (int, float)) and value == value else None


def retain(store: str | os.PathLike[str], policy: Policy) -> list[str]:
    """Delete what no rule keeps; the names of it. What is not good is not counted, and stays."""
    shelf = Store(store)
    where = shelf.place
    with os_errors_as_save_failed(f"{where.url} cannot be cleared"):
        if not where.names():
            return []
        with where.locked():
            doomed = _deletable(shelf, policy)
            gone = [_withdraw(where, one) for one in doomed]
        for name in gone:
            where.delete_folder(name)
    return [one.name for one in doomed]


def _deletable(shelf: Store, policy: Policy) -> list[Checkpoint]:
    listed, _ = shelf.listed()
    good = [one for one in listed if not shelf.verify(one, known=listed, fresh=True)]
    newest_first = [one for one in without_replaced(listed) if one in good]
    kept = kept_by_policy(newest_first, policy) + [one for one in listed if one not in good]
    kept += [one for one in listed if names.ANCHOR in shelf.place.names(one.name)]
    ids = _with_parents(kept, listed)
    return [one for one in good if one.manifest.save_id not in ids]


def _with_parents(kept: Sequence[Checkpoint], listed: Sequence[Checkpoint]) -> set[str]:
    """The save ids of those, and of what they build on."""
    by_id = {one.manifest.save_id: one for one in listed}
    ids: set[str] = set()
    for one in kept:
        at: Checkpoint | None = one
        while at is not None and at.manifest.save_id not in ids:
            ids.add(at.manifest.save_id)
            at = by_id.get(at.manifest.parent or "")
    return ids


def _withdraw(where: Place, one: Checkpoint) -> str:
    return move_to_trash(where, one.name) if isinstance(where, LocalPlace) else one.name


def pin(store: str | os.PathLike[str], one: Checkpoint) -> None:
    """Make it an anchor: it is kept until it is released."""
    where = Store(store).place
    with os_errors_as_save_failed(f"{one.path} cannot be made an anchor"), where.locked():
        where.size(f"{one.name}/{manifests.MANIFEST}")
        where.write(f"{one.name}/{names.ANCHOR}", b"")


def release(store: str | os.PathLike[str], one: Checkpoint) -> None:
    """It is no anchor any more."""
    where = Store(store).place
    with os_errors_as_save_failed(f"{one.path} is still an anchor"):
        where.delete(f"{one.name}/{names.ANCHOR}")
