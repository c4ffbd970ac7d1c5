"""Items that are compressed: what lies on the disk, what torch reads of it, and what is damaged."""

from __future__ import annotations

import io
import mmap
import os
import secrets
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from headway.checkpoint.format import checkpoint_reader
from headway.checkpoint.format.rank_file import BytesItem, TensorItem, write_part
from headway.checkpoint.store import layout as manifests
from headway.checkpoint.store.commit import Draft, commit
from headway.checkpoint.store.layout import File, Item, RankPart
from headway.checkpoint.store.store import Checkpoint, Store
from headway.errors import CheckpointDamaged, MissingExtra
from headway.storage import codecs
from headway.storage.codecs import UnreadableData
from headway.storage.place import open_place
from tests.checkpoint_items import planned_items
from tests.support import code_of, has_code, lazy
from tests.unit.checkpoint.format.test_rank_file import ITEMS
from tests.unit.checkpoint.store.small_saves import damaged

zstandard = pytest.importorskip("zstandard")
torch = lazy("torch")
load = lazy("torch.distributed.checkpoint.state_dict_loader:load")
dcp = lazy("headway.checkpoint.format.dcp")
CheckpointReader = lazy("headway.checkpoint.format.checkpoint_reader:CheckpointReader")
delta = lazy("headway.checkpoint.format.delta")
pytestmark = pytest.mark.timeout(60)


def saved(store: str | Path, state: dict[str, torch.Tensor]) -> Checkpoint:
    planner = torch.distributed.checkpoint.DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    (plan,), metadata = planner.create_global_plan([planner.create_local_plan()])
    with Draft(store, 1, "id", 1) as draft:
        items = planned_items(planner.finish_plan(plan), planner)
        write_part(draft.folder, 0, items, compress=True)
        return commit(draft, lambda parts: dcp.build_metadata(metadata, parts))


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "zeros": torch.zeros(3000, 1000),
        "half": torch.randn(70, 3).bfloat16(),
        "none": torch.empty(0, 5),
        "one": torch.tensor(7),
    }


def emptied() -> dict[str, torch.Tensor]:
    return {name: torch.full_like(tensor, 3) for name, tensor in state().items()}


