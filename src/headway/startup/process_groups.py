"""Process groups by ranks and purpose: created once, at first use, by their members only.

    mesh = process_groups.partition({"dp": 4, "tp": 2})  # nothing is created yet
    dist.all_reduce(x, group=mesh["tp"].pg())  # this rank's group, created now by its members

`torch.distributed.new_group` needs every rank for every group; here only the members take part.
torch derives the name of such a group from its ranks and from how many groups this rank has
created: if ranks have created different groups before, the names differ and the members wait for
each other forever. If the default group is bound to a device, torch would split it, which needs
every rank of the job. torch has no argument for either, so both functions are replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import operator
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain, product
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from headway.errors import UsageError
from headway.startup.group_audit import Audit as Audit
from headway.startup.group_audit import audit as audit

Ranks = tuple[int, ...]


class Group:
    """A set of ranks, and their process group once it is needed."""

    def __init__(
        self,
        ranks: Ranks,
        *,
        backend: str,
        purpose: str,
        parts: tuple[Ranks, ...] = (),
        timeout: timedelta | None = None,
        options: Any = None,
    ) -> None:
        self.ranks = ranks  # sorted; empty if a split leaves this rank out
        self.backend = backend
        self.purpose = purpose
        self.parts = parts  # all groups of the split it belongs to
        self.timeout = timeout
        self.options = options
        self._lock = threading.Lock()  # per group: another group may be waiting for other ranks
        self._default = weakref.ref(c10d._get_default_group())
        self._group: Any = None
        self._left_out = False  # this rank took part in the split but is in no part
        self._creations = 0

    def __repr__(self) -> str:
        state = "created" if self.is_created else "not created"
        return f"<Group {self.purpose or 'unnamed'} {list(self.ranks)} {self.backend}, {state}>"

    @property
    def member(self) -> bool:
        return dist.get_rank() in self.ranks

    @property
    def is_created(self) -> bool:
        """Whether its process group exists."""
        return self._group is not None and self._group in c10d._world.pg_map

    def pg(self) -> dist.ProcessGroup:
        """The process group. The first call creates it: all members must make that call."""
        if not self.member:
            raise UsageError(
                f"rank {dist.get_rank()} is not in {self!r}; check `.member` before `.pg()`",
                code="rank-not-in-group",
            )
        with self._lock:
            if not self.is_created:
                self._create(collective=False)
            group: dist.ProcessGroup = self._group
            return group

    def destroy(self) -> None:
        """Destroy the process group; the next use creates it again. The default group is kept."""
        with self._lock:
            if self.is_created and self._group is not self._default():
                dist.destroy_process_group(self._group)
            self._group, self._left_out = None, False

    def _ensure(self) -> None:
        with self._lock:
            if not self.is_created and not self._left_out:
                self._create(collective=True)

    def _create(self, *, collective: bool) -> None:
        default = c10d._get_default_group()
        if self._default() is not default:
            raise UsageError(
                f"the default group of {self!r} was destroyed: request the group again",
                code="group-outdated",
            )
        is_default_backend = self.backend == _default_backend()
        if (
            len(self.ranks) == dist.get_world_size()
            and is_default_backend
            and not self._has_own_options
        ):
            self._group = default
        elif collective and self.parts and is_default_backend and _splits(default):
            self._creations += 1
            self._split(default)
        elif self.member:
            self._creations += 1  # a new name: the store still has keys of the previous group
            self._alone()

    def _split(self, default: Any) -> None:
        """Create all parts at once; every rank of the job takes part."""
        with next_group_named(self._name(), alone=False):
            self._group = dist.split_group(
                default,
                [list(part) for part in self.parts],
                timeout=self.timeout,
                pg_options=self.options,
                group_desc=self.purpose or None,
            )
        self._left_out = self._group is None

    def _alone(self) -> None:
        """Create the group; only its members take part."""
        with next_group_named(self._name(), alone=True):
            self._group = dist.new_group(
                list(self.ranks),
                timeout=self.timeout,
                backend=self.backend,
                pg_options=self.options,
                use_local_synchronization=True,
                group_desc=self.purpose or None,
            )

    @property
    def _has_own_options(self) -> bool:
        return self.timeout is not None or self.options is not None

    def _name(self) -> str:
        """A name that is the same on every member, whatever groups they created before."""
        ranks = self.ranks or self.parts[0]
        text = f"{ranks} {self.backend} {self.purpose} {self._creations}"
        return f"headway-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


class _GroupRegistry:
    """The groups of a job, as long as its default group exists."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.default: Any = None
        self.groups: dict[tuple[Ranks | tuple[Ranks, ...], str, str], Group] = {}

    def lookup(self, request: Group) -> Group:
        """The registered group with the same ranks, backend and purpose, else this one."""
        default = c10d._get_default_group()
        with self.lock:
            if self.default is None or self.default() is not default:
                self.default = weakref.ref(
                    default
                )  # groups of an earlier initialization are invalid
                self.groups.clear()
            members = request.ranks or request.parts  # parts if a split leaves this rank out
            key = (members, request.backend, request.purpose)
            registered = self.groups.setdefault(key, request)
        if (registered.timeout, registered.options) != (request.timeout, request.options):
            raise UsageError(
                f"{registered!r} was requested with another timeout or other options: "
                "use a different purpose",
                code="group-options-differ",
            )
        registered.parts = registered.parts or request.parts
        return registered


_registry = _GroupRegistry()


