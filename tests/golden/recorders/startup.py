"""Files that a start stores for the next: sharding plans, batch schemas, positions in the data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from headway import __version__
from headway.startup.sharding import PlanCache, Shard, ShardingPlan, Table

TABLES = (
    Table("user", rows=1000, dim=16, lookups=20, state=4.0),
    Table("item", rows=10, dim=8, dtype="bfloat16", pooled=False, split="row"),
    Table("place", rows=6, dim=4, split="column"),
)


def _plan(files: Path) -> None:
    """A plan that no planner would make, which shows that it was read."""
    shards = (
        Shard("user", (0, 0), (1000, 16), 1),
        Shard("item", (0, 0), (9, 8), 0),
        Shard("item", (9, 0), (1, 8), 1),
        Shard("place", (0, 0), (6, 1), 1),
        Shard("place", (0, 1), (6, 3), 0),
    )
    tables = [asdict(table) for table in TABLES]
    request = {"planner": "headway", "tables": tables, "world_size": 2, "memory": None}
    request["versions"] = {"headway": __version__}
    PlanCache(files / "plans").write(request, ShardingPlan(TABLES, shards, 2).document())
    (files / "asked.json").write_text(json.dumps(request))


def _batch(files: Path) -> None:
    from headway.startup import recording
    from tests.golden.states import batches

    assert len(list(recording(batches(), files / "batch.json"))) == 2


def _position(files: Path) -> None:
    """After two batches, and at the end of the first epoch."""
    from tests.golden.states import positions

    for count in (2, 100):
        for kind, position in positions().items():
            for number, _ in enumerate(position, 1):
                position.trained()
                if number == count:
                    break
            path = files / f"{kind}-{count}.json"
            path.write_text(json.dumps(position.state_dict(), indent=1) + "\n")


def _guards(files: Path) -> None:
    """The guards in the folder of a precompile package."""
    from headway.compile.precompile.guards import DroppedGuard, PackageGuards, identity

    guards = PackageGuards()
    values = {"G['json']": json, "L['self'].write": json.dumps, "G['kind']": dict}
    guards.dropped = [
        DroppedGuard(name, "model", identity(value)) for name, value in values.items()
    ]
    guards.write(str(files))


TORCH = ("torch",)
RECORDERS = {
    "plan": (_plan, "a folder of sharding plans", ()),
    "batch": (_batch, "what the batches of a run look like", TORCH),
    "position": (_position, "positions in data of each kind", TORCH),
    "guards": (_guards, "the guards that torch drops from a package", ()),
}
