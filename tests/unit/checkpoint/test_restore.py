"""Deltas put together, and checkpoints that turn out to be damaged when they are read."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headway.checkpoint.format.rank_file import BytesItem, TensorItem, write_part
from headway.checkpoint.store import layout as manifests
from headway.checkpoint.store.commit import Draft, commit
from headway.checkpoint.store.layout import IDS_SUFFIX, ROWS_SUFFIX
from headway.checkpoint.store.store import Checkpoint, Store
from headway.errors import CheckpointDamaged, HeadwayWarning
from headway.storage.place import FsspecPlace
from tests.support import code_of, has_code, lazy

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy("torch")
plans = lazy("headway.checkpoint.plan")
from_store = lazy("headway.checkpoint.restore:from_store")
StateTree = lazy("headway.checkpoint.state_tree:StateTree")
dcp = lazy("headway.checkpoint.format.dcp")

pytestmark = pytest.mark.timeout(60)
State = dict[str, "Tensor"]
PASSED_OVER = r"\[checkpoints-passed-over\]$"


def save(store: str | Path, step: int, state: State, **rows: list[int]) -> Checkpoint:
    """As a writer does it: of the tables in `rows` those alone, which makes it a delta."""
    collected = StateTree(state, {}, 0).collect()
    plan = plans.make_plan(collected)
    share = plan.local_items(collected)
    items: list[TensorItem | BytesItem] = []
    for item, tensor in zip(plan.tensors, share.tensors, strict=True):
        name = dcp.item_name(item.index)
        if name in rows:
            ids = torch.tensor(rows[name], dtype=torch.int64)
            items.append(BytesItem(name + IDS_SUFFIX, bytes(dcp.tensor_bytes(ids))))
            items.append(
                BytesItem(name + ROWS_SUFFIX, bytes(dcp.tensor_bytes(tensor[ids].contiguous())))
            )
        else:
            record = dcp.tensor_pickle(tensor.dtype, tensor.shape)
            items.append(TensorItem(name, record, dcp.tensor_bytes(tensor.contiguous())))
    for item, value in zip(plan.values, share.values, strict=True):
        items.append(BytesItem(dcp.item_name(item.index), value))
    kind, parent = ("delta", f"save-{step - 1}") if rows else ("full", None)
    with Draft(store, step, f"save-{step}", 1) as draft:
        write_part(draft.folder, 0, items)
        return commit(
            draft, lambda done: dcp.build_metadata(plan.metadata, done), kind=kind, parent=parent
        )


def change(state: State, **rows: list[int]) -> None:
    for name, ids in rows.items():
        state[name][ids] += 1.0


def restored(store: str | Path, state: State) -> tuple[State, int, tuple[str, ...]]:
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    told = from_store(str(store), StateTree(found, {}, 0), None)
    assert told is not None
    return found, told.step, told.notes


def equal(one: State, other: State) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_table_may_be_whole_in_some_deltas_and_rows_in_others(tmp_path: Path) -> None:
    state = {name: torch.rand(10, 3) for name in ("a", "b", "dense")}
    save(tmp_path, 1, state)
    told: list[dict[str, list[int]]] = [
        {"a": [0, 1], "b": [5]},
        {"a": [1, 2]},  # of b everything has changed
        {"b": [5, 6]},
        {"a": [3], "b": []},
    ]
    for step, rows in enumerate(told, 2):
        change(state, **{name: rows.get(name, list(range(10))) for name in state})
        save(tmp_path, step, state, **rows)
        found, at, notes = restored(tmp_path, state)
        assert (at, notes) == (step, ())
        assert equal(found, state), step


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_an_older_one_is_restored_and_it_is_said(tmp_path: Path) -> None:
    state = {"a": torch.rand(10, 3)}
    save(tmp_path, 1, state)
    first = {"a": state["a"].clone()}
    change(state, a=list(range(10)))
    full = save(tmp_path, 2, state)
    save(tmp_path, 3, state, a=[])
    item = next(item for item in full.manifest.files[1].items if item.name == "a")
    data = Path(full.path) / "__0_0.distcp"
    flip(data, item.data)
    with pytest.warns(HeadwayWarning, match=PASSED_OVER) as told:
        found, step, notes = restored(tmp_path, state)
    assert step == 1 and equal(found, first)
    assert [set(re.findall(r"step-\d+|__\d_0.distcp", note)) for note in notes] == [
        {"step-0000000003", "step-0000000002", "__0_0.distcp"},  # which it builds on
        {"step-0000000002", "__0_0.distcp"},
    ]
    assert {code_of(note) for note in notes} == {"checksum-mismatch"}
    assert all(name in str(told[0].message) for name in (*notes, "step-0000000001"))


def test_half_of_a_damaged_one_is_not_gone_on_with(tmp_path: Path) -> None:
    state = {"a": torch.rand(10, 3)}
    one = save(tmp_path, 1, state)
    item = next(item for item in one.manifest.files[1].items if item.name == "a")
    flip(Path(one.path) / "__0_0.distcp", item.data)
    with pytest.raises(CheckpointDamaged, check=has_code("no-good-checkpoint")) as raised:
        restored(tmp_path, state)
    (note,) = raised.value.fields["notes"]
    assert one.name in note and note.endswith("[checksum-mismatch]")


def test_bad_seals_alone_are_said_and_nothing_is_restored(tmp_path: Path) -> None:
    state = {"a": torch.rand(10, 3)}
    one = save(tmp_path, 1, state)
    (Path(one.path) / "manifest.json").write_bytes(b"{}")
    with pytest.warns(HeadwayWarning, match=rf"\[not-of-headway\].*{PASSED_OVER}"):
        assert from_store(str(tmp_path), StateTree(dict(state), {}, 0), None) is None


def test_rows_of_something_unknown_are_not_left_out(tmp_path: Path) -> None:
    state = {"a": torch.rand(10, 3)}
    save(tmp_path, 1, state)
    with Draft(tmp_path, 2, "save-2", 1) as draft:
        odd = [
            BytesItem("a[5, 0]" + IDS_SUFFIX, bytes(8)),
            BytesItem("a[5, 0]" + ROWS_SUFFIX, bytes(12)),
        ]
        write_part(draft.folder, 0, odd)
        collected = StateTree(state, {}, 0).collect()
        planned = plans.make_plan(collected).metadata
        content = dcp.build_metadata(planned, [_whole(tmp_path)])
        commit(draft, lambda _: content, kind="delta", parent="save-1")
    with pytest.warns(HeadwayWarning, match=rf"\[rows-not-planned\].*{PASSED_OVER}"):
        _, step, _ = restored(tmp_path, state)
    assert step == 1


def _whole(store: Path) -> manifests.RankPart:
    (one,) = Store(store).checkpoints()
    return manifests.RankPart(0, one.manifest.files[1])


def test_from_a_url_with_deltas_and_a_changed_byte() -> None:
    url = f"memory://{secrets.token_hex(8)}/store"
    state = {name: torch.rand(10, 3) for name in ("a", "dense")}
    save(url, 1, state)
    before = {name: tensor.clone() for name, tensor in state.items()}
    change(state, a=[1, 4])
    newest = save(url, 2, state, a=[1, 4])
    found, step, _ = restored(url, state)
    assert step == 2 and equal(found, state)
    there = FsspecPlace(newest.path)
    content = bytearray(there.read(newest.manifest.files[0].name))
    content[-1] ^= 1
    there.write(newest.manifest.files[0].name, bytes(content))
    with pytest.warns(HeadwayWarning, match=rf"\[checksum-mismatch\].*{PASSED_OVER}"):
        found, step, _ = restored(url, state)
    assert step == 1 and equal(found, before)
