"""Ranks that save random states to a store, and ranks of another world that restore them."""

from __future__ import annotations

import base64
import os
import pickle
import traceback
import warnings
from typing import NoReturn

import torch
import torch.distributed as dist

from headway.checkpoint import plan as plans
from headway.checkpoint.engine.dense import HostTensors
from headway.checkpoint.format import dcp
from headway.checkpoint.format.rank_file import BytesItem, TensorItem, write_part
from headway.checkpoint.restore import from_store
from headway.checkpoint.state_tree import StateTree
from headway.checkpoint.store.commit import Draft, commit
from headway.errors import CheckpointMismatch, UsageError
from tests.random_states import ModuleSpec, StateSpec, build, contents, copied, difference

SAVED, OTHER = 1, 2  # seeds


def packed(specs: list[StateSpec]) -> str:
    """As text."""
    return base64.b64encode(pickle.dumps(specs)).decode()


def run(specs: str, folder: str, before: int, after: int) -> list[str]:
    """Save on so many ranks, restore on so many others; what went wrong, by rank."""
    given = pickle.loads(base64.b64decode(specs))
    torch.set_num_threads(1)
    for do, world in (("save", before), ("restore", after)):
        ranks = [os.fork() or _become(do, rank, world, given, folder) for rank in range(world)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        if any(codes):
            paths = [f"{folder}/{do}-{rank}.txt" for rank in range(world)]
            return [open(path).read() for path in paths if os.path.exists(path)]
    return []


def _become(do: str, rank: int, world: int, specs: list[StateSpec], folder: str) -> NoReturn:
    code = 1
    try:
        warnings.simplefilter("ignore")
        method = f"file://{folder}/meet-{do}"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
        for number, spec in enumerate(specs):
            store = f"{folder}/store-{number}"
            if do == "save":
                save(store, spec, rank, world)
            else:
                check(store, spec, rank, world)
        dist.destroy_process_group()
        code = 0
    except BaseException:
        with open(f"{folder}/{do}-{rank}.txt", "w") as file:
            traceback.print_exc(file=file)
    finally:
        os._exit(code)


def save(store: str, spec: StateSpec, rank: int, world: int) -> None:
    """As writers do it, without them; a state that cannot be saved raises on all ranks."""
    state = build(spec, SAVED, rank, world)
    try:
        collected = StateTree(state.parts, state.per_rank, rank).collect()
        plan = plans.make_plan(collected)
    except UsageError as error:
        assert error.code in ("names-collide", "keys-equal-as-text"), error
        return
    share = plan.local_items(collected)
    views = [torch.empty(t.shape, dtype=t.dtype) for t in share.tensors]
    HostTensors().begin(dict(enumerate(share.tensors)), views, set())
    items: list[TensorItem | BytesItem] = [
        TensorItem(
            dcp.item_name(item.index),
            dcp.tensor_pickle(view.dtype, view.shape),
            dcp.tensor_bytes(view),
        )
        for item, view in zip(plan.tensors, views, strict=True)
    ]
    items += [
        BytesItem(dcp.item_name(item.index), value)
        for item, value in zip(plan.values, share.values, strict=True)
    ]
    with Draft(store, 1, "save", world) as draft:
        write_part(draft.folder, rank, items, fsync=False)
        dist.barrier()
        if rank == 0:
            with open(f"{store}.world", "w") as file:
                file.write(str(world))
            commit(draft, lambda done: dcp.build_metadata(plan.metadata, done))
        dist.barrier()


def check(store: str, spec: StateSpec, rank: int, world: int) -> None:
    """Every rank has what it would have had in a run of this many ranks."""
    if not os.path.exists(store):
        return
    with open(f"{store}.world") as file:
        saved = int(file.read())
    state, expected = build(spec, OTHER, rank, world), build(spec, SAVED, rank, world)
    own = copied(contents(state, per_rank=True))
    try:
        from_store(store, StateTree(state.parts, state.per_rank, rank), None)
    except CheckpointMismatch:
        # An optimizer knows a tied parameter by its first name, which a stage may not have.
        assert spec.split and saved != world and any(map(has_tied, spec.modules.values()))
        return
    wanted = contents(expected, per_rank=True)
    if rank >= saved:  # it was not there
        wanted |= {name: own[name] for name in state.per_rank}
    found = difference(wanted, contents(state, per_rank=True))
    assert found is None, f"{found} of {spec}"


def has_tied(module: ModuleSpec) -> bool:
    return bool(module.shared) or any(has_tied(child) for _, child in module.children)
