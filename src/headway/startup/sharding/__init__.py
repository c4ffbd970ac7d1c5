"""Sharded tables without a collective per table: one plan, broadcast once, used on each rank.

tables = [sharding.Table("user", rows=10_000_000, dim=128, lookups=20), ...]
plan = sharding.share(lambda: sharding.plan(tables, world_size), tables)
weights = sharding.sharded_tensors(plan, local)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.startup.sharding.broadcast import share as share
    from headway.startup.sharding.plan_cache import PlanCache as PlanCache
    from headway.startup.sharding.planner import Balance as Balance
    from headway.startup.sharding.planner import balance as balance
    from headway.startup.sharding.planner import plan as plan
    from headway.startup.sharding.sharding_plan import Shard as Shard
    from headway.startup.sharding.sharding_plan import ShardingPlan as ShardingPlan
    from headway.startup.sharding.sharding_plan import Table as Table
    from headway.startup.sharding.tensors import dtensors as dtensors
    from headway.startup.sharding.tensors import metadata as metadata
    from headway.startup.sharding.tensors import sharded_tensors as sharded_tensors

# Planning does not import torch.
_HOMES = {
    "Balance": "planner",
    "PlanCache": "plan_cache",
    "Shard": "sharding_plan",
    "ShardingPlan": "sharding_plan",
    "Table": "sharding_plan",
    "balance": "planner",
    "dtensors": "tensors",
    "metadata": "tensors",
    "plan": "planner",
    "share": "broadcast",
    "sharded_tensors": "tensors",
}
__all__ = [
    "Balance",
    "PlanCache",
    "Shard",
    "ShardingPlan",
    "Table",
    "balance",
    "dtensors",
    "metadata",
    "plan",
    "sharded_tensors",
    "share",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headway.startup.sharding' has no attribute {name!r}")
    return getattr(import_module(f"headway.startup.sharding.{_HOMES[name]}"), name)
