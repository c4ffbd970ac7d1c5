"""Count the process groups that a job's setup creates, as any rank of any world, without a network.

print(audit(lambda: init_device_mesh("cuda", (4, 4, 4)), world_size=64))
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from headway.errors import UsageError
from headway.probe import stacks


@dataclass(frozen=True, slots=True)
class Site:
    """A line of code that creates groups, as seen by one rank."""

    where: str
    calls: int
    member: int  # calls that created a group with this rank


@dataclass(frozen=True, slots=True)
class Audit:
    """The groups that one rank created during the setup."""

    calls: int
    member: int
    useful: int  # distinct groups with this rank, without the default group
    sites: tuple[Site, ...]

    def __str__(self) -> str:
        lines = [f"{self.calls} calls for {self.useful} useful groups"]
        lines += [
            f"  {site.calls} calls, member of {site.member}: {site.where}" for site in self.sites
        ]
        return "\n".join(lines)


def audit(setup: Callable[[], Any], *, world_size: int, rank: int = 0) -> Audit:
    """Run `setup` as one rank of many with the fake backend, and count the groups it creates.

    Calls of init_process_group in `setup` do nothing: the fake job is already initialized.
    """
    if dist.is_initialized():
        raise UsageError(
            "an audit initializes its own process group: run it before init_process_group",
            code="process-group-initialized",
        )
    if not 0 <= rank < world_size:
        raise UsageError(
            f"a job of {world_size} ranks has no rank {rank}", code="rank-out-of-range"
        )
    if not hasattr(c10d, "_new_group_with_tag"):
        raise UsageError(
            f"audit() does not support torch {torch.__version__}",
            code="torch-not-supported",
        )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        with _record_groups() as creations:
            setup()
        return _summarize(creations)
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _record_groups() -> Iterator[list[tuple[str, Any]]]:
    """Record where each group is created, and its ranks; also for aliases of new_group."""
    creations: list[tuple[str, Any]] = []
    make, init = c10d._new_group_with_tag, c10d.init_process_group

    def recorded(*args: Any, **kwargs: Any) -> Any:
        group = make(*args, **kwargs)
        key = None
        if isinstance(group, c10d.ProcessGroup):
            key = (tuple(c10d.get_process_group_ranks(group)), c10d.get_backend(group))
        creations.append((stacks.calling_line(), key))
        return group

    c10d._new_group_with_tag = recorded
    c10d.init_process_group = dist.init_process_group = lambda *args, **kwargs: None
    try:
        yield creations
    finally:
        c10d._new_group_with_tag = make
        c10d.init_process_group = dist.init_process_group = init


def _summarize(creations: list[tuple[str, Any]]) -> Audit:
    places: dict[str, list[Any]] = {}
    for where, key in creations:
        places.setdefault(where, []).append(key)
    everyone = (tuple(range(dist.get_world_size())), dist.get_backend())
    sites = [Site(at, len(keys), len([k for k in keys if k])) for at, keys in places.items()]
    return Audit(
        calls=len(creations),
        member=sum(site.member for site in sites),
        useful=len({key for _, key in creations} - {None, everyone}),
        sites=tuple(sorted(sites, key=lambda site: -site.calls)),
    )
