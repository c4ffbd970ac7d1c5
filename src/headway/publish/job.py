"""Publish one anchor: make, validate and commit a snapshot; then register and release."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from headway import __version__
from headway.checkpoint.anchor import SERVING_INFO
from headway.errors import (
    CheckpointDamaged,
    HeadwayError,
    PublishDeferred,
    PublishFailed,
    RegistryFailed,
    SnapshotDamaged,
    UsageError,
    split_code,
)
from headway.publish import claims, validate
from headway.publish import registry as registries
from headway.publish.anchor import Anchor
from headway.publish.make import SnapshotFiles, make_files
from headway.publish.recipe import Recipe, complete_recipe
from headway.publish.registry import Registry
from headway.publish.snapshot import Manifest, Snapshot, SnapshotFile, TargetRecord
from headway.publish.source import is_trusted
from headway.publish.store import CompiledCodeCache, Log, SnapshotStore
from headway.publish.targets.base import Target, load_target
from headway.publish.validate import CheckResult, TargetCheck, TargetChecker, check_in_subprocess
from headway.storage.lease import lease
from headway.storage.place import os_errors_as_save_failed

UNREADABLE_CODES = ("not-readable", "manifest-not-readable")  # read errors, not damage


@dataclass(frozen=True)
class Outcome:
    """Snapshot of an anchor; `fresh` if this call created it."""

    snapshot: Snapshot
    fresh: bool


class CachedCodeMismatch(Exception):
    """Reused compiled code gives wrong results with these weights."""


@dataclass(frozen=True)
class _PublishJob:
    anchor: Anchor
    recipe: Recipe
    store: SnapshotStore
    targets: Mapping[str, Target]
    check_target: TargetChecker
    orderly: bool

    @property
    def key(self) -> str:
        return self.anchor.key(self.recipe.digest)


def publish(
    anchor: Anchor,
    recipe: Recipe,
    store: SnapshotStore,
    *,
    again: bool = False,
    orderly: bool = False,
    check_target: TargetChecker = check_in_subprocess,
) -> Outcome:
    """Publish an anchor, once under each recipe.

    `again`: even if it is already published. `orderly`: do not serve it if a later anchor of the
    same store is serving. Raises AlreadyPublishing if another worker publishes the anchor.
    """
    targets = {target.name: load_target(target.name, target.options) for target in recipe.targets}
    info = anchor.extra.get(SERVING_INFO)
    info = info if isinstance(info, dict) else {}
    recipe = complete_recipe(recipe, anchor.path, info, trusted=is_trusted(anchor))
    job = _PublishJob(anchor, recipe, store, targets, check_target, orderly)
    store.sweep()
    with store.sweep_blocked(), lease(store.place, job.key):
        outcome = store.outcome_of(job.key)
        if isinstance(outcome.get("snapshot"), str) and not again:
            with contextlib.suppress(UsageError, SnapshotDamaged):  # retention deleted it
                earlier = store.snapshot(outcome["snapshot"])
                if not store.damage(earlier):
                    return Outcome(earlier, fresh=False)
        if anchor.damage:
            reason, code = split_code(anchor.damage)
            if code in UNREADABLE_CODES:
                text = f"{anchor.path} is not published now: {reason}"
                raise PublishDeferred(text, code=code)
            text = f"{anchor.path} is not published: {reason}"
            raise CheckpointDamaged(text, code=code or "checkpoint-damaged")
        with os_errors_as_save_failed(f"{anchor.path} cannot be published"):
            try:
                snapshot = _publish(job, reuse=True)
            except CachedCodeMismatch:
                snapshot = _publish(job, reuse=False)
    store.sweep()
    return Outcome(snapshot, fresh=True)


def _publish(job: _PublishJob, *, reuse: bool) -> Snapshot:
    cache = CompiledCodeCache(job.store, reuse=reuse)
    with job.store.scratch() as folder:
        snapshot_files = make_files(job.anchor, job.recipe, job.store, job.targets, folder, cache)
        started = time.monotonic()
        serving = _serving_snapshot(job.store)
        answers = _check_targets(
            job, snapshot_files.files, snapshot_files.by_target, folder / "now"
        )
        reasons = [
            reason
            for name, answer in answers.items()
            for reason in validate.target_reasons(name, answer, job.targets[name].tolerance)
        ]
        if cache.reused and any(reason.code not in validate.TRANSIENT_CODES for reason in reasons):
            raise CachedCodeMismatch
        before = _check_serving(job, serving, folder / "before")
    snapshot_files.seconds["examine"] = round(time.monotonic() - started, 3)
    limits = job.recipe.limits
    manifest = _manifest(job, snapshot_files, answers)
    reasons += validate.size_reasons(
        limits, manifest.size, serving.manifest.size if serving else None
    )
    reasons += validate.latency_reasons(limits, answers, before)
    if reasons:
        text = "; ".join(reasons)
        codes = [reason.code for reason in reasons]
        if set(codes) <= set(validate.TRANSIENT_CODES):
            raise PublishDeferred(
                f"{job.anchor.path} is not published now: {text}",
                code="snapshot-deferred",
                reasons=codes,
            )
        raise PublishFailed(
            f"{job.anchor.path} is not published: {text}", code="snapshot-rejected", reasons=codes
        )
    snapshot = job.store.commit(manifest, job.key, job.recipe.keep, orderly=job.orderly)
    cache.record(snapshot_files.files)
    return snapshot


def _serving_snapshot(store: SnapshotStore) -> Snapshot | None:
    """The serving snapshot, for comparison; None if it is damaged."""
    try:
        return store.latest()
    except SnapshotDamaged:
        return None


def _check_targets(
    job: _PublishJob,
    files: Mapping[str, SnapshotFile],
    names_by_target: Mapping[str, tuple[str, ...]],
    folder: Path,
) -> dict[str, CheckResult]:
    """Check each target, with the files as they are in the store."""
    folder.mkdir()
    paths = {name: str(job.store.fetch(file, name, folder)) for name, file in files.items()}
    return {
        target.name: job.check_target(
            TargetCheck(
                target.name,
                target.options,
                {name: paths[name] for name in names_by_target[target.name]},
                job.recipe.model.factory,
                str(job.recipe.folder),
            )
        )
        for target in job.recipe.targets
        if target.name in names_by_target
    }


def _check_serving(
    job: _PublishJob, serving: Snapshot | None, folder: Path
) -> dict[str, CheckResult]:
    """Measure the serving snapshot on this machine, if latency growth is limited."""
    if serving is None or job.recipe.limits.latency_growth is None:
        return {}
    names_by_target = {name: target.files for name, target in serving.manifest.targets.items()}
    try:
        return _check_targets(job, serving.manifest.files, names_by_target, folder)
    except SnapshotDamaged:
        return {}


def _manifest(
    job: _PublishJob, snapshot_files: SnapshotFiles, answers: Mapping[str, CheckResult]
) -> Manifest:
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
        number=0,  # set at the commit, like `current`
        made=time.time(),
        current=True,
        anchor={**job.anchor.to_manifest(), "key": job.key},
        recipe=job.recipe.digest,
        files=snapshot_files.files,
        targets={
            name: TargetRecord(snapshot_files.by_target[name], metrics[name])
            for name in snapshot_files.by_target
        },
        versions=versions,
        seconds=snapshot_files.seconds,
    )


@dataclass(frozen=True)
class AfterPublish:
    """Registration and release; created before the publish to report errors early."""

    recipe: Recipe
    store: SnapshotStore
    registry: Registry | None
    log: Log

    @contextlib.contextmanager
    def registering(self) -> Iterator[None]:
        """Register snapshots at the end, including those of earlier interrupted publishes."""
        try:
            yield
        except HeadwayError:
            with contextlib.suppress(RegistryFailed, SnapshotDamaged):
                self.register()
            raise
        self.register()

    def release(self, anchor: Anchor, own_claim: str) -> None:
        """Release the anchor to retention if the recipe says so; `own_claim`: of this worker."""
        if self.recipe.release and claims.release_anchor(anchor, own_claim):
            self.log(f"released {anchor.path}")

    def register(self) -> None:
        """Update the registry from the store."""
        options = self.recipe.registry
        if options is None or self.registry is None:
            return
        version = registries.follow(self.store, options, self.registry)
        if version is not None:
            self.log(f"registered as version {version} of {options.mlflow}, {options.alias}")


def after_publish(recipe: Recipe, store: SnapshotStore, log: Log) -> AfterPublish:
    """Prepare registration and release, for one or more publishes."""
    options = recipe.registry
    if options is None:
        return AfterPublish(recipe, store, None, log)
    registry = registries.open_registry(options)
    registries.begin(store, options)
    return AfterPublish(recipe, store, registry, log)
