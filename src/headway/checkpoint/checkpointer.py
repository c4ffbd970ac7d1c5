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

WRITER_IDLE_S = 600.0  # how long the writer waits for a killed rank to come back
WRITER_IDLE_UNNAMED_JOB_S = 10.0  # the same if the job has no name that a restart could share
SINGLE_BUFFER_REASON = "a rank killed while it fills the only buffer would leave no complete buffer"
WRITER_ATTEMPTS = 3  # writer processes tried for one save
MIN_DURABLE_WAIT_S = 10.0  # minimum wait for a durable save after its writer was killed
FULL_EVERY = 8  # saves; in between, tables are saved by the rows that changed

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class SaveHandle:
    """A save that has started."""

    step: int
    blocked_s: float  # time the training was blocked
    waited_s: float  # of that, waiting for a free buffer
    level: Level = "disk"
    # a memory checkpoint without a free buffer, or the writer was not available
    skipped: bool = False


class Checkpointer:
    """The checkpoints of a training job; every rank creates one and calls the same methods on it.

    `state` is the state that the ranks share, replicated or sharded; `per_rank` is private state of
    each rank. `optimizers` lists optimizers that step but are not part of `state` themselves.
    `trust` says whether objects in the store may run code when they are loaded; None allows it only
    if nobody else can have written them, which is never known for a URL. If the store accepts
    nothing for `store_timeout_s` seconds, saves are skipped with a warning instead of waiting.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        state: Mapping[str, Any],
        *,
        per_rank: Mapping[str, Any] | None = None,
        optimizers: Sequence[Optimizer] = (),
        keep: Policy | None = None,
        group: Any = None,
        interval: float | Tuner | None = None,
        memory_interval: float | Tuner | None = None,
        grace_s: float | None = None,
        full_every: int = FULL_EVERY,
        buffers: int = BUFFERS,
        rate: float | None = None,
        compress: str | None = None,
        writer_idle_s: float | None = None,
        trust: bool | None = None,
        store_timeout_s: float = STORE_TIMEOUT_S,
    ) -> None:
        if not isinstance(buffers, int) or buffers not in (1, BUFFERS):
            raise UsageError(
                f"a Checkpointer has one or two buffers, not {buffers}", code="images-invalid"
            )
        if buffers == 1 and memory_interval is not None:
            raise UsageError(
                f"memory_interval needs buffers={BUFFERS}: {SINGLE_BUFFER_REASON}",
                code="one-image-for-snapshots",
            )
        if compress not in (None, "zstd"):
            raise UsageError(
                f"checkpoints are compressed with 'zstd' or not at all, not with {compress!r}",
                code="compression-unknown",
            )
        if compress is not None:
            codecs.require_zstd()
        self.store = os.fspath(store) if "://" in str(store) else os.path.abspath(store)
        self.keep, self.group, self.rate = keep or Policy(last=2), group, rate
        self.full_every, self.compress, self.trust = full_every, compress, trust
        self.preempted = False  # all ranks must stop: leave the loop
        self._coordinator = RankCoordinator(group)
        self.rank, self.world = self._coordinator.rank, self._coordinator.world
        self.tree = StateTree(state, per_rank or {}, self.rank)
        # names the saves of this attempt
        self._attempt = self._coordinator.gather(uuid.uuid4().hex[:12])[0]
        self._coordinator.set_name(self._attempt)
        given_intervals: dict[Level, float | Tuner | None]
        given_intervals = {"disk": interval, "memory": memory_interval}
        intervals = {level: value for level, value in given_intervals.items() if value is not None}
        self._schedule = SaveSchedule(intervals, self._coordinator.from_rank0)
        self._outcomes = SaveOutcomes(self._schedule, self.rank)
        self._two_levels = memory_interval is not None
        if writer_idle_s is None:
            writer_idle_s = WRITER_IDLE_S if job_name() else WRITER_IDLE_UNNAMED_JOB_S
        name = writer_name(self.store, self.rank)
        self._staging = StagingBuffers(
            name,
            writer_idle_s,
            commits=self.rank == 0,
            buffers=buffers,
            timeout_s=store_timeout_s,
        )
        self._is_writer_lost = False  # since the last durable save
        all_optimizers = list(dict.fromkeys([*self.tree.optimizers, *optimizers]))
        self._capture = StateCapture(all_optimizers, buffers, self.tree.modules)
        self._plan: plans.RankSavePlan | None = None
        self._saves = 0
        self._due: tuple[int, Level] | None = None
        self._since_full = 0  # number of saves to disk since the last full one
        self._parent = ""  # save id of the last save to disk, the parent of a delta
        self._preemption = None if grace_s is None else Preemption(self._coordinator, grace_s)
        self._has_schedule = bool(intervals) or grace_s is not None

    def due(self, step: int) -> Level | None:
        """Return where to save now, or None.

        Call it once per step, on every rank, after the step.
        """
        if not self._has_schedule:
            raise UsageError(
                "a Checkpointer without an interval cannot tell when a save is due",
                code="no-interval",
            )
        level = self._schedule.due(step)
        if self._preemption is not None and not self.preempted and self._should_stop(step):
            self.preempted = True
            level = self._final_level(step)
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
        """Save the state between two steps, on every rank; do not wait for the write.

        `level` is "disk", or "memory" for a checkpoint that survives this process but not the
        machine; the default is the level that `due` returned. A failed write is reported by a
        warning of a later save and raised by `wait` and `close`; training continues.
        """
        started = time.monotonic()
        level = self._resolve_level(step, level, anchor)
        self._two_levels = self._two_levels or level == "memory"
        with sdk.span("checkpoint_block", level=level, store=self.store):
            state = self.tree.collect()
            plan = self._plan or self._make_plan(state)
            items = plan.local_items(state)
            wait_started = time.monotonic()
            if level == "disk":  # a memory checkpoint is skipped instead of waited for
                self._capture.wait()
            waited_s = time.monotonic() - wait_started
            buffers = self._agree_on_buffers(step, level, items)
            if buffers:
                extra_fields = {**(extra or {}), **({"metrics": dict(metrics)} if metrics else {})}
                job = self._describe_job(extra_fields, anchor)
                try:
                    if not self._staging.views:
                        self._retry_with_new_writer(
                            lambda: self._staging.reserve(plan, items.tensors), items
                        )
                    waited_s += self._retry_with_new_writer(
                        lambda: self._start_capture(step, level, plan, items, job, buffers), items
                    )
                    self._wait_if_writer_lost(level)
                except (WriterFailed, SaveFailed) as error:
                    buffers = ()
                    self._outcomes.needs_full = True
                    text = f"step {step} is not saved: {error}"
                    warnings.warn(HeadwayWarning(text, code="step-not-saved"), stacklevel=2)
        blocked_s = time.monotonic() - started
        if buffers:
            self._schedule.save_started(step, level, blocked_s)
        return SaveHandle(step, blocked_s, waited_s, level, skipped=not buffers)

    def _resolve_level(self, step: int, level: Level | None, anchor: bool) -> Level:
        if level not in (None, "memory", "disk") or (anchor and level == "memory"):
            if anchor:
                raise UsageError(
                    f"an anchor checkpoint is saved to 'disk', not to {level!r}",
                    code="anchor-not-to-disk",
                )
            raise UsageError(
                f"level must be 'memory' or 'disk', not {level!r}", code="level-unknown"
            )
        if level == "memory" and self._staging.count == 1:
            raise UsageError(
                f"a memory checkpoint needs buffers={BUFFERS}: {SINGLE_BUFFER_REASON}",
                code="one-image-for-snapshots",
            )
        due = self._due if self._due is not None and self._due[0] == step else None
        return "disk" if anchor else level or (due[1] if due else "disk")

    def _agree_on_buffers(self, step: int, level: Level, items: plans.LocalItems) -> Sequence[int]:
        """Buffers that may be filled now; none for a memory checkpoint while all are in use.

        With two levels all ranks use the same buffer, once every rank has completed the previous
        one. Some buffer is then always complete on all ranks, even if they are killed while filling
        the other.
        """
        status = self._retry_with_new_writer(self._staging.status, items)
        self._warn_failures(status)
        steps = self._schedule.steps_until_due()
        if not self._two_levels:
            self._schedule.set_due(step, self._coordinator.from_rank0(steps) if steps else {})
            return range(self._staging.count)
        last = self._staging.last
        older = (last + 1) % BUFFERS
        filling = not self._capture.idle
        busy = [filling or buffer in status["busy"] for buffer in (older, last)]
        mine = {"busy": busy, "wanted": steps}
        decision = self._coordinator.decide(mine, lambda everyone: _choose_buffer(level, everyone))
        self._schedule.set_due(step, decision["wanted"], level)
        return [(older, last)[number] for number in decision["images"]]

    def _describe_job(self, extra: dict[str, Any], anchor: bool) -> dict[str, Any]:
        """What the writer needs to know about a save."""
        self._saves += 1
        extra |= {TOTALS: self._schedule.totals()} if self._schedule.levels else {}
        return {
            "store": self.store,
            "save_id": f"{self._attempt}-{self._saves}",
            "rank": self.rank,
            "world": self.world,
            "extra": extra,
            "keep": asdict(self.keep),
            "anchor": anchor,
            "rate": self.rate,
            "compress": self.compress,
            "parent": self._parent,
        }

    def _start_capture(
        self,
        step: int,
        level: Level,
        plan: plans.RankSavePlan,
        items: plans.LocalItems,
        job: dict[str, Any],
        buffers: Sequence[int],
    ) -> float:
        """Start filling a buffer; return the seconds spent waiting for it."""
        started = time.monotonic()
        buffer = self._staging.free_buffer(buffers)
        waited_s = time.monotonic() - started
        self._staging.send("filling", image=buffer, step=step)
        values = [to_base64(value) for value in items.values]
        write = level == "disk"
        fields = {"layout": plan.id, "values": values, "job": job, "write": write}
        views = self._staging.views[buffer]
        full = self.full_every <= 1 or not self._since_full or job["anchor"]
        full = full or self._outcomes.needs_full  # the parent of a delta is missing
        if write:
            self._outcomes.needs_full = False
            self._parent = job["save_id"]
            self._since_full = 1 if full else (self._since_full + 1) % self.full_every

        def on_captured(good: bool, changed: list[ChangedRows]) -> None:
            with contextlib.suppress(WriterFailed):  # the next save detects it
                self._staging.buffer_ready(good, changed, image=buffer, **fields)
            self._outcomes.capture_ended(step, level, time.monotonic() - started, good)

        self._capture.capture(
            buffer, items.tensors, views, on_captured, written=write, by_rows=not full
        )
        return waited_s

    def _retry_with_new_writer(
        self, call: Callable[[], ResultT], items: plans.LocalItems
    ) -> ResultT:
        """Call it again with a new writer process if the writer was killed."""
        for _ in range(WRITER_ATTEMPTS - 1):
            try:
                return call()
            except WriterFailed as error:
                # if that one is killed too, the call detects it
                with contextlib.suppress(WriterFailed):
                    self._restart_writer(error, items)
        return call()

    def _restart_writer(self, error: WriterFailed, items: plans.LocalItems) -> None:
        text = f"{error}; starting a new writer"
        warnings.warn(HeadwayWarning(text, code="writer-restarted"), stacklevel=4)
        self._capture.invalidate_buffers()
        self._schedule.forget_pending()
        self._is_writer_lost = True
        self._staging.restart_writer(items.tensors)

    def _wait_if_writer_lost(self, level: Level) -> None:
        """Ensure that some save becomes durable even if writers are killed again and again."""
        if self._is_writer_lost and level == "disk":
            with contextlib.suppress(WriterFailed, StoreSilent):
                self._capture.wait()
                patience_s = (
                    MIN_DURABLE_WAIT_S + 2 * self._outcomes.durable_s
                )  # another rank may have ended
                status = self._staging.wait_idle(time.monotonic() + patience_s)
                self._is_writer_lost = bool(status["busy"] or status["waiting"])

    def replan(self, state: Mapping[str, Any] | None = None) -> plans.RankSavePlan:
        """Plan again which rank saves which tensor, after tensors were added or removed.

        Call it on every rank.
        """
        collected = state or self.tree.collect()
        plan = self._make_plan(collected)
        items = plan.local_items(collected)
        self._retry_with_new_writer(lambda: self._staging.reserve(plan, items.tensors), items)
        return plan

    def _make_plan(self, state: Mapping[str, Any]) -> plans.RankSavePlan:
        self._capture.wait()
        first = self.tree.first_rank_names(state)
        self._plan = plan = plans.make_plan(state, self.group, first)
        self._capture.invalidate_buffers()
        self._staging.forget_plan()
        return plan

    def restore(self, *, strict: bool = True) -> RestoredState | None:
        """Load the newest valid state into all parts; return None if there is none.

        With `strict`, every tensor of the modules and optimizers must come from the checkpoint, and
        every tensor of the checkpoint must have a place in the state; otherwise CheckpointMismatch
        lists both sides before anything is changed. Without it, what fits is restored, and `notes`
        lists what was not.
        """
        started = time.monotonic()
        with sdk.span("checkpoint_load"):
            point = latest_restore_point(self.store, self.group)
            restored = self._from_memory(point, strict) or from_store(
                self.store, self.tree, self.group, point, strict=strict, trust=self.trust
            )
        if restored is not None:
            level: Level = "memory" if restored.source == "memory" else "disk"
            sdk.progress(step=restored.step)
            fields = {"step": restored.step, "level": level, "source": restored.source}
            schedule.note_restore(**fields, seconds=time.monotonic() - started)
            self._schedule.resumed(restored.extra, failed=is_restart(), level=level)
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
        """Save a checkpoint that is kept until it is released; return once it is on disk.

        It records what a publish recipe would otherwise specify: `model_ref`, the factory of the
        served model as `module:function`, and its arguments; example inputs, and the outputs of
        `model` for them, if it can be called on rank 0 alone.
        """
        serving: dict[str, Any] = {"factory": model_ref} if model_ref else {}
        serving |= anchor.json_arguments(model_arguments, self._notify) if model_arguments else {}
        if example_inputs is not None:
            serving |= anchor.add_golden(
                self.tree, self._coordinator, example_inputs, model, self._notify
            )
            self._plan = None  # the state has an additional part
        extra_fields = {
            **(extra or {}),
            **({anchor.SERVING_INFO: serving} if serving else {}),
            **run_identity(),
        }
        try:
            handle = self.save(step, anchor=True, metrics=metrics, extra=extra_fields)
            self.wait()
            if handle.skipped:
                raise SaveFailed(
                    f"the anchor checkpoint of step {step} could not be saved",
                    code="anchor-not-saved",
                )
        finally:
            if example_inputs is not None:
                self.tree.parts.pop(anchor.PART, None)
                self._plan = None
        return handle

    def wait(self) -> None:
        """Wait until every started save is on disk; raise if one could not be written."""
        self._capture.wait()
        self._raise_failures(self._staging.wait_idle())

    def close(self) -> None:
        """Wait until everything is written, stop tracking, and end the writer.

        After a preemption notice it waits no longer than the remaining grace period.
        """
        self._capture.close()
        in_time = True
        if self._preemption is not None:
            if self.preempted:
                in_time = self._wait_until_idle(self._preemption.left_s)
            self._preemption.close()
        if in_time:
            try:
                self._staging.wait_idle()
            except StoreSilent:
                self._staging.disconnect()
                raise
            self._raise_failures(self._staging.end())
        else:
            self._staging.disconnect()
            self._notify(
                "the last save was not on disk when the grace period ended", code="grace-over"
            )

    def outcomes(self) -> list[dict[str, Any]]:
        """Results of the saves so far: step, seconds until durable, bytes, or an error."""
        outcomes: list[dict[str, Any]] = self._staging.status()["outcomes"]
        return outcomes

    def _wait_until_idle(self, seconds: float) -> bool:
        """Return whether the writer finishes within that time."""
        try:
            status = self._staging.wait_idle(time.monotonic() + seconds)
        except StoreSilent:
            return False
        return not status["busy"] and not status["waiting"]

    def _should_stop(self, step: int) -> bool:
        assert self._preemption is not None
        try:
            return self._preemption.should_stop(step, self._schedule.step_s, self._save_time_s)
        except RuntimeError as error:  # the store of the process group: one rank has ended
            self._notify(
                f"preemption notices are ignored from now on: {error}",
                code="ranks-store-gone",
            )
            self._preemption.close()
            self._preemption = None
            return False

    def _save_time_s(self) -> float:
        """Expected seconds until a save started now is durable, with those in the queue."""
        ahead = len(self._staging.status()["busy"])
        return (1 + ahead) * self._outcomes.durable_s

    def _final_level(self, step: int) -> Level | None:
        assert self._preemption is not None
        left = self._preemption.left_s
        schedule.note_preemption(step=step, saved=self._preemption.in_time, left_s=left)
        if self._preemption.in_time:
            text = (
                f"preemption notice: saving step {step} as the last checkpoint, {left:.1f} s left"
            )
            schedule.note(text, code="last-save")
            return "disk"
        duration = f"a save takes {self._outcomes.durable_s:.1f} s"
        reason = f"{duration} and only {max(left, 0.0):.1f} s are left"
        self._notify(
            f"preemption notice: no last checkpoint of step {step}: {reason}", code="no-last-save"
        )
        return None

    def _from_memory(self, on_disk: RestorePoint, strict: bool) -> RestoredState | None:
        """Restore what the writers of all ranks hold, if newer than the durable checkpoint."""
        if not job_name():
            return None  # a new start of the same script may not want the old state
        local = held_buffers(self._staging.initial_status, self._staging.descriptors())
        saves = {buffer.save: buffer.step for buffer in local}
        save = newest_common_save(self._coordinator.gather(saves))
        durable = on_disk.checkpoint.step if on_disk.checkpoint else -1
        if not save or saves[save] < durable:
            return None
        held = [buffer for buffer in local if buffer.save == save]
        for rank in range(held[0].world):
            other = peek(writer_name(self.store, rank)) if rank != self.rank else None
            held += [
                buffer for buffer in (held_buffers(*other) if other else []) if buffer.save == save
            ]
        complete = len(held) == held[0].world  # otherwise some are on other machines
        if not all(self._coordinator.gather(complete)):
            return None
        values, notes = from_memory(self.tree, held, self.group, strict)
        self._staging.protect(save)
        return RestoredState(saves[save], "memory", values, held[0].extra, tuple(notes))

    def _warn_failures(self, status: dict[str, Any]) -> None:
        for error in self._outcomes.collect(self._staging.new_outcomes(status)):
            warnings.warn(HeadwayWarning(str(error), code=error.code), stacklevel=4)

    def _raise_failures(self, status: dict[str, Any]) -> None:
        errors = self._outcomes.collect(self._staging.new_outcomes(status))
        if errors:
            raise errors[0]

    def _notify(self, text: str, *, code: str) -> None:
        schedule.note(text, code=code)
        warnings.warn(HeadwayWarning(text, code=code), stacklevel=4)


def _choose_buffer(level: Level, everyone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Choose which buffer all ranks fill, the older (0) or the last one (1).

    The last one is chosen only while the older one is being written, which is complete in that
    case.
    """
    busy = [any(answer["busy"][number] for answer in everyone) for number in range(BUFFERS)]
    free = [number for number in range(BUFFERS) if not busy[number]]
    waits = [0] if level == "disk" else []
    return {"images": free[:1] or waits, "wanted": everyone[0]["wanted"]}
