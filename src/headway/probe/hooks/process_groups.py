"""Process groups: which a job makes and uses, what ranks exchange early, and torchrun's agent.

Whether a group is used is read from its backends, which count collectives whoever starts them: DDP,
FSDP, DTensor and compiled code. NCCL does not count point-to-point calls, so they are hooked.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from time import monotonic_ns, sleep
from types import ModuleType
from typing import Any

from headway.probe import stacks, step_clock
from headway.probe.patching import spanned, wrap
from headway.probe.recorder import guard, recorder

SPAN = "process_group_init"
MAX_GROUPS = 4096  # groups recorded per process
MAX_ROWS = 50  # of each kind in one event
MAX_SITES = 1000  # call sites counted separately
MAX_EVENTS = 20  # per process
SITE_FIELDS = ("where", "what", "desc", "backend", "size")
ZEROS = dict.fromkeys(
    ("calls", "ns", "made", "used", "unused", "again", "other_ns", "unused_ns", "again_ns"), 0
)
LOOK_NS = 10_000_000_000  # between two checks of which groups are used
GLOO_RELEASE_S = 0.02


def install(c10d: ModuleType) -> None:
    """torch.distributed.distributed_c10d"""

    def init(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        guard("distributed", _take_rank, c10d)
        return result

    wrap(c10d, "init_process_group", init)
    spanned(c10d, "init_process_group", SPAN)
    spanned(c10d, "new_group", SPAN)
    guard("groups", install_groups, c10d)


def _take_rank(c10d: Any) -> None:
    recorder.take_rank(c10d.get_rank(), c10d.get_world_size())


def install_events(events: ModuleType) -> None:
    """torch.distributed.elastic.events: rendezvous, starts and ends of torchrun's agent."""

    def record(original: Callable[..., Any], event: Any, *args: Any, **kwargs: Any) -> Any:
        guard("elastic", _agent_event, event)
        return original(event, *args, **kwargs)

    wrap(events, "record", record)


def _agent_event(event: Any) -> None:
    metadata = getattr(event, "metadata", None) or {}
    fields = {
        key: metadata[key]
        for key in ("state", "agent_restarts", "duration_ms", "global_rank", "group_rank")
        if metadata.get(key) is not None
    }
    recorder.start()
    recorder.emit("agent", name=str(getattr(event, "name", "")), **fields)
    if fields.get("state") == "START":
        guard("imported", recorder.log_imports)


def install_failures(errors: ModuleType) -> None:
    """torch.distributed.elastic.multiprocessing.errors: exit codes of workers."""

    def post_init(original: Callable[..., Any], self: Any, *args: Any) -> None:
        original(self, *args)
        guard("elastic", _worker_failed, self)

    wrap(errors.ProcessFailure, "__post_init__", post_init)


def _worker_failed(failure: Any) -> None:
    recorder.start()
    recorder.emit(
        "worker_failed",
        pid=failure.pid,
        local_rank=failure.local_rank,
        code=failure.exitcode,
        message=str(failure.message)[:500],
    )


def install_spawn(spawn: ModuleType) -> None:
    """torch.multiprocessing.spawn: it does not pass on the exception that ends a rank."""

    def run(original: Callable[..., Any], fn: Any, *args: Any, **kwargs: Any) -> Any:
        def noting(*inner: Any) -> Any:
            try:
                return fn(*inner)
            except BaseException as error:
                if not isinstance(error, SystemExit):
                    guard("spawn", recorder.error, error)
                raise

        return original(noting, *args, **kwargs)

    wrap(spawn, "_wrap", run)


@dataclass(slots=True, eq=False)
class GroupRecord:
    """One call that creates a group."""

    where: str
    what: str
    desc: str
    backend: str
    size: int
    ns: int
    duplicate: bool  # a group of these ranks and this backend existed
    group: Callable[[], Any] | None  # a weak reference; None if this rank is not a member
    ranks: tuple[int, ...] = ()  # if this rank is a member
    name: str = ""
    used: bool | None = None  # None: the backend does not tell

    @property
    def site(self) -> tuple[str, str, str, str, int]:
        """The key of a row: calls that differ only in their ranks are summed up."""
        return self.where, self.what, self.desc, self.backend, self.size


