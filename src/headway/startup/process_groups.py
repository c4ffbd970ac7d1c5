"""Process groups by meaning: requested many times, created once, at first use, by members only.

    mesh = process_groups.partition({"dp": 4, "tp": 2})  # nothing is created yet
    dist.all_reduce(x, group=mesh["tp"].pg())  # this rank's group, created now by its members

`torch.distributed.new_group` needs every rank for every group; here members create theirs alone.
torch names a group that only its members create by their ranks and by how many groups this rank has
created: where ranks have created different groups before, the names differ and the members wait for
each other forever. Where the default group is bound to a device, torch would split it, which needs
every rank of the job. torch offers no argument for either, so both functions are replaced.
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
    """Some ranks that talk to each other, and the process group of theirs once it is needed."""

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
        self.ranks = ranks  # in order; none where a split leaves this rank out
        self.backend = backend
        self.purpose = purpose
        self.parts = parts  # all groups of the split that this one is of
        self.timeout = timeout
        self.options = options
        self._lock = threading.Lock()  # one each: another group may wait for other ranks
        self._default = weakref.ref(c10d._get_default_group())
        self._made: Any = None
        self._left_out = False  # of the split, in which this rank took part
        self._times = 0

    def __repr__(self) -> str:
        made = "made" if self.made else "not made"
        return f"<Group {self.purpose or 'unnamed'} {list(self.ranks)} {self.backend}, {made}>"

    @property
    def member(self) -> bool:
        """Whether this rank is in it."""
        return dist.get_rank() in self.ranks

    @property
    def made(self) -> bool:
        """Whether its process group is there."""
        return self._made is not None and self._made in c10d._world.pg_map

    def pg(self) -> dist.ProcessGroup:
        """The process group. The first call makes it: all members must come to theirs."""
        if not self.member:
            raise UsageError(
                f"rank {dist.get_rank()} is not in {self!r}; ask `.member` before `.pg()`",
                code="rank-not-in-group",
            )
        with self._lock:
            if not self.made:
                self._make(together=False)
            made: dist.ProcessGroup = self._made
            return made

    def destroy(self) -> None:
        """Take it down; the next use makes it anew. The default group stays."""
        with self._lock:
            if self.made and self._made is not self._default():
                dist.destroy_process_group(self._made)
            self._made, self._left_out = None, False

    def _ensure(self) -> None:
        with self._lock:
            if not self.made and not self._left_out:
                self._make(together=True)

    def _make(self, *, together: bool) -> None:
        default = c10d._get_default_group()
        if self._default() is not default:
            raise UsageError(
                f"{self!r} is of a job that was taken down: ask for it again", code="group-outdated"
            )
        usual = self.backend == _default_backend()
        if len(self.ranks) == dist.get_world_size() and usual and not self._special:
            self._made = default
        elif together and self.parts and usual and _splits(default):
            self._times += 1
            self._split(default)
        elif self.member:
            self._times += 1  # the store still has what the last one of this name has left
            self._alone()

    def _split(self, default: Any) -> None:
        """All ranks of the job make all parts at once."""
        with next_group_named(self._name(), alone=False):
            self._made = dist.split_group(
                default,
                [list(part) for part in self.parts],
                timeout=self.timeout,
                pg_options=self.options,
                group_desc=self.purpose or None,
            )
        self._left_out = self._made is None

    def _alone(self) -> None:
        """Its members make it, and no other rank."""
        with next_group_named(self._name(), alone=True):
            self._made = dist.new_group(
                list(self.ranks),
                timeout=self.timeout,
                backend=self.backend,
                pg_options=self.options,
                use_local_synchronization=True,
                group_desc=self.purpose or None,
            )

    @property
    def _special(self) -> bool:
        return self.timeout is not None or self.options is not None

    def _name(self) -> str:
        """The same on every member, whatever else each of them has made before."""
        ranks = self.ranks or self.parts[0]
        told = f"{ranks} {self.backend} {self.purpose} {self._times}"
        return f"headway-{hashlib.sha256(told.encode()).hexdigest()[:32]}"


class _GroupRegistry:
    """The groups of a job, for as long as its default group lives."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.default: Any = None
        self.groups: dict[tuple[Ranks | tuple[Ranks, ...], str, str], Group] = {}

    def one(self, asked: Group) -> Group:
        """The group of that meaning: the one that is known, or this one from now on."""
        default = c10d._get_default_group()
        with self.lock:
            if self.default is None or self.default() is not default:
                self.default = weakref.ref(default)  # after a new start nothing of the old is left
                self.groups.clear()
            which = asked.ranks or asked.parts  # the latter where a split leaves this rank out
            key = (which, asked.backend, asked.purpose)
            found = self.groups.setdefault(key, asked)
        if (found.timeout, found.options) != (asked.timeout, asked.options):
            raise UsageError(
                f"{found!r} was asked for with another timeout or other options: "
                "give this one a purpose of its own",
                code="group-options-differ",
            )
        found.parts = found.parts or asked.parts
        return found


