"""Remove what killed processes left in a store, and checkpoints that no retention rule keeps."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headway.checkpoint.store import commit
from headway.checkpoint.store import layout as manifests
from headway.checkpoint.store.commit import is_draft_file
from headway.checkpoint.store.store import Checkpoint, Store, without_replaced
from headway.errors import UsageError
from headway.storage import disk, process_identity
from headway.storage.place import LocalPlace, Place, open_place, os_errors_as_save_failed

ABANDONED_S = 86400.0  # age at which a draft counts as abandoned if its writer cannot be checked


def sweep(
    store: str | os.PathLike[str], *, old_s: float = ABANDONED_S, now: float | None = None
) -> list[str]:
    """Remove what no writer and no checkpoint needs; return the names."""
    where = open_place(store)
    at = time.time() if now is None else now
    with os_errors_as_save_failed(f"cannot clean up {where.url}"):
        if not where.list_names():
            return []
        if isinstance(where, LocalPlace):
            return _sweep_folder(where, at - old_s)
        return _sweep_remote(where, at - old_s)


def _sweep_folder(where: LocalPlace, before: float) -> list[str]:
    with where.lock():
        doomed = [name for name in where.list_names() if manifests.TRASH.fullmatch(name)]
        for name in where.list_names():
            if manifests.DRAFT.fullmatch(name):
                doomed += filter(None, [_trash_if_abandoned(where, name, before)])
            elif manifests.REPLACEMENT.fullmatch(name):
                where.delete(name)
        commit.remove_abort_marks(where, before)
        listed, _ = Store(where.url).scan()
        doomed += _finish_replacements(where, listed)
        for checkpoint in listed:
            for leftover in filter(is_draft_file, where.list_names(checkpoint.name)):
                where.delete(f"{checkpoint.name}/{leftover}")
    for name in doomed:
        where.delete_folder(name)
    return doomed


def _trash_if_abandoned(where: LocalPlace, name: str, before: float) -> str | None:
    """Move a draft to the trash if no process holds its lock; without locks, if it is old."""
    try:
        lock = disk.lock(f"{where.path(name)}/{manifests.DRAFT_LOCK}", wait=False)
    except (disk.Busy, FileNotFoundError, NotADirectoryError):
        return None
    except disk.NoLocks:
        return move_to_trash(where, name) if where.modified_at(name) < before else None
    try:
        return move_to_trash(where, name)
    finally:
        disk.close(lock)


def move_to_trash(where: LocalPlace, name: str) -> str:
    """Rename it so that it no longer counts as a checkpoint and may be deleted by any process."""
    digits = "".join(char for char in name if char.isdigit())[:10]
    trash = manifests.trash_name(int(digits))
    where.rename(name, trash)
    return trash


def _finish_replacements(where: LocalPlace, listed: Sequence[Checkpoint]) -> list[str]:
    """Finish interrupted replacements: delete the old checkpoint, or restore its name.

    The old checkpoint stays if the new one cannot be read.
    """
    doomed = []
    needed = {checkpoint.manifest.parent for checkpoint in listed}
    newest_first = [checkpoint.name for checkpoint in listed]
    readable = set(newest_first)
    # Of several replaced checkpoints, the newest is restored.
    for name in [*newest_first, *(name for name in where.list_names() if name not in newest_first)]:
        match = manifests.REPLACED.fullmatch(name)
        if match is None:
            continue
        final_name = manifests.step_name(int(match[1]))
        if final_name not in where.list_names():
            where.rename(name, final_name)
            readable.add(final_name)
        elif final_name in readable and not (
            match[2] in needed or manifests.ANCHOR in where.list_names(name)
        ):
            doomed.append(move_to_trash(where, name))
    return doomed


def _sweep_remote(where: Place, before: float) -> list[str]:
    """A folder without a manifest is a draft, or is being deleted."""
    doomed = []
    commit.remove_abort_marks(where, before)
    for name in where.list_names():
        if manifests.REMOTE_STEP.fullmatch(name) is None:
            continue
        files = where.list_names(name)
        if manifests.MANIFEST in files:
            for leftover in filter(is_draft_file, files):
                where.delete(f"{name}/{leftover}")
        elif _is_abandoned(where, name, files, before):
            where.delete_folder(name)
            doomed.append(name)
    return doomed


def _is_abandoned(where: Place, name: str, files: list[str], before: float) -> bool:
    owners = [file for file in files if file.startswith(manifests.OWNER_PREFIX)]
    states: list[bool | None] = []
    for owner in owners:
        with contextlib.suppress(FileNotFoundError):
            states.append(process_identity.process_ended(where.read(f"{name}/{owner}")))
    if False in states:
        return False
    if states and all(states):
        return True
    return where.modified_at(name) < before


@dataclass(frozen=True)
class Best:
    """Keep the `n` best checkpoints by a metric that saves store in `extra["metrics"]`."""

    metric: str
    n: int = 1
    mode: Literal["min", "max"] = "min"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Which checkpoints are kept: those that any rule selects.

    Anchors, and the parents of deltas, are always kept.
    """

    last: int = 1  # the latest N
    every: int | None = None  # those at multiples of N steps
    best: tuple[Best, ...] = ()

    def __post_init__(self) -> None:
        if self.last < 1:
            raise UsageError(
                f"last must be at least 1, not {self.last}",
                code="retention-last-too-small",
            )
        if self.every is not None and self.every < 1:
            raise UsageError(
                f"every must be at least 1 step, not {self.every}", code="retention-every-too-small"
            )