@pytest.fixture(params=["folder", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "folder" else f"memory://{secrets.token_hex(8)}/s"


def test_checksums_are_of_what_is_on_the_disk(folder: str) -> None:
    part = write_part(folder, 3, iter(ITEMS), compress=True)
    where = open_place(folder)
    stored = where.read("__3_0.distcp")
    assert (part.file.size, part.file.crc32) == (len(stored), zlib.crc32(stored))
    assert manifests.part_from_bytes(where.read("part-3.json")) == part
    for given, item in zip(ITEMS, part.file.items, strict=True):
        frame = stored[item.offset : item.offset + item.length]
        assert (item.data, item.size) == (item.offset, item.length)
        assert item.crc32 == zlib.crc32(frame)
        assert checkpoint_reader.item_content(memoryview(frame), item) == bytes(given.data)
        assert item.raw_size == len(given.data)


def test_a_rate_is_of_the_bytes_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced: list[int] = []
    monkeypatch.setattr("headway.storage.output.RateLimit.wait", lambda _, n: paced.append(n))
    items = [TensorItem("zeros", b"", memoryview(bytes(20 << 20)))]
    part = write_part(tmp_path, 0, items, rate=1e6, compress=True)
    assert sum(paced) == part.file.size < 1 << 20


def test_the_frame_holds_what_torch_would_have_written(tmp_path: Path) -> None:
    given = torch.arange(300_000).view(300, 1000)
    item = TensorItem("t", dcp.tensor_pickle(given.dtype, given.shape), dcp.tensor_bytes(given))
    part = write_part(tmp_path, 0, [item], compress=True)
    with zstandard.ZstdDecompressor().stream_reader((tmp_path / part.file.name).open("rb")) as out:
        assert torch.equal(torch.load(io.BytesIO(out.read())), given)


PLAIN = """
import sys
import torch
import torch.distributed.checkpoint as dcp

state = torch.load(sys.argv[2])
dcp.load(state, checkpoint_id=sys.argv[1], no_dist=True)
assert "headway" not in sys.modules
torch.save(state, sys.argv[2])
"""


def test_torch_alone_reads_it(tmp_path: Path) -> None:
    one = saved(tmp_path / "store", state())
    torch.save(emptied(), tmp_path / "state.pt")
    command = [sys.executable, "-c", PLAIN, one.path, str(tmp_path / "state.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    for name, tensor in torch.load(tmp_path / "state.pt").items():
        assert torch.equal(tensor, state()[name]), name


@pytest.mark.parametrize("mapped", [True, False])
def test_the_reader_reads_it(folder: str, mapped: bool) -> None:
    one = saved(folder, state())
    found = emptied()
    strided = torch.zeros(1000, 3000).t()
    found["zeros"] = strided.fill_(3)  # no room for its bytes in their order
    load(found, storage_reader=CheckpointReader(one.path, check=True, mapped=mapped), no_dist=True)
    for name, tensor in found.items():
        assert torch.equal(tensor, state()[name]), name
    assert found["zeros"].data_ptr() == strided.data_ptr()


def test_what_is_unpacked_into_a_tensor_is_a_change_of_it(tmp_path: Path) -> None:
    given = {"t": torch.rand(100), "c": torch.view_as_complex(torch.rand(100, 2))}
    one = saved(tmp_path, given)
    conjugate = torch.zeros(100, dtype=torch.complex64).conj()
    found = {"t": torch.zeros(100), "c": conjugate}
    before = found["t"]._version
    load(found, storage_reader=CheckpointReader(one.path, check=True), no_dist=True)
    assert torch.equal(found["t"], given["t"]) and torch.equal(conjugate, given["c"])
    assert found["t"]._version > before, "a table that is tracked is saved as a whole after it"


def test_a_part_of_a_tensor_is_read(tmp_path: Path) -> None:
    """As by one of several ranks: it has less than the whole."""
    one = saved(tmp_path, state())
    reader = CheckpointReader(one.path, check=True)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    planner = torch.distributed.checkpoint.DefaultLoadPlanner()
    found = {"half": torch.zeros(70, 3).bfloat16()}
    planner.set_up_planner(found, metadata, True)
    (item,) = planner.create_local_plan().items
    plan = torch.distributed.checkpoint.LoadPlan(
        [
            type(item)(
                **{
                    **vars(item),
                    "dest_offsets": torch.Size([2, 0]),
                    "storage_offsets": torch.Size([5, 0]),
                    "lengths": torch.Size([10, 3]),
                }
            )
        ]
    )
    reader.read_data(plan, planner)
    assert torch.equal(found["half"][2:12], state()["half"][5:15])
    assert not found["half"][12:].any()


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    one = saved(tmp_path, state())
    (file,) = [file for file in one.manifest.files if file.items]
    item = next(item for item in file.items if item.name == "half")
    path = Path(one.path, file.name)
    content = bytearray(path.read_bytes())
    content[item.data + item.size // 2] ^= 1
    path.write_bytes(content)
    assert code_of(Store(tmp_path).verify(one, "full")) == "checksum-mismatch"
    reader = CheckpointReader(one.path, check=True)
    error = damaged(lambda: load(emptied(), storage_reader=reader, no_dist=True))
    assert (error.code, error.fields["item"]) == ("checksum-mismatch", "half")


@pytest.mark.parametrize(
    ("content", "code"), [(b"no frame at all", "not-decompressible"), (b"", "truncated")]
)
def test_what_is_no_frame_is_damaged(content: bytes, code: str) -> None:
    item = Item("t", 0, len(content), 0, len(content), 0, (3, 10))
    with pytest.raises(UnreadableData, check=has_code(code)):
        checkpoint_reader.item_content(memoryview(content), item)
    with pytest.raises(CheckpointDamaged, check=has_code(code)) as raised:
        delta._decompressed("here", memoryview(content), item)
    assert raised.value.fields["item"] == "t"


def test_a_frame_that_ends_early_is_damaged() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(range(100)))
    room = memoryview(bytearray(90))
    codecs.decompress_into(memoryview(frame), 10, room)
    assert bytes(room) == bytes(range(10, 100))
    with pytest.raises(UnreadableData, check=has_code("truncated")):
        codecs.decompress_into(memoryview(frame), 11, room)


def test_a_manifest_tells_which_are_compressed() -> None:
    items = (Item("a", 1, 2, 3, 4, 5), Item("b", 1, 2, 3, 4, 5, (6, 7)))
    part = RankPart(0, File(name="f", size=9, crc32=1, items=items))
    content = manifests.part_to_bytes(part)
    assert b'[["a",1,2,3,4,5],["b",1,2,3,4,5,6,7]]' in content
    assert manifests.part_from_bytes(content) == part
    one_more = RankPart(0, File(name="f", size=9, crc32=1, items=(Item("b", 1, 2, 3, 4, 5, (6,)),)))  # type: ignore[arg-type]
    with pytest.raises(UnreadableData, check=has_code("not-a-part")):
        manifests.part_from_bytes(manifests.part_to_bytes(one_more))


def test_memory_can_be_closed_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *args: 1 // 0)
    memory = mmap.mmap(-1, 9 << 20)
    memory.write(os.urandom(9 << 20))
    view = memoryview(memory)
    with pytest.raises(ZeroDivisionError) as raised:
        write_part(tmp_path, 0, [TensorItem("large", b"", view)], compress=True)
    view.release()
    memory.close()
    assert raised.value is not None, "what was raised still knows where"


def test_without_the_package_it_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra) as raised:
        write_part(tmp_path, 0, [BytesItem("a", b"")], compress=True)
    assert raised.value.fields == {"package": "zstandard", "extra": "zstd"}
    assert os.listdir(tmp_path) == []
