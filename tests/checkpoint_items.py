"""The items that a rank writes for a DCP plan, for tests without a Checkpointer."""

from __future__ import annotations

from typing import Any

from headway.checkpoint.format.rank_file import BytesItem, TensorItem


def planned_items(plan: Any, planner: Any) -> list[TensorItem | BytesItem]:
    """In the order of the plan; tensors are copied only if necessary."""
    from torch.distributed.checkpoint.planner import WriteItemType

    from headway.checkpoint.format.dcp import item_name, tensor_bytes, tensor_pickle

    items: list[TensorItem | BytesItem] = []
    for item in plan.items:
        name = item_name(item.index)
        data: Any = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            items.append(BytesItem(name, data.getvalue()))
            continue
        tensor = data.detach().resolve_conj().resolve_neg().cpu().contiguous()
        record = tensor_pickle(tensor.dtype, tensor.shape)
        items.append(TensorItem(name, record, tensor_bytes(tensor)))
    return items