class Communication:
    """Groups and early calls of this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.pid = recorder.pid
        self.records: list[GroupRecord] = []
        self.by_name: dict[str, GroupRecord] = {}  # groups by torch's name
        self.idle: dict[int, GroupRecord] = {}  # groups not used so far, by id
        self.calls: dict[tuple[str, str], list[int]] = {}  # -> count, ns, bytes
        self.busy: dict[int, int] = {}  # thread -> bytes sent by the current call
        self.events_sent = 0
        self.next_look = 0
        self.dropped = 0  # groups over MAX_GROUPS

    def _reset_if_forked(self) -> None:
        """Forget the groups of the parent or of the fork server."""
        if self.pid != recorder.pid:
            self.reset()

    def group_made(
        self, what: str, c10d: Any, arguments: dict[str, Any], group: Any, ns: int
    ) -> None:
        """Record a new group; `group` is a placeholder if this rank is not a member."""
        self._reset_if_forked()
        if len(self.records) >= MAX_GROUPS:
            self.dropped += 1
            return
        member = hasattr(group, "group_name")
        backend = c10d.get_backend(group) if member else arguments.get("backend")
        ranks = c10d.get_process_group_ranks(group) if member else ()
        record = GroupRecord(
            where=stacks.calling_line(),
            what=what,
            desc=str(arguments.get("group_desc") or "")[:100],
            backend=str(backend or c10d.get_backend()),
            size=len(ranks) or _requested_size(c10d, arguments),
            ns=ns,
            duplicate=False,
            group=weakref.ref(group) if member else None,
            ranks=tuple(ranks),
        )
        if member:
            record.name, record.used = group.group_name, False
            record.duplicate = self._is_there(record, c10d)
            self.by_name[record.name] = self.idle[id(group)] = record
        self.records.append(record)

    def _is_there(self, new: GroupRecord, c10d: Any) -> bool:
        if len(new.ranks) == c10d.get_world_size() and new.backend == c10d.get_backend():
            return True
        return any(
            old.ranks == new.ranks and old.backend == new.backend for old in self.by_name.values()
        )

    def called(self, what: str, ns: int, sent: int) -> None:
        """Count a call that ended before the first step."""
        self._reset_if_forked()
        key = (stacks.calling_line(), what)
        if key not in self.calls and len(self.calls) >= MAX_SITES:
            key = ("", what)
        sums = self.calls.setdefault(key, [0, 0, 0])
        sums[0] += 1
        sums[1] += ns
        sums[2] += sent

    def mark_used(self, group: Any) -> None:
        """Mark a group that made a point-to-point call, which NCCL does not count."""
        record = self.idle.pop(id(group), None)
        if record is not None:
            record.used = True

    def group_destroyed(self, name: str | None) -> None:
        """A group is about to be destroyed; None: all groups."""
        self.look()
        for destroyed in [name] if name is not None else list(self.by_name):
            self.by_name.pop(destroyed, None)
        remaining = self.by_name.values()
        self.idle = {key: record for key, record in self.idle.items() if record in remaining}

    def look(self) -> bool:
        """Update which groups are used; whether that has changed."""
        changed = False
        for record in list(self.by_name.values()):
            group = record.group() if record.group is not None and not record.used else None
            if group is not None:
                record.used = _is_used(group)
                changed = changed or record.used is True
        return changed

    def stepped(self, t: int) -> None:
        """Called in the slow path of a step."""
        if t >= self.next_look and self.by_name:
            self.next_look = t + LOOK_NS
            if self.look() and self.events_sent < MAX_EVENTS:
                self.emit("steps")

    def emit(self, at: str) -> None:
        """Write all sums up to now; the last such event of a journal counts."""
        self._reset_if_forked()
        if not self.records and not self.calls:
            return
        self.look()
        self.events_sent += 1
        groups = sorted(self._rows(), key=lambda row: -row["ns"])
        calls: list[dict[str, Any]] = [
            {"where": where, "what": what, "times": times, "ns": ns, "bytes": sent}
            for (where, what), (times, ns, sent) in list(self.calls.items())
        ]
        calls.sort(key=lambda row: -row["ns"])
        recorder.emit(
            "communication",
            at=at,
            groups=groups[:MAX_ROWS],
            calls=calls[:MAX_ROWS],
            more=len(groups[MAX_ROWS:]) + len(calls[MAX_ROWS:]) + self.dropped,
        )

    def _rows(self) -> list[dict[str, Any]]:
        rows: dict[tuple[str, str, str, str, int], dict[str, Any]] = {}
        for record in list(self.records):
            row = rows.setdefault(
                record.site, {**dict(zip(SITE_FIELDS, record.site, strict=True)), **ZEROS}
            )
            row["calls"] += 1
            row["ns"] += record.ns
            if record.group is None:
                row["other_ns"] += record.ns
                continue
            row["made"] += 1
            row["used"] += record.used is True
            if record.used is False:
                row["unused"] += 1
                row["unused_ns"] += record.ns
            elif record.duplicate:
                row["again"] += 1
                row["again_ns"] += record.ns
        return list(rows.values())


communication = Communication()


def _requested_size(c10d: Any, arguments: dict[str, Any]) -> int:
    parts = arguments.get("split_ranks")
    ranks = parts[0] if parts else arguments.get("ranks")
    if ranks is None:
        return int(c10d.get_world_size())
    return len(ranks) if hasattr(ranks, "__len__") else 0


def _is_used(group: Any) -> bool | None:
    try:
        devices = group._device_types
        counts = [group._get_backend(device)._get_sequence_number_for_group() for device in devices]
    except Exception:
        return None  # this backend does not count collectives
    return any(counts)


def install_groups(c10d: ModuleType) -> None:
    """torch.distributed.distributed_c10d"""
    wrap(c10d, "new_group", _group_wrapper("new_group", c10d))
    wrap(c10d, "split_group", _group_wrapper("split_group", c10d))
    spanned(c10d, "split_group", SPAN)
    wrap(c10d, "destroy_process_group", _destroy)
    # Methods, as torch compares the functions `isend` and `irecv` by identity.
    for name in ("send", "recv", "recv_anysource"):
        if hasattr(c10d.ProcessGroup, name):
            wrap(c10d.ProcessGroup, name, _point_to_point)
    for name in (
        "all_gather_object",
        "gather_object",
        "broadcast_object_list",
        "scatter_object_list",
        "barrier",
        "monitored_barrier",
    ):
        if getattr(c10d, name, None) is not None:
            wrap(c10d, name, _call_wrapper(name))
    if hasattr(c10d, "_object_to_tensor"):  # otherwise the number of bytes is not known
        wrap(c10d, "_object_to_tensor", _count_pickled)
    step_clock.on_first_step.append(lambda t: guard("groups", communication.emit, "first_step"))
    step_clock.on_step.append(lambda t: guard("groups", communication.stepped, t))
    recorder.at_end.append(lambda: guard("groups", communication.emit, "exit"))


def _group_wrapper(what: str, c10d: Any) -> Callable[..., Any]:
    names = inspect.signature(getattr(c10d, what)).parameters

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        if thread in communication.busy:  # torchcomms creates groups by splitting
            return original(*args, **kwargs)
        communication.busy[thread] = 0
        start = monotonic_ns()
        try:
            group = original(*args, **kwargs)
        finally:
            ns = monotonic_ns() - start
            communication.busy.pop(thread, None)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        guard("groups", communication.group_made, what, c10d, arguments, group, ns)
        return group

    return around


def _destroy(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    group = args[0] if args else kwargs.get("group")
    guard("groups", communication.group_destroyed, getattr(group, "group_name", None))
    if group is None:
        # A thread of gloo may still need the GIL to release a tensor. DDP frees its groups with the
        # GIL held and waits for that thread: in torch 2.13 the process would never end.
        sleep(GLOO_RELEASE_S)
    return original(*args, **kwargs)


def _point_to_point(original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
    if communication.idle:
        guard("groups", communication.mark_used, group)
    return original(group, *args, **kwargs)


def _call_wrapper(what: str) -> Callable[..., Any]:
    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        if step_clock.steps or thread in communication.busy:
            return original(*args, **kwargs)
        communication.busy[thread] = 0
        start = monotonic_ns()
        try:
            return original(*args, **kwargs)
        finally:
            ns = monotonic_ns() - start
            sent = communication.busy.pop(thread, 0)
            guard("groups", communication.called, what, ns, sent)

    return around


def _count_pickled(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = original(*args, **kwargs)
    thread = get_ident()
    if thread in communication.busy:
        guard("groups", _add_bytes, thread, result)
    return result


def _add_bytes(thread: int, pickled: Any) -> None:
    communication.busy[thread] += pickled[0].numel()
