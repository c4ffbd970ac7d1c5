"""Anchors of every kind, and recipes for them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.checkpoint.format.rank_file import write_part
from headway.checkpoint.store.cleanup import pin
from headway.checkpoint.store.commit import Draft, commit
from headway.checkpoint.store.store import Checkpoint
from headway.publish import recipe as recipes
from tests.checkpoint_items import planned_items

if TYPE_CHECKING:
    import torch


MODEL_MODULE = "tests.unit.publish.dlrm"


def state(model: torch.nn.Module, **parts: Any) -> dict[str, Any]:
    """What a training saves: the model, and an optimizer that nobody wants to load."""
    import torch

    optimizer = {f"{n}.sum": torch.ones_like(p) for n, p in model.named_parameters()}
    return {"model": model.state_dict(), "optimizer": optimizer, **parts}


def checkpoint(
    store: str | Path,
    given: Mapping[str, Any],
    step: int = 7,
    *,
    anchor: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """One of a store."""
    from torch.distributed.checkpoint import DefaultSavePlanner

    from headway.checkpoint.format import dcp

    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(given), is_coordinator=True)
    (plan,), metadata = planner.create_global_plan([planner.create_local_plan()])
    with Draft(store, step, uuid.uuid4().hex[:12], 1) as draft:
        write_part(draft.folder, 0, planned_items(planner.finish_plan(plan), planner))
        saved = commit(draft, lambda parts: dcp.build_metadata(metadata, parts), extra=extra)
    if anchor:
        pin(store, saved)
    return saved


def dcp_checkpoint(folder: Path, given: Mapping[str, Any]) -> Path:
    """One that torch has written."""
    from torch.distributed.checkpoint import FileSystemWriter, save

    save(dict(given), storage_writer=FileSystemWriter(folder))
    return folder


def recipe(folder: Path, **sections: str) -> recipes.Recipe:
    """One for the small model; a section given replaces that of the same name."""
    sections_by_name = {
        "model": f'factory = "{MODEL_MODULE}:build"',
        "golden": f'inputs = "{MODEL_MODULE}:golden"',
        "targets.safetensors": "",
    } | {name.replace("__", "."): text for name, text in sections.items()}
    path = folder / "recipe.toml"
    path.write_text("\n".join(f"[{name}]\n{text}" for name, text in sections_by_name.items()))
    return recipes.read_recipe(path)