_registry = _GroupRegistry()


def group(
    ranks: Iterable[int],
    backend: str | None = None,
    purpose: str = "",
    *,
    timeout: timedelta | None = None,
    options: Any = None,
) -> Group:
    """The group of these ranks for this purpose; nothing is made before `.pg()`.

    All ranks of the job with its own backend are the default group, which is there already.
    """
    return _registry.one(
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
    """This rank's group of several that share no rank; one without ranks where it is in none."""
    checked = tuple(_check_ranks(part) for part in parts)
    times = Counter(chain.from_iterable(checked))
    twice = sorted(rank for rank, count in times.items() if count > 1)
    if twice:
        raise UsageError(
            f"rank {twice[0]} is in two parts of the split {[list(part) for part in checked]}",
            code="rank-twice",
        )
    if not checked:
        raise UsageError("there are no parts of the split []", code="split-without-parts")
    mine = next((part for part in checked if dist.get_rank() in part), ())
    return _registry.one(
        Group(
            mine,
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
    """This rank's group along each dimension of a mesh of all ranks, the last one the closest."""
    sizes = list(shape.values())
    world = dist.get_world_size()
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise UsageError(
            f"a shape has a size of 1 or more for each name, not {dict(shape)}",
            code="shape-invalid",
        )
    if math.prod(sizes) != world:
        raise UsageError(
            f"{dict(shape)} is {math.prod(sizes)} ranks, but the job has {world}",
            code="shape-world-size-mismatch",
        )
    return {
        name: split(_along(sizes, place), backend, name, timeout=timeout)
        for place, name in enumerate(shape)
    }


def ensure(*groups: Group) -> None:
    """Make several groups now. Every rank of the job calls this at the same point.

    One call of ncclCommSplit makes all parts of a split where the default group is bound to a
    device; else each rank makes its own, and all ranks in one order, so that none waits for ever.
    """
    for one in sorted(
        set(groups), key=lambda one: (one.purpose, one.backend, one.parts, one.ranks)
    ):
        one._ensure()


def destroy() -> None:
    """Take down every group that was made here; they can be used, and so made, again."""
    for one in list(_registry.groups.values()):
        one.destroy()


def _check_ranks(ranks: Iterable[int]) -> Ranks:
    world = dist.get_world_size()
    given = list(ranks)
    try:
        found = sorted(operator.index(rank) for rank in given)
    except TypeError:
        raise UsageError(
            f"ranks are whole numbers, not {given!r}", code="rank-not-an-integer"
        ) from None
    if not found or found[0] < 0 or found[-1] >= world:
        raise UsageError(
            f"a group has ranks from 0 to {world - 1}, not {given!r}", code="rank-out-of-range"
        )
    if len(set(found)) != len(found):
        raise UsageError(f"a rank is twice in {given!r}", code="rank-twice")
    return tuple(found)


def _along(sizes: Sequence[int], place: int) -> list[list[int]]:
    """The ranks of each line of a mesh along one dimension."""
    stride = math.prod(sizes[place + 1 :])
    outer = range(math.prod(sizes[:place]))
    block = stride * sizes[place]
    return [
        [first * block + offset + step * stride for step in range(sizes[place])]
        for first, offset in product(outer, range(stride))
    ]


def _default_backend() -> str:
    return str(c10d._world.pg_map[c10d._get_default_group()][0])


def _splits(default: Any) -> bool:
    """Whether one call can split the default group: its communicator must be there already."""
    device = getattr(default, "bound_device_id", None)
    if device is None or not torch.accelerator.is_available():
        return False
    return bool(default._get_backend(device).supports_splitting)


class _NextGroup(threading.local):
    """What this thread is about to make."""

    name: str | None = None
    alone = False  # without the ranks that are no members


_next_group = _NextGroup()
_installed = False


@contextlib.contextmanager
def next_group_named(name: str, *, alone: bool) -> Iterator[None]:
    """What this thread makes meanwhile has this name; other threads are not touched."""
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
    hashed = getattr(c10d, "_hash_ranks_to_str", None)
    source = getattr(c10d, "_get_split_source", None)
    if hashed is None or source is None:
        raise UsageError(
            "this torch names its process groups otherwise: use new_group instead",
            code="torch-not-supported",
        )

    def hash_ranks(ranks: Any) -> str:
        return _next_group.name or hashed(ranks)

    def split_source(pg: Any) -> Any:
        return None if _next_group.alone else source(pg)

    c10d._hash_ranks_to_str = hash_ranks
    c10d._get_split_source = split_source
    _installed = True
