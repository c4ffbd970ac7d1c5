"""Save the state of a training in the background and restore it.

    checkpointer = Checkpointer("checkpoints", {"model": model, "optimizer": optimizer})
    restored = checkpointer.restore()
    for step in range(restored.step if restored else 0, steps):
        ...
        optimizer.step()
        if step % 100 == 0:
            checkpointer.save(step)
    checkpointer.close()

`save` copies the state into a staging buffer, memory that is owned by a writer process on the same
machine, and returns. The writer process writes a DCP checkpoint and commits it atomically, or only
keeps the buffer in memory, which survives anything but the loss of the machine.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer

from headway import sdk
from headway.checkpoint import anchor, schedule
from headway.checkpoint import plan as plans
from headway.checkpoint.anchor import run_identity
from headway.checkpoint.coordinator import RankCoordinator
from headway.checkpoint.engine.capture import ChangedRows, StateCapture
from headway.checkpoint.preemption import Preemption
from headway.checkpoint.restore import (
    RestoredState,
    from_memory,
    from_store,
    held_buffers,
    latest_restore_point,
    newest_common_save,
)
from headway.checkpoint.schedule import TOTALS, Level, SaveOutcomes, SaveSchedule, is_restart
from headway.checkpoint.staging import (
    BUFFERS,
    STORE_TIMEOUT_S,
    StagingBuffers,
    StoreSilent,
    to_base64,
)
from headway.checkpoint.state_tree import StateTree
from headway.checkpoint.store.cleanup import Policy
from headway.checkpoint.store.store import RestorePoint
from headway.checkpoint.tuner import Tuner
from headway.checkpoint.writer.client import WriterFailed, job_name, peek, writer_name
from headway.errors import HeadwayWarning, SaveFailed, UsageError
from headway.storage import codecs

WRITER_IDLE_S = 600.0  # how long the writer waits for a rank that was killed to come back
WRITER_IDLE_UNNAMED_JOB_S = 10.0  # the same where nothing says that one may
SINGLE_BUFFER_REASON = "a kill while the only one is filled would leave none"
WRITER_ATTEMPTS = 3  # that are tried for one save
MIN_DURABLE_WAIT_S = 10.0  # for which a save is waited for, at least, after its writer was killed
FULL_EVERY = 8  # saves; between them tables are saved by the rows that have changed

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class SaveHandle:
    """A save that was begun."""

    step: int
    blocked_s: float  # that the training waited for it
    waited_s: float  # of that, for an image to be free
    level: Level = "disk"
    skipped: bool = False  # a snapshot for which no image was free, or there was no writer


class Checkpointer:
    """The checkpoints of one training. Every rank has one, and calls the same of it.

    `state` is what all ranks have together, whole or in shards; `own` what each has for itself.
    `optimizers`: those that step although they are no part of the state as they are. `trust`:
    whether objects in the store may run code when they are loaded; None: if nobody but this user
    can have written them, which is never known of a URL. `store_timeout_s`: a store that has not
    taken anything for so long is not waited for: saves are skipped, with a warning.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        state: Mapping[str, Any],
        *,
        own: Mapping[str, Any] | None = None,
        optimizers: Sequence[Optimizer] = (),
        keep: Policy | None = None,
        group: Any = None,
        interval: float | Tuner | None = None,
        memory_interval: float | Tuner | None = None,
        grace_s: float | None = None,
        full_every: int = FULL_EVERY,
        images: int = BUFFERS,
        rate: float | None = None,
        compress: str | None = None,
        linger_s: float | None = None,
        trust: bool | None = None,
        store_timeout_s: float = STORE_TIMEOUT_S,
    ) -> None:
        if not isinstance(images, int) or images not in (1, BUFFERS):
            raise UsageError(
                f"a Checkpointer has one image or two, not {images}", code="images-invalid"
            )
        if images == 1 and memory_interval is not None:
            raise UsageError(
                f"memory_interval needs images={BUFFERS}: {SINGLE_BUFFER_REASON}",
                code="one-image-for-snapshots",
            )
        if compress not in (None, "zstd"):
            raise UsageError(
                f"checkpoints are compressed by zstd, or not at all, not by {compress}",
                code="compression-unknown",
            )
        if compress is not None:
            codecs.require_zstd()
        self.store = os.fspath(store) if "://" in str(store) else os.path.abspath(store)
        self.keep, self.group, self.rate = keep or Policy(last=2), group, rate
        self.full_every, self.compress, self.trust = full_every, compress, trust
        self.preempted = False  # all ranks were told to stop: time to leave the loop
        self._ranks = RankCoordinator(group)
        self.rank, self.world = self._ranks.rank, self._ranks.world
        self.parts = StateTree(state, own or {}, self.rank)
        self._attempt = self._ranks.gathered(uuid.uuid4().hex[:12])[0]  # names the saves of it
        self._ranks.named(self._attempt)
        wanted: dict[Level, float | Tuner | None]
        wanted = {"disk": interval, "memory": memory_interval}
        intervals = {level: given for level, given in wanted.items() if given is not None}
        self._pacing = SaveSchedule(intervals, self._ranks.first)
        self._outcomes = SaveOutcomes(self._pacing, self.rank)
        self._two_levels = memory_interval is not None
        if linger_s is None:
            linger_s = WRITER_IDLE_S if job_name() else WRITER_IDLE_UNNAMED_JOB_S
        name = writer_name(self.store, self.rank)
        self._staging = StagingBuffers(
            name,
            linger_s,
            commits=self.rank == 0,
            images=images,
            timeout_s=store_timeout_s,
        )
        self._is_writer_lost = False  # since the last save that is on disk
        found = list(dict.fromkeys([*self.parts.optimizers, *optimizers]))
        self._taker = StateCapture(found, images, self.parts.modules)
        self._plan: plans.RankSavePlan | None = None
        self._saves = 0
        self._due: tuple[int, Level] | None = None
        self._since_full = 0  # saves to disk
        self._parent = ""  # the last of them, on which deltas build
        self._preemption = None if grace_s is None else Preemption(self._ranks, grace_s)
        self._knows_when = bool(intervals) or grace_s is not None

    def due(self, step: int) -> Level | None:
        """Whether to save now, and where: asked once a step, on every rank, after the step."""
        if not self._knows_when:
            raise UsageError(
                "a Checkpointer without an interval does not know when to save", code="no-interval"
            )
        level = self._pacing.due(step)
        if self._preemption is not None and not self.preempted and self._told_to_stop(step):
            self.preempted = True
            level = self._last_save(step)
        self._due = None if level is None else (step, level)
        return level

    def save(
        self,
        step: int,
        *,
        level: Level | None = None,
        metrics: Mapping[str, float] | None = None,
        extra: Mapping[str, Any] | None = None,
        anchor: bool = False,
    ) -> SaveHandle:
        """Save the state as it is now: between two steps, on every rank. Returns at once.

        `level`: "disk", or "memory" for a snapshot that outlives this process, not the machine;
        else the one that `due` has said. What could not be written is told by a warning of a later
        save, and raised by `wait` and `close`: training goes on.
        """
        begun = time.monotonic()
        level = self._level(step, level, anchor)
        self._two_levels = self._two_levels or level == "memory"
        with sdk.span("checkpoint_block", level=level, store=self.store):
            state = self.parts.collect()
            plan = self._plan or self._planned(state)
            saved = plan.share(state)
            asked = time.monotonic()
            if level == "disk":  # a snapshot is left out rather than waited for
                self._taker.wait()
            waited = time.monotonic() - asked
            images = self._agreed(step, level, saved)
            if images:
                told = {**(extra or {}), **({"metrics": dict(metrics)} if metrics else {})}
                job = self._job(told, anchor)
                try:
                    if not self._staging.views:
                        self._insist(lambda: self._staging.reserve(plan, saved.tensors), saved)
                    waited += self._insist(
                        lambda: self._take(step, level, plan, saved, job, images), saved
                    )
                    self._wait_if_lost(level)
                except (WriterFailed, SaveFailed) as error:
                    images = ()
                    self._outcomes.broken = True
                    text = f"step {step} is not saved: {error}"
                    warnings.warn(HeadwayWarning(text, code="step-not-saved"), stacklevel=2)
        blocked = time.monotonic() - begun
        if images:
            self._pacing.saved(step, level, blocked)
        return SaveHandle(step, blocked, waited, level, skipped=not images)

    def _level(self, step: int, level: Level | None, anchor: bool) -> Level:
        if level not in (None, "memory", "disk") or (anchor and level == "memory"):
            if anchor:
                raise UsageError(
                    f"an anchor is saved to disk, not to {level}", code="anchor-not-to-disk"
                )
            raise UsageError(
                f"a save is to memory or to disk, not to {level}", code="level-unknown"
            )
        if level == "memory" and self._staging.images == 1:
            raise UsageError(
                f"a snapshot in memory needs images={BUFFERS}: {SINGLE_BUFFER_REASON}",
                code="one-image-for-snapshots",
            )
        due = self._due if self._due is not None and self._due[0] == step else None
        return "disk" if anchor else level or (due[1] if due else "disk")

    def _agreed(self, step: int, level: Level, saved: plans.LocalItems) -> Sequence[int]:
        """The images that may be filled now; none for a snapshot while all are in use.

        With two levels all ranks take the same one, once all have the last one whole: so there is
        always one of all ranks, also if they are killed while they fill the other.
        """
        status = self._insist(self._staging.status, saved)
        self._warn(status)
        wanted = self._pacing.wanted()
        if not self._two_levels:
            self._pacing.agreed(step, self._ranks.first(wanted) if wanted else {})
            return range(self._staging.images)
        last = self._staging.last
        older = (last + 1) % BUFFERS
        filling = not self._taker.idle
        busy = [filling or image in status["busy"] for image in (older, last)]
        mine = {"busy": busy, "wanted": wanted}
        word = self._ranks.decided(mine, lambda everyone: _choose_buffer(level, everyone))
        self._pacing.agreed(step, word["wanted"], level)
        return [(older, last)[number] for number in word["images"]]

    def _job(self, told: dict[str, Any], anchor: bool) -> dict[str, Any]:
        """What the writer is told of a save."""
        self._saves += 1
        told |= {TOTALS: self._pacing.told()} if self._pacing.levels else {}
        return {
            "store": self.store,
            "save_id": f"{self._attempt}-{self._saves}",
            "rank": self.rank,
            "world": self.world,
            "extra": told,
            "keep": asdict(self.keep),
            "anchor": anchor,
            "rate": self.rate,
            "compress": self.compress,
            "parent": self._parent,
        }

    def _take(
        self,
        step: int,
        level: Level,
        plan: plans.RankSavePlan,
        saved: plans.LocalItems,
        job: dict[str, Any],
        images: Sequence[int],
    ) -> float:
        """Fill an image; the seconds that it was waited for."""
        begun = time.monotonic()
        image = self._staging.free_image(images)
        waited = time.monotonic() - begun
        self._staging.tell("filling", image=image, step=step)
        values = [to_base64(value) for value in saved.values]
        write = level == "disk"
        about = {"layout": plan.id, "values": values, "job": job, "write": write}
        views = self._staging.views[image]
        full = self.full_every <= 1 or not self._since_full or job["anchor"]
        full = full or self._outcomes.broken  # what a delta would build on is not there
        if write:
            self._outcomes.broken = False
            self._parent = job["save_id"]
            self._since_full = 1 if full else (self._since_full + 1) % self.full_every

        def whole(good: bool, changed: list[ChangedRows]) -> None:
            with contextlib.suppress(WriterFailed):  # the next save finds that out
                self._staging.whole(good, changed, image=image, **about)
            self._outcomes.copied(step, level, time.monotonic() - begun, good)

        self._taker.take(image, saved.tensors, views, whole, written=write, by_rows=not full)
        return waited

    def _insist(self, call: Callable[[], ResultT], saved: plans.LocalItems) -> ResultT:
        """With another writer, and one more, should they be killed."""
        for _ in range(WRITER_ATTEMPTS - 1):
            try:
                return call()
            except WriterFailed as error:
                with contextlib.suppress(WriterFailed):  # that one, too: the call finds out
                    self._revive(error, saved)
        return call()

    def _revive(self, error: WriterFailed, saved: plans.LocalItems) -> None:
        text = f"{error}; another one is started"
        warnings.warn(HeadwayWarning(text, code="writer-restarted"), stacklevel=4)
        self._taker.forget_images()
        self._pacing.lost()
        self._is_writer_lost = True
        self._staging.revive(saved.tensors)

    def _wait_if_lost(self, level: Level) -> None:
        """If writers are killed again and again, some save has to become durable all the same."""
        if self._is_writer_lost and level == "disk":
            with contextlib.suppress(WriterFailed, StoreSilent):
                self._taker.wait()
                patience_s = (
                    MIN_DURABLE_WAIT_S + 2 * self._outcomes.durable_s
                )  # another rank may be gone
                status = self._staging.settled(time.monotonic() + patience_s)
                self._is_writer_lost = bool(status["busy"] or status["waiting"])

    def replan(self, state: Mapping[str, Any] | None = None) -> plans.RankSavePlan:
        """Who saves what; again after tensors came or went. Every rank calls it."""
        collected = state or self.parts.collect()
        plan = self._planned(collected)
        saved = plan.share(collected)
        self._insist(lambda: self._staging.reserve(plan, saved.tensors), saved)
        return plan

    def _planned(self, state: Mapping[str, Any]) -> plans.RankSavePlan:
        self._taker.wait()
        first = self.parts.of_first_rank(state)
        self._plan = plan = plans.make_plan(state, self.group, first)
        self._taker.forget_images()
        self._staging.forget_plan()
        return plan

    def restore(self, *, strict: bool = True) -> RestoredState | None:
        """The newest state that is whole, put into all parts; None where there is none.

        `strict`: every tensor of the modules and optimizers comes from the checkpoint, and every
        tensor of the checkpoint has a place, or CheckpointMismatch lists both sides before
        anything is changed. Without it what fits is restored, and `notes` says what was not.
        """
        begun = time.monotonic()
        with sdk.span("checkpoint_load"):
            found = latest_restore_point(self.store, self.group)
            restored = self._from_memory(found, strict) or from_store(
                self.store, self.parts, self.group, found, strict=strict, trust=self.trust
            )
        if restored is not None:
            level: Level = "memory" if restored.source == "memory" else "disk"
            sdk.progress(step=restored.step)
            told = {"step": restored.step, "level": level, "source": restored.source}
            schedule.note_restore(**told, seconds=time.monotonic() - begun)
            self._pacing.resumed(restored.extra, failed=is_restart(), level=level)
        return restored

    def anchor(
        self,
        step: int,
        *,
        model_ref: str | None = None,
        model_arguments: Mapping[str, Any] | None = None,
        example_inputs: Any = None,
        model: nn.Module | None = None,
        metrics: Mapping[str, float] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> SaveHandle:
        """Save, and keep it until it is released; returns once it is on disk.

        What a publish would else be told by its recipe goes with it: `model_ref`, the factory of
        the model that serves as `module:function`, and what it is called with; inputs on which all
        has to agree, and what `model` says to them now, if it can be asked on rank 0 alone.
        """
        told: dict[str, Any] = {"factory": model_ref} if model_ref else {}
        told |= anchor.json_arguments(model_arguments, self._say) if model_arguments else {}
        if example_inputs is not None:
            told |= anchor.add_golden(self.parts, self._ranks, example_inputs, model, self._say)
            self._plan = None  # there is a part more
        about = {**(extra or {}), **({anchor.SERVING_INFO: told} if told else {}), **run_identity()}
        try:
            saving = self.save(step, anchor=True, metrics=metrics, extra=about)
            self.wait()
            if saving.skipped:
                raise SaveFailed(
                    f"the anchor of step {step} could not be saved", code="anchor-not-saved"
                )
        finally:
            if example_inputs is not None:
                self.parts.parts.pop(anchor.PART, None)
                self._plan = None
        return saving

    def wait(self) -> None:
        """Until every save that was begun is on disk; raises if one could not be written."""
        self._taker.wait()
        self._raise_failures(self._staging.settled())

    def close(self) -> None:
        """Everything is written; nothing is tracked any more, and the writer ends.

        After the notice of a preemption it waits no longer than the grace that is left.
        """
        self._taker.close()
        in_time = True
        if self._preemption is not None:
            if self.preempted:
                in_time = self._at_work_for(self._preemption.left_s)
            self._preemption.close()
        if in_time:
            try:
                self._staging.settled()
            except StoreSilent:
                self._staging.leave()
                raise
            self._raise_failures(self._staging.end())
        else:
            self._staging.leave()
            self._say(
                "the last save was not on disk when the grace period ended", code="grace-over"
            )

    def outcomes(self) -> list[dict[str, Any]]:
        """What became of the saves so far: step, seconds to durable, bytes, or an error."""
        found: list[dict[str, Any]] = self._staging.status()["outcomes"]
        return found

    def _at_work_for(self, seconds: float) -> bool:
        """Whether the writer is done within that time."""
        try:
            status = self._staging.settled(time.monotonic() + seconds)
        except StoreSilent:
            return False
        return not status["busy"] and not status["waiting"]

    def _told_to_stop(self, step: int) -> bool:
        assert self._preemption is not None
        try:
            return self._preemption.look(step, self._pacing.step_s, self._takes_s)
        except RuntimeError as error:  # the store of the ranks: one of them has left
            self._say(
                f"no notice of a preemption will be heeded any more: {error}",
                code="ranks-store-gone",
            )
            self._preemption.close()
            self._preemption = None
            return False

    def _takes_s(self) -> float:
        """Until a save of now is durable, by those before; others may be in its way."""
        ahead = len(self._staging.status()["busy"])
        return (1 + ahead) * self._outcomes.durable_s

    def _last_save(self, step: int) -> Level | None:
        assert self._preemption is not None
        left = self._preemption.left_s
        schedule.note_preemption(step=step, saved=self._preemption.in_time, left_s=left)
        if self._preemption.in_time:
            text = f"told to stop: a last save of step {step}, with {left:.1f} s left for it"
            schedule.note(text, code="last-save")
            return "disk"
        takes = f"one takes {self._outcomes.durable_s:.1f} s"
        why = f"{takes} and {max(left, 0.0):.1f} s are left"
        self._say(f"told to stop: no last save of step {step}, as {why}", code="no-last-save")
        return None

    def _from_memory(self, on_disk: RestorePoint, strict: bool) -> RestoredState | None:
        """From what the writers of all ranks still hold, if that is newer than what is on disk."""
        if not job_name():
            return None  # another start of the same script may want to begin anew
        mine = held_buffers(self._staging.found, self._staging.descriptors())
        saves = {image.save: image.step for image in mine}
        save = newest_common_save(self._ranks.gathered(saves))
        durable = on_disk.checkpoint.step if on_disk.checkpoint else -1
        if not save or saves[save] < durable:
            return None
        images = [image for image in mine if image.save == save]
        for rank in range(images[0].world):
            seen = peek(writer_name(self.store, rank)) if rank != self.rank else None
            images += [
                image for image in (held_buffers(*seen) if seen else []) if image.save == save
            ]
        there = len(images) == images[0].world  # or some are on other machines
        if not all(self._ranks.gathered(there)):
            return None
        values, notes = from_memory(self.parts, images, self.group, strict)
        self._staging.spare(save)
        return RestoredState(saves[save], "memory", values, images[0].extra, tuple(notes))

    def _warn(self, status: dict[str, Any]) -> None:
        for error in self._outcomes.heard(self._staging.new_outcomes(status)):
            warnings.warn(HeadwayWarning(str(error), code=error.code), stacklevel=4)

    def _raise_failures(self, status: dict[str, Any]) -> None:
        errors = self._outcomes.heard(self._staging.new_outcomes(status))
        if errors:
            raise errors[0]

    def _say(self, text: str, *, code: str) -> None:
        schedule.note(text, code=code)
        warnings.warn(HeadwayWarning(text, code=code), stacklevel=4)


def _choose_buffer(level: Level, everyone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Which image all ranks fill, the older (0) or the last one (1), by who writes which.

    The last one only while the older one is being written, as that one is whole then.
    """
    busy = [any(one["busy"][number] for one in everyone) for number in range(BUFFERS)]
    free = [number for number in range(BUFFERS) if not busy[number]]
    waits = [0] if level == "disk" else []
    return {"images": free[:1] or waits, "wanted": everyone[0]["wanted"]}
