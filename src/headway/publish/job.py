"""One publish: from an anchor to a snapshot that has proven itself, or to why there is none."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from headway import __version__
from headway.checkpoint.golden import TOLD
from headway.checkpoint.store.place import failing
from headway.errors import (
    CheckpointDamaged,
    PublishDeferred,
    PublishFailed,
    SnapshotDamaged,
    UsageError,
    split_code,
)
from headway.publish import gates
from headway.publish.anchor import Anchor
from headway.publish.examine import Answer, Asked, Examine, fresh
from headway.publish.lease import lease
from headway.publish.make import Product, make
from headway.publish.packages import Shelf
from headway.publish.recipe import Recipe, completed
from headway.publish.snapshot import File, Made, Manifest, Snapshot
from headway.publish.source import is_trusted
from headway.publish.store import Store
from headway.publish.targets import Target, target

UNREAD = ("not-readable", "manifest-not-readable")  # of a checkpoint: what the disk has said


@dataclass(frozen=True)
class Outcome:
    """What became of an anchor; `fresh` if this call has made the snapshot."""

    snapshot: Snapshot
    fresh: bool


class _Stale(Exception):
    """Code that was compiled before does not serve these weights."""


@dataclass(frozen=True)
class _Job:
    anchor: Anchor
    recipe: Recipe
    store: Store
    targets: Mapping[str, Target]
    examine: Examine
    orderly: bool

    @property
    def key(self) -> str:
        return self.anchor.key(self.recipe.digest)


def publish(
    anchor: Anchor,
    recipe: Recipe,
    store: Store,
    *,
    again: bool = False,
    orderly: bool = False,
    examine: Examine = fresh,
) -> Outcome:
    """Publish an anchor, once under each recipe.

    `again`: even if that was done before. `orderly`: it serves only if no later anchor of the same
    store does. Taken is raised if another worker is at it.
    """
    targets = {one.name: target(one.name, one.options) for one in recipe.targets}
    told = anchor.extra.get(TOLD)
    told = told if isinstance(told, dict) else {}
    recipe = completed(recipe, anchor.path, told, trusted=is_trusted(anchor))
    job = _Job(anchor, recipe, store, targets, examine, orderly)
    store.sweep()
    with store.publishing(), lease(store.place, job.key):
        done = store.noted(job.key)
        if isinstance(done.get("snapshot"), str) and not again:
            with contextlib.suppress(UsageError, SnapshotDamaged):  # it is not kept any more
                found = store.snapshot(done["snapshot"])
                if not store.damage(found):
                    return Outcome(found, fresh=False)
        if anchor.damage:
            why, code = split_code(anchor.damage)
            if code in UNREAD:
                text = f"{anchor.path} is not published now: {why}"
                raise PublishDeferred(text, code=code)
            text = f"{anchor.path} is not published: {why}"
            raise CheckpointDamaged(text, code=code or "checkpoint-damaged")
        with failing(f"{anchor.path} cannot be published"):
            try:
                made = _publish(job, reuse=True)
            except _Stale:
                made = _publish(job, reuse=False)
    store.sweep()
    return Outcome(made, fresh=True)


def _publish(job: _Job, *, reuse: bool) -> Snapshot:
    shelf = Shelf(job.store, reuse=reuse)
    with job.store.scratch() as folder:
        product = make(job.anchor, job.recipe, job.store, job.targets, folder, shelf)
        begun = time.monotonic()
        serving = _serving(job.store)
        answers = _answers(job, product.files, product.of, folder / "now")
        reasons = [
            reason
            for name, answer in answers.items()
            for reason in gates.target(name, answer, job.targets[name].tolerance)
        ]
        if shelf.reused and any(reason.code not in gates.TRANSIENT for reason in reasons):
            raise _Stale
        before = _before(job, serving, folder / "before")
    product.seconds["examine"] = round(time.monotonic() - begun, 3)
    limits = job.recipe.limits
    manifest = _manifest(job, product, answers)
    reasons += gates.size(limits, manifest.size, serving.manifest.size if serving else None)
    reasons += gates.latency(limits, answers, before)
    if reasons:
        text = "; ".join(reasons)
        codes = [reason.code for reason in reasons]
        if set(codes) <= set(gates.TRANSIENT):
            raise PublishDeferred(
                f"{job.anchor.path} is not published now: {text}",
                code="snapshot-deferred",
                reasons=codes,
            )
        raise PublishFailed(
            f"{job.anchor.path} is not published: {text}", code="snapshot-rejected", reasons=codes
        )
    made = job.store.commit(manifest, job.key, job.recipe.keep, orderly=job.orderly)
    shelf.keep(product.files)
    return made


def _serving(store: Store) -> Snapshot | None:
    """What the new one is compared with; one that is damaged is no measure."""
    try:
        return store.latest()
    except SnapshotDamaged:
        return None


def _answers(
    job: _Job, files: Mapping[str, File], of: Mapping[str, tuple[str, ...]], folder: Path
) -> dict[str, Answer]:
    """What each target says, from the files as they are in the store."""
    folder.mkdir()
    paths = {name: str(job.store.checked(file, name, folder)) for name, file in files.items()}
    return {
        one.name: job.examine(
            Asked(
                one.name,
                one.options,
                {name: paths[name] for name in of[one.name]},
                job.recipe.model.factory,
                str(job.recipe.folder),
            )
        )
        for one in job.recipe.targets
        if one.name in of
    }


def _before(job: _Job, serving: Snapshot | None, folder: Path) -> dict[str, Answer]:
    """What the snapshot that serves takes on this machine, where that is limited."""
    if serving is None or job.recipe.limits.latency_growth is None:
        return {}
    of = {name: made.files for name, made in serving.manifest.targets.items()}
    try:
        return _answers(job, serving.manifest.files, of, folder)
    except SnapshotDamaged:
        return {}


def _manifest(job: _Job, product: Product, answers: Mapping[str, Answer]) -> Manifest:
    versions = {
        "headway": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    metrics = {
        name: {
            key: value for key, value in asdict(answer).items() if key not in ("error", "transient")
        }
        for name, answer in answers.items()
    }
    return Manifest(
        number=0,  # given at the commit, where it is also seen whether it is to serve
        made=time.time(),
        current=True,
        anchor={**job.anchor.told(), "key": job.key},
        recipe=job.recipe.digest,
        files=product.files,
        targets={name: Made(product.of[name], metrics[name]) for name in product.of},
        versions=versions,
        seconds=product.seconds,
    )
