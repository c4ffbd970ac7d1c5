"""Checkpoints of a store are DCP's own: torch reads them, at any world size, and so do we."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.format.rank_file import write_part
from headway.checkpoint.store.commit import Draft, commit
from headway.checkpoint.store.store import Checkpoint
from headway.errors import CheckpointDamaged, SaveFailed
from tests.checkpoint_items import planned_items
from tests.support import has_code, lazy
from tests.unit.checkpoint.store.small_saves import damaged

torch = lazy("torch")
torch_dcp = lazy("torch.distributed.checkpoint")
load = lazy("torch.distributed.checkpoint:load")
FsspecReader = lazy("torch.distributed.checkpoint._fsspec_filesystem:FsspecReader")
MetadataIndex = lazy("torch.distributed.checkpoint.metadata:MetadataIndex")
dcp = lazy("headway.checkpoint.format.dcp")
CheckpointReader = lazy("headway.checkpoint.format.checkpoint_reader:CheckpointReader")


def state(seed: int) -> dict[str, Any]:
    """As a training job has it; another content for another seed, zeros for 0."""
    torch.manual_seed(seed)
    noise = torch.randn(300, 100) * bool(seed)
    return {
        "model": {"weight": noise, "t": noise.T[:7].contiguous(), "half": noise.bfloat16()},
        "view": (torch.ones(10) * seed)[::2],
        "conj": torch.view_as_complex(noise[:, :2].contiguous()).conj(),
        "flags": noise > 0.5,
        "scalar": torch.tensor(float(seed)),
        "empty": torch.empty(0, 4),
        "epoch": seed,
        "names": ["a"] * seed,
    }


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


def planned(given: dict[str, Any]) -> tuple[Any, Any, Any]:
    planner = torch_dcp.DefaultSavePlanner()
    planner.set_up_planner(given, is_coordinator=True)
    (plan,), metadata = planner.create_global_plan([planner.create_local_plan()])
    return planner.finish_plan(plan), planner, metadata


def saved(store: str | Path, given: dict[str, Any], step: int = 7) -> Checkpoint:
    plan, planner, metadata = planned(given)
    with Draft(store, step, f"id{step}", 1) as draft:
        write_part(draft.folder, 0, planned_items(plan, planner))
        return commit(draft, lambda parts: dcp.build_metadata(metadata, parts))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "reader",
    [
        lambda path: torch_dcp.FileSystemReader(path),
        lambda path: CheckpointReader(path),
        lambda path: CheckpointReader(path, check=True),
        lambda path: CheckpointReader(path, mapped=False, check=True, threads=1),
    ],
    ids=["torch", "mapped", "checked", "read"],
)
def test_a_state_comes_back(reader: Any, tmp_path: Path) -> None:
    one = saved(tmp_path, state(3))
    loaded = state(0)
    load(loaded, storage_reader=reader(one.path))
    assert same(loaded, state(3))


@pytest.mark.parametrize(
    "reader",
    [lambda path: FsspecReader(path), lambda path: CheckpointReader(path)],
    ids=["torch", "headway"],
)
def test_from_a_url(reader: Any) -> None:
    one = saved(f"memory://{secrets.token_hex(8)}/store", state(3))
    loaded = state(0)
    load(loaded, storage_reader=reader(one.path))
    assert same(loaded, state(3))


def test_what_torch_has_written_is_read_as_torch_does(tmp_path: Path) -> None:
    torch_dcp.save(state(3), storage_writer=torch_dcp.FileSystemWriter(tmp_path))
    loaded = state(0)
    load(loaded, storage_reader=CheckpointReader(tmp_path, check=True))
    assert same(loaded, state(3))


def test_a_plan_and_its_parts_have_to_agree(tmp_path: Path) -> None:
    plan, planner, metadata = planned(state(3))
    items = planned_items(plan, planner)
    short = write_part(tmp_path, 0, items[:-1])
    with pytest.raises(SaveFailed, check=has_code("item-missing")):
        dcp.build_metadata(metadata, [short])
    with pytest.raises(SaveFailed, check=has_code("item-not-planned")):
        dcp.build_metadata(metadata, [write_part(tmp_path, 0, [*items, items[0]])])


def test_names_of_items() -> None:
    assert dcp.item_name(MetadataIndex("a.b")) == "a.b"
    assert dcp.item_name(MetadataIndex("a.b", (0, 0))) == "a.b"
    assert dcp.item_name(MetadataIndex("a.b", (0, 5))) == "a.b[0, 5]"


def test_a_changed_byte_is_found_on_the_way(tmp_path: Path) -> None:
    one = saved(tmp_path, state(3))
    path = Path(one.path) / "__0_0.distcp"
    item = next(item for item in one.manifest.files[1].items if item.name == "model.weight")
    content = bytearray(path.read_bytes())
    content[item.data + 1000] ^= 4
    path.write_bytes(content)
    error = damaged(lambda: load(state(0), storage_reader=CheckpointReader(one.path, check=True)))
    assert (error.code, error.fields["item"]) == ("checksum-mismatch", "model.weight")
    load(state(0), storage_reader=CheckpointReader(one.path))


@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_that_is_cut_is_found_on_the_way(mapped: bool, tmp_path: Path) -> None:
    one = saved(tmp_path, state(3))
    os.truncate(Path(one.path) / "__0_0.distcp", 5000)
    error = damaged(
        lambda: load(state(0), storage_reader=CheckpointReader(one.path, mapped=mapped))
    )
    assert error.code == "truncated"


def test_a_damaged_manifest_is_not_passed_over(tmp_path: Path) -> None:
    one = saved(tmp_path, state(3))
    (Path(one.path) / "manifest.json").write_bytes(b"{}")
    reader = CheckpointReader(one.path)
    with pytest.raises(CheckpointDamaged, check=has_code("not-of-headway")):
        reader._stored_items()


def test_bytes_are_those_of_the_tensor() -> None:
    tensor = torch.arange(4)
    view = dcp.tensor_bytes(tensor)
    tensor[0] = 77
    assert view[0] == 77, "no copy was made"
    with pytest.raises(ValueError):
        dcp.tensor_bytes(torch.zeros(4, 4).T)
