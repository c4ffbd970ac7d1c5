"""Saves of which the later ones hold only the rows of tables that have changed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.checkpoint import DefaultSavePlanner

from headway.checkpoint.format import dcp
from headway.checkpoint.format.rank_file import BytesItem, TensorItem, write_part
from headway.checkpoint.store.cleanup import pin
from headway.checkpoint.store.commit import Draft, commit
from headway.checkpoint.store.layout import IDS_SUFFIX, ROWS_SUFFIX
from tests.checkpoint_items import planned_items
from tests.unit.publish.anchors import state
from tests.unit.publish.dlrm import trained

TABLE = "tables.0.weight"


def three_saves(store: Path) -> dict[str, torch.Tensor]:
    """A full save and two deltas; the weights as they are in the end."""
    model = trained()
    parent = None
    for number in range(3):
        ids = torch.tensor([number, 10 + number])
        if number:
            model.tables[0].weight.data[ids] += 1
            model.top[2].bias.data += 1
        parent = _save(store, state(model), number, ids, parent)
    return model.state_dict()


def _save(
    store: Path, given: dict[str, object], number: int, ids: torch.Tensor, parent: str | None
) -> str:
    planner = DefaultSavePlanner()
    planner.set_up_planner(given, is_coordinator=True)
    (plan,), metadata = planner.create_global_plan([planner.create_local_plan()])
    items: list[TensorItem | BytesItem] = []
    for item in planned_items(planner.finish_plan(plan), planner):
        if parent is None or TABLE not in item.name:
            items.append(item)
            continue
        part, _, name = item.name.partition(".")
        rows = given[part][name][ids].contiguous()  # type: ignore[index]
        items += (
            [
                BytesItem(item.name + IDS_SUFFIX, dcp.tensor_bytes(ids)),
                BytesItem(item.name + ROWS_SUFFIX, dcp.tensor_bytes(rows)),
            ]
            if name == TABLE
            else [item]
        )
    save_id = f"save{number}"
    with Draft(store, number, save_id, 1) as draft:
        write_part(draft.folder, 0, items)
        kind = "full" if parent is None else "delta"
        saved = commit(
            draft, lambda parts: dcp.build_metadata(metadata, parts), kind=kind, parent=parent
        )
    if number == 2:
        pin(store, saved)
    return save_id
