"""Broadcast a plan from rank 0, and check on every rank that it fits what that rank has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from headway.errors import HeadwayError, UsageError
from headway.startup.sharding.sharding_plan import (
    ShardingPlan,
    Table,
    canonical_json,
    difference,
    gc_paused,
)

HEADER = 40  # bytes: length and hash of the content
BLOCK = 1 << 16  # bytes of the first broadcast, enough for the plan of some hundred tables


def share(
    plan: ShardingPlan | Callable[[], ShardingPlan] | None,
    tables: Sequence[Table] | None = None,
    *,
    group: Any = None,
    timeout: timedelta | None = None,
) -> ShardingPlan:
    """Broadcast rank 0's plan to every rank of the group.

    A function is called on rank 0 only. Plans or tables that other ranks pass are compared with the
    received plan; if any rank disagrees, all ranks raise an error with the difference.
    """
    plans: list[ShardingPlan] = []

    def make() -> dict[str, Any]:
        own_plan = plan() if callable(plan) else plan
        if own_plan is None:
            raise UsageError("rank 0 has no plan to share", code="plan-missing")
        if own_plan.world_size != dist.get_world_size(group):
            raise UsageError(
                f"the plan is for {own_plan.world_size} ranks, but the group has "
                f"{dist.get_world_size(group)}",
                code="plan-world-size-mismatch",
            )
        plans.append(own_plan)
        return own_plan.document()

    def check(document: Any) -> str:
        if not plans:
            plans.append(ShardingPlan.read(document, tables or ()))
        if isinstance(plan, ShardingPlan) and plan.hash != plans[0].hash:
            return difference(plan.tables, plans[0].tables) or _shard_difference(plan, plans[0])
        return difference(tables, plans[0].tables) if tables is not None else ""

    with gc_paused():
        broadcast_and_check(make, check, group=group, timeout=timeout)
    return plans[0]


def broadcast_and_check(
    make: Callable[[], Any],
    check: Callable[[Any], str],
    *,
    group: Any = None,
    timeout: timedelta | None = None,
) -> Any:
    """Return rank 0's `make()` on all ranks, or raise on all ranks if any `check` objects."""
    rank = dist.get_rank(group)
    if rank < 0:
        raise UsageError(
            f"rank {dist.get_rank()} is not in the group of the plan",
            code="rank-not-in-group",
        )
    content, failure = b"", None
    if rank == 0:
        try:
            content = canonical_json({"content": make()})
        except Exception as error:  # the other ranks wait for an answer
            failure = error
            fields = {"failure": str(error) or repr(error), "usage": isinstance(error, UsageError)}
            code = error.code if isinstance(error, HeadwayError) else ""
            content = canonical_json({**fields, "code": code})
    received = json.loads(_broadcast(content, rank, group, timeout))
    if failure is not None:
        raise failure
    if "failure" in received:
        kind = UsageError if received["usage"] else HeadwayError
        text = f"rank 0 could not make the plan: {received['failure']}"
        raise kind(text, code=received["code"] or "plan-not-made")
    try:
        answer = check(received["content"])
    except Exception as error:
        answer = str(error) or repr(error)
    _all_agree(answer, rank, group, timeout)
    return received["content"]


def _broadcast(content: bytes, rank: int, group: Any, timeout: timedelta | None) -> bytes:
    device = _device(group)
    header = len(content).to_bytes(8, "big") + hashlib.sha256(content).digest()
    start = (header + content)[:BLOCK].ljust(BLOCK, b"\0") if rank == 0 else bytes(BLOCK)
    start = _broadcast_bytes(start, device, group, timeout)
    length = int.from_bytes(start[:8], "big")
    received = start[HEADER : HEADER + length]
    if len(received) < length:
        rest = content[len(received) :] if rank == 0 else bytes(length - len(received))
        received += _broadcast_bytes(rest, device, group, timeout)
    if hashlib.sha256(received).digest() != start[8:HEADER]:
        raise HeadwayError(
            "the plan from rank 0 was damaged in transfer", code="plan-transfer-damaged"
        )
    return received


def _broadcast_bytes(content: bytes, device: Any, group: Any, timeout: timedelta | None) -> bytes:
    buffer = bytearray(content)
    here = torch.frombuffer(buffer, dtype=torch.uint8)
    there = here.to(device)
    _wait(lambda: dist.broadcast(there, group_src=0, group=group, async_op=True), timeout)
    here.copy_(there)
    return bytes(buffer)


def _all_agree(answer: str, rank: int, group: Any, timeout: timedelta | None) -> None:
    has_objection = torch.tensor([int(bool(answer))], device=_device(group))
    _wait(lambda: dist.all_reduce(has_objection, dist.ReduceOp.MAX, group, async_op=True), timeout)
    if not int(has_objection.item()):
        return
    answers: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(answers, answer, group=group)
    first = next(rank for rank, answer in enumerate(answers) if answer)
    raise HeadwayError(
        f"rank {first} disagrees with the plan of rank 0: {answers[first]}",
        code="plans-disagree",
        rank=first,
    )


def _wait(start: Callable[[], Any], timeout: timedelta | None) -> None:
    try:
        work = start()
        if timeout is None:
            work.wait()
        else:
            work.wait(timeout)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise HeadwayError(
            f"the ranks could not share the plan: {first}", code="plan-not-shared"
        ) from error


def _device(group: Any) -> Any:
    """The device for tensors of this group's collectives."""
    backends = str(dist.get_backend_config(group))
    if "cpu:" in backends or "gloo" in backends:
        return torch.device("cpu")
    return torch.accelerator.current_accelerator()


def _shard_difference(here: ShardingPlan, there: ShardingPlan) -> str:
    if here.world_size != there.world_size:
        return f"it is for {here.world_size} ranks here and {there.world_size} in the plan"
    for table in here.tables:
        if here.of(table.name) != there.of(table.name):
            return f"table {table.name!r} is sharded differently here"
    return "the order of the shards"
