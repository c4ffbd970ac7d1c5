"""Saves a training's state while the training goes on, and gives it back after anything.

    checkpointer = Checkpointer("checkpoints", {"model": model, "optimizer": optimizer})
    restored = checkpointer.restore()
    for step in range(restored.step if restored else 0, steps):
        ...
        optimizer.step()
        if step % 100 == 0:
            checkpointer.save(step)
    checkpointer.close()

A save copies what a step changes into an image in memory that a process beside this one owns, and
returns. That process writes it, as a DCP checkpoint that is there as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist

from headway import sdk
from headway.checkpoint import plan as plans
from headway.checkpoint.pacing import TOTALS, Pacing, restarted
from headway.checkpoint.restore import Restored, from_memory, from_store, held
from headway.checkpoint.snapshot.take import Changed, Taker
from headway.checkpoint.staging import IMAGES, LOOK_S, Staging, text
from headway.checkpoint.state import Parts
from headway.checkpoint.store.read import Store
from headway.checkpoint.store.retain import Policy
from headway.checkpoint.tuner import Tuner
from headway.checkpoint.writer.client import WriterFailed, look
from headway.errors import SaveFailed, UsageError
from headway.probe import ENV_FOLDER

LINGER_S = 600.0  # how long the writer waits for a rank that was killed to come back
ALONE_S = 10.0  # the same where nothing says that one may
FULL_EVERY = 8  # saves; between them tables are saved by the rows that have changed


@dataclass(frozen=True)
class Saving:
    """A save that was begun."""

    step: int
    blocked_s: float  # that the training waited for it
    waited_s: float  # of that, for an image to be free


class Checkpointer:
    """The checkpoints of one training. Every rank has one, and calls the same of it.

    `state` is what all ranks have together, whole or in shards; `own` what each has for itself.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        state: Mapping[str, Any],
        *,
        own: Mapping[str, Any] | None = None,
        keep: Policy | None = None,
        group: Any = None,
        interval: float | Tuner | None = None,
        full_every: int = FULL_EVERY,
        rate: float | None = None,
        linger_s: float | None = None,
    ) -> None:
        self.store = os.fspath(store) if "://" in str(store) else os.path.abspath(store)
        self.keep, self.group, self.rate = keep or Policy(last=2), group, rate
        self.full_every = full_every
        self.rank, self.world = 0, 1
        if dist.is_initialized():
            self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.parts = Parts(state, own or {}, self.rank)
        self._attempt = self._gathered(uuid.uuid4().hex[:12])[0]  # names the saves of this one
        linger_s = linger_s or (LINGER_S if _job_name() else ALONE_S)
        self._staging = Staging(_name(self.store, self.rank), linger_s)
        self._taker = Taker(self.parts.optimizers, IMAGES)
        self._plan: plans.Plan | None = None
        self._pacing = Pacing(interval, self._gathered) if interval is not None else None
        self._saves = 0

    def due(self, step: int) -> bool:
        """Whether to save now, by `interval`: asked once a step, on every rank, after the step."""
        if self._pacing is None:
            raise UsageError("a Checkpointer without an interval does not know when to save")
        return self._pacing.due(step)

    def save(
        self,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        extra: Mapping[str, Any] | None = None,
        anchor: bool = False,
    ) -> Saving:
        """Save the state as it is now: between two steps, on every rank. Returns at once.

        What could not be written is told by a warning of a later save, and raised by `wait` and
        `close`: training goes on.
        """
        begun = time.monotonic()
        with sdk.span("checkpoint_block"):
            state = self.parts.collect()
            plan = self._plan or self.replan(state)
            saved = plan.share(state)
            self._saves += 1
            told = {**(extra or {}), **({"metrics": dict(metrics)} if metrics else {})}
            told |= {TOTALS: self._pacing.told()} if self._pacing else {}
            job = {
                "store": self.store,
                "save_id": f"{self._attempt}-{self._saves}",
                "rank": self.rank,
                "world": self.world,
                "extra": told,
                "keep": asdict(self.keep),
                "anchor": anchor,
                "rate": self.rate,
                "parent": f"{self._attempt}-{self._saves - 1}",
            }
            try:
                waited = self._take(step, plan, saved, job)
            except WriterFailed as error:
                warnings.warn(f"{error}; another one is started", stacklevel=2)
                self._taker.forget_images()
                self._staging.revive(saved.tensors)
                waited = self._take(step, plan, saved, job)
        blocked = time.monotonic() - begun
        if self._pacing is not None:
            self._pacing.saved(step, blocked)
        return Saving(step, blocked, waited)

    def _take(self, step: int, plan: plans.Plan, saved: plans.Saved, job: dict[str, Any]) -> float:
        """Fill an image; the seconds that it was waited for."""
        begun = time.monotonic()
        self._taker.wait()
        image, status = self._staging.free_image()
        waited = time.monotonic() - begun
        self._warn(status)
        self._staging.tell("filling", image=image, step=step)
        values = [text(value) for value in saved.values]
        about = {"layout": plan.id, "values": values, "job": job}
        views = self._staging.views[image]
        full = self.full_every <= 1 or self._saves % self.full_every == 1 or job["anchor"]

        def whole(good: bool, changed: list[Changed]) -> None:
            self._staging.whole(good, [] if full else changed, image=image, **about)

        self._taker.take(image, saved.tensors, views, whole)
        return waited

    def replan(self, state: Mapping[str, Any] | None = None) -> plans.Plan:
        """Who saves what; again after tensors came or went. Every rank calls it."""
        self._taker.wait()
        collected = state or self.parts.collect()
        self._plan = plan = plans.make(collected, self.group)
        self._taker.forget_images()
        self._staging.reserve(plan, plan.share(collected).tensors)
        return plan

    def restore(self) -> Restored | None:
        """The newest state that is whole, put into all parts; None where there is none."""
        with sdk.span("checkpoint_load"):
            restored = self._from_memory() or from_store(self.store, self.parts, self.group)
        if restored is not None:
            sdk.progress(step=restored.step)
        if restored is not None and self._pacing is not None:
            self._pacing.resumed(restored.extra, failed=restarted())
        return restored

    def anchor(self, step: int, **told: Any) -> Saving:
        """Save, and keep it until it is released; returns once it is on disk."""
        saving = self.save(step, anchor=True, **told)
        self.wait()
        return saving

    def wait(self) -> None:
        """Until every save that was begun is on disk; raises if one could not be written."""
        self._taker.wait()
        while True:
            status = self._staging.status()
            if not status["busy"] and not status["waiting"]:
                break
            time.sleep(LOOK_S)
        self._raise_failures(status)

    def close(self) -> None:
        """Everything is written; nothing is tracked any more, and the writer ends."""
        self._taker.close()
        self._raise_failures(self._staging.end())

    def outcomes(self) -> list[dict[str, Any]]:
        """What became of the saves so far: step, seconds to durable, bytes, or an error."""
        found: list[dict[str, Any]] = self._staging.status()["outcomes"]
        return found

    def _from_memory(self) -> Restored | None:
        """From what the writers of all ranks still hold, if that is newer than what is on disk."""
        if not _job_name():
            return None  # another start of the same script may want to begin anew
        mine = held(self._staging.found, self._staging.descriptors())
        saves = {image.save: image.step for image in mine}
        common = set.intersection(*(set(one) for one in self._gathered(saves)))
        newest = max(common, key=lambda save: saves[save], default=None)
        on_disk = Store(self.store).newest_good().checkpoint if self.rank == 0 else None
        durable = self._gathered(on_disk.step if on_disk else -1)[0]
        if newest is None or saves[newest] < durable:
            return None
        images = [image for image in mine if image.save == newest]
        for rank in range(self.world):
            seen = look(_name(self.store, rank)) if rank != self.rank else None
            images += [image for image in (held(*seen) if seen else []) if image.save == newest]
        if not all(self._gathered(len(images) == self.world)):  # some are on other machines
            return None
        values = from_memory(self.parts, images, self.group)
        return Restored(saves[newest], "memory", values, images[0].extra)

    def _gathered(self, mine: Any) -> list[Any]:
        found = [mine] * self.world
        if self.world > 1:
            dist.all_gather_object(found, mine, group=self.group)
        return found

    def _warn(self, status: dict[str, Any]) -> None:
        fresh = self._staging.new_outcomes(status)
        if self._pacing is not None:
            self._pacing.ended(fresh)
        for outcome in fresh:
            if "error" in outcome:
                warnings.warn(outcome["error"], stacklevel=3)

    def _raise_failures(self, status: dict[str, Any]) -> None:
        errors = [o["error"] for o in self._staging.new_outcomes(status) if "error" in o]
        if errors:
            raise SaveFailed(errors[0])


def _job_name() -> str:
    """What the attempts of one job have in common; empty where nobody says."""
    names = (ENV_FOLDER, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
    given = (os.environ.get(name, "") for name in names)
    return next((name for name in given if name not in ("", "none")), "")  # torchrun's for no name


def _name(store: str, rank: int) -> str:
    """The writer of this rank of this job, as it was called before a restart."""
    told = f"{os.getuid()} {_job_name()} {store} {rank}"
    return f"headway-checkpoint-{hashlib.sha256(told.encode()).hexdigest()[:24]}"