def group(
    ranks: Iterable[int],
    backend: str | None = None,
    purpose: str = "",
    *,
    timeout: timedelta | None = None,
    options: Any = None,
) -> Group:
    """The group of these ranks for this purpose; nothing is created before `.pg()`.

    All ranks with the default backend are the default group, which already exists.
    """
    return _registry.lookup(
        Group(
            _check_ranks(ranks),
            backend=(backend or _default_backend()).lower(),
            purpose=purpose,
            timeout=timeout,
            options=options,
        )
    )


def split(
    parts: Sequence[Iterable[int]],
    backend: str | None = None,
    purpose: str = "",
    *,
    timeout: timedelta | None = None,
    options: Any = None,
) -> Group:
    """This rank's group of several disjoint ones; a group without ranks if it is in none."""
    checked = tuple(_check_ranks(part) for part in parts)
    times = Counter(chain.from_iterable(checked))
    duplicates = sorted(rank for rank, count in times.items() if count > 1)
    if duplicates:
        raise UsageError(
            f"rank {duplicates[0]} is in more than one part of {[list(part) for part in checked]}",
            code="rank-twice",
        )
    if not checked:
        raise UsageError("the split has no parts", code="split-without-parts")
    own_part = next((part for part in checked if dist.get_rank() in part), ())
    return _registry.lookup(
        Group(
            own_part,
            backend=(backend or _default_backend()).lower(),
            purpose=purpose,
            parts=checked,
            timeout=timeout,
            options=options,
        )
    )


def partition(
    shape: Mapping[str, int],
    backend: str | None = None,
    *,
    timeout: timedelta | None = None,
) -> dict[str, Group]:
    """This rank's group along each dimension of a mesh of all ranks, the last one contiguous."""
    sizes = list(shape.values())
    world = dist.get_world_size()
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise UsageError(
            f"each size of a shape must be an integer of 1 or more, got {dict(shape)}",
            code="shape-invalid",
        )
    if math.prod(sizes) != world:
        raise UsageError(
            f"{dict(shape)} has {math.prod(sizes)} ranks, but the job has {world}",
            code="shape-world-size-mismatch",
        )
    return {
        name: split(_along(sizes, position), backend, name, timeout=timeout)
        for position, name in enumerate(shape)
    }


def ensure(*groups: Group) -> None:
    """Create several groups now. Every rank of the job must call this at the same point.

    If the default group is bound to a device, one call of ncclCommSplit creates all parts of a
    split. Otherwise each rank creates its own groups, all ranks in the same order, which avoids
    deadlocks.
    """
    for item in sorted(
        set(groups), key=lambda item: (item.purpose, item.backend, item.parts, item.ranks)
    ):
        item._ensure()


def destroy() -> None:
    """Destroy every group of this module; the next use creates it again."""
    for item in list(_registry.groups.values()):
        item.destroy()


def _check_ranks(ranks: Iterable[int]) -> Ranks:
    world = dist.get_world_size()
    requested = list(ranks)
    try:
        members = sorted(operator.index(rank) for rank in requested)
    except TypeError:
        raise UsageError(
            f"ranks must be integers, got {requested!r}", code="rank-not-an-integer"
        ) from None
    if not members or members[0] < 0 or members[-1] >= world:
        raise UsageError(
            f"ranks must be from 0 to {world - 1}, got {requested!r}", code="rank-out-of-range"
        )
    if len(set(members)) != len(members):
        raise UsageError(f"duplicate rank in {requested!r}", code="rank-twice")
    return tuple(members)


def _along(sizes: Sequence[int], position: int) -> list[list[int]]:
    """The ranks of each row of a mesh along one dimension."""
    stride = math.prod(sizes[position + 1 :])
    outer = range(math.prod(sizes[:position]))
    block = stride * sizes[position]
    return [
        [first * block + offset + step * stride for step in range(sizes[position])]
        for first, offset in product(outer, range(stride))
    ]


def _default_backend() -> str:
    return str(c10d._world.pg_map[c10d._get_default_group()][0])


def _splits(default: Any) -> bool:
    """Whether one call can split the default group: its communicator must already exist."""
    device = getattr(default, "bound_device_id", None)
    if device is None or not torch.accelerator.is_available():
        return False
    return bool(default._get_backend(device).supports_splitting)


class _NextGroup(threading.local):
    """The group that this thread is about to create."""

    name: str | None = None
    alone = False  # without the ranks that are not members


_next_group = _NextGroup()
_installed = False


@contextlib.contextmanager
def next_group_named(name: str, *, alone: bool) -> Iterator[None]:
    """Give the group that this thread creates inside this name; other threads are unaffected."""
    _install_hooks()
    _next_group.name, _next_group.alone = name, alone
    try:
        yield
    finally:
        _next_group.name, _next_group.alone = None, False


def _install_hooks() -> None:
    global _installed
    if _installed:
        return
    hash_original = getattr(c10d, "_hash_ranks_to_str", None)
    split_source_original = getattr(c10d, "_get_split_source", None)
    if hash_original is None or split_source_original is None:
        raise UsageError(
            f"process_groups does not support torch {torch.__version__}: use new_group instead",
            code="torch-not-supported",
        )

    def hash_ranks(ranks: Any) -> str:
        return _next_group.name or hash_original(ranks)

    def split_source(pg: Any) -> Any:
        return None if _next_group.alone else split_source_original(pg)

    c10d._hash_ranks_to_str = hash_ranks
    c10d._get_split_source = split_source
    _installed = True