def kept_by_policy(newest_first: Sequence[Checkpoint], policy: Policy) -> list[Checkpoint]:
    """The checkpoints that the policy keeps, of valid ones."""
    kept = [*newest_first[: policy.last]]
    if policy.every is not None:
        kept += [checkpoint for checkpoint in newest_first if checkpoint.step % policy.every == 0]
    for best in policy.best:
        kept += _best(newest_first, best)
    return kept


def _best(newest_first: Sequence[Checkpoint], best: Best) -> list[Checkpoint]:
    measured = [
        (value, checkpoint)
        for checkpoint in newest_first
        if (value := _metric(checkpoint, best)) is not None
    ]
    measured.sort(key=lambda pair: pair[0], reverse=best.mode == "max")
    return [checkpoint for _, checkpoint in measured[: best.n]]


def _metric(checkpoint: Checkpoint, best: Best) -> float | None:
    """The value of the metric; None if missing or NaN."""
    metrics = checkpoint.manifest.extra.get("metrics")
    value = metrics.get(best.metric) if isinstance(metrics, dict) else None
    return float(value) if isinstance(value, (int, float)) and value == value else None


def retain(store: str | os.PathLike[str], policy: Policy) -> list[str]:
    """Delete checkpoints that no rule keeps; return their names.

    Invalid ones are not counted and stay.
    """
    checkpoint_store = Store(store)
    where = checkpoint_store.place
    with os_errors_as_save_failed(f"cannot delete old checkpoints of {where.url}"):
        if not where.list_names():
            return []
        with where.lock():
            deletable = _deletable(checkpoint_store, policy)
            trash = [_withdraw(where, checkpoint) for checkpoint in deletable]
        for name in trash:
            where.delete_folder(name)
    return [checkpoint.name for checkpoint in deletable]


def _deletable(store: Store, policy: Policy) -> list[Checkpoint]:
    listed, _ = store.scan()
    good = [
        checkpoint
        for checkpoint in listed
        if not store.verify(checkpoint, known=listed, fresh=True)
    ]
    newest_first = [checkpoint for checkpoint in without_replaced(listed) if checkpoint in good]
    kept = kept_by_policy(newest_first, policy) + [
        checkpoint for checkpoint in listed if checkpoint not in good
    ]
    kept += [
        checkpoint
        for checkpoint in listed
        if manifests.ANCHOR in store.place.list_names(checkpoint.name)
    ]
    ids = _with_parents(kept, listed)
    return [checkpoint for checkpoint in good if checkpoint.manifest.save_id not in ids]


def _with_parents(kept: Sequence[Checkpoint], listed: Sequence[Checkpoint]) -> set[str]:
    """Save ids of these checkpoints and of those they build on."""
    by_id = {checkpoint.manifest.save_id: checkpoint for checkpoint in listed}
    ids: set[str] = set()
    for checkpoint in kept:
        link: Checkpoint | None = checkpoint
        while link is not None and link.manifest.save_id not in ids:
            ids.add(link.manifest.save_id)
            link = by_id.get(link.manifest.parent or "")
    return ids


def _withdraw(where: Place, checkpoint: Checkpoint) -> str:
    return (
        move_to_trash(where, checkpoint.name) if isinstance(where, LocalPlace) else checkpoint.name
    )


def pin(store: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Make it an anchor, which is kept until it is released."""
    where = Store(store).place
    with os_errors_as_save_failed(f"cannot pin {checkpoint.path} as an anchor"), where.lock():
        where.size(f"{checkpoint.name}/{manifests.MANIFEST}")
        where.write(f"{checkpoint.name}/{manifests.ANCHOR}", b"")


def release(store: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Release an anchor, so that retention rules apply to it again."""
    where = Store(store).place
    with os_errors_as_save_failed(f"cannot release the anchor {checkpoint.path}"):
        where.delete(f"{checkpoint.name}/{manifests.ANCHOR}")
