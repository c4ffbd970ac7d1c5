"""Read the files that a start stored for the next one."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headway.startup.sharding import PlanCache, ShardingPlan, Table

SEALED = ("plan",)


def read(name: str, files: Path) -> Any:
    return {"plan": _plan, "batch": _batch, "position": _position, "guards": _guards}[name](files)


def _asked(files: Path) -> Any:
    return json.loads((files / "asked.json").read_text())


def _plan(files: Path) -> Any:
    request = _asked(files)
    document = PlanCache(files / "plans").read(request)
    plan = ShardingPlan.read(document, [Table(**fields) for fields in request["tables"]])
    return {
        "hash": plan.hash,
        "tables": [asdict(table) for table in plan.tables],
        "shards": plan.shards,
        "world_size": plan.world_size,
    }


def _batch(files: Path) -> Any:
    import torch

    from headway.startup import Schema, fast_batch
    from tests.golden.states import batches

    schema = Schema.from_json((files / "batch.json").read_text())
    batch = fast_batch(recorded=files / "batch.json")
    tensors = [*batch[:3], batch.names["labels"]]
    assert type(batch).__name__ == "Batch" and batch.names["split"] == "train"
    assert not schema.differences(batches()[0])
    return {
        "schema": asdict(schema),
        "made": [[str(item.dtype), list(item.shape), item.requires_grad] for item in tensors],
        "rows": torch.diff(batch.offsets).sum().item(),
    }


def _position(files: Path) -> Any:
    """The next batches, in this epoch and the following one."""
    from tests.golden.states import positions

    results = {}
    for path in sorted(files.glob("*.json")):
        position = positions()[path.stem.partition("-")[0]]
        position.load_state_dict(json.loads(path.read_text()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is said that batches are skipped
            epochs = [[list(map(int, batch)) for batch in position] for _ in range(2)]
        results[path.stem] = {"epoch": position.epoch, "batches": epochs}
    return results


def _guards(files: Path) -> Any:
    from headway.compile.precompile import guards

    return [
        {"source": guard.source, "module": guard.module, "what": guard.identity}
        for guard in guards.read_guards(str(files))
    ]


def sealed(files: Path) -> list[Path]:
    return list((files / "plans").iterdir())


def refused(files: Path) -> bool:
    """Whether the cached plan is refused."""
    return PlanCache(files / "plans").read(_asked(files)) is None
