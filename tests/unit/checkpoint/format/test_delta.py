"""Rows of a delta on tensors that are cut in one way in the checkpoint, and in another one now."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headway.checkpoint.format.rank_file import BytesItem, TensorItem, write_part
from headway.checkpoint.store.layout import (
    IDS_SUFFIX,
    ROWS_SUFFIX,
    Manifest,
    RankPart,
    delta_tables,
)
from headway.errors import CheckpointDamaged, SaveFailed
from tests.support import has_code, lazy

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        MetadataIndex,
        TensorStorageMetadata,
    )


torch = lazy("torch")
stored = lazy("torch.distributed.checkpoint.metadata")
dcp = lazy("headway.checkpoint.format.dcp")
CheckpointReader = lazy("headway.checkpoint.format.checkpoint_reader:CheckpointReader")
apply_rows = lazy("headway.checkpoint.format.delta:apply_rows")

SHAPE = (40, 6)
Rows = list[tuple["ChunkStorageMetadata", list[int] | None]]  # None: all of the chunk


class Cut:
    """A tensor in pieces of which some are here, as DCP asks a DTensor for them."""

    def __init__(self, whole: Tensor, chunks: list[ChunkStorageMetadata]) -> None:
        self.chunks = chunks
        self.pieces = {chunk.offsets: piece(whole, chunk).clone() for chunk in chunks}

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return self.chunks

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return self.pieces[index.offset]


def piece(whole: Tensor, chunk: ChunkStorageMetadata) -> Tensor:
    for dim, (offset, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
        whole = whole.narrow(dim, offset, size)
    return whole


def cut(draw: random.Random, rows: int, columns: int) -> list[ChunkStorageMetadata]:
    """So many pieces of uneven size along each side."""
    sides = []
    for size, count in zip(SHAPE, (rows, columns), strict=True):
        ends = [0, *sorted(draw.sample(range(1, size), count - 1)), size]
        sides.append([(a, b - a) for a, b in pairwise(ends)])
    return [
        stored.ChunkStorageMetadata(torch.Size((a, b)), torch.Size((m, n)))
        for a, m in sides[0]
        for b, n in sides[1]
    ]


def told(chunks: list[ChunkStorageMetadata]) -> TensorStorageMetadata:
    properties = stored.TensorProperties(torch.float32)
    return stored.TensorStorageMetadata(properties, torch.Size(SHAPE), chunks)


def name(chunk: ChunkStorageMetadata) -> str:
    return dcp.item_name(stored.MetadataIndex("t", chunk.offsets))


def written(folder: Path, table: Tensor, rows: Rows) -> list[RankPart]:
    """As two ranks write it, one chunk each in turn: those rows of it, or all of it."""
    items: tuple[list[Any], list[Any]] = ([], [])
    for number, (chunk, ids) in enumerate(rows):
        part = piece(table, chunk).contiguous()
        mine = items[number % 2]
        if ids is None:
            mine.append(
                TensorItem(
                    name(chunk), dcp.tensor_pickle(part.dtype, part.shape), dcp.tensor_bytes(part)
                )
            )
            continue
        which = torch.tensor(ids, dtype=torch.int64)
        mine.append(BytesItem(name(chunk) + IDS_SUFFIX, bytes(dcp.tensor_bytes(which))))
        mine.append(
            BytesItem(name(chunk) + ROWS_SUFFIX, bytes(dcp.tensor_bytes(part[which].contiguous())))
        )
    folder.mkdir(exist_ok=True)
    return [write_part(folder, rank, mine) for rank, mine in enumerate(items)]


def manifest(parts: list[RankPart]) -> Manifest:
    files = tuple(part.file for part in parts)
    return Manifest(step=1, save_id="a", world=2, made=0.0, sequence=1, files=files)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(20))
def test_however_it_was_cut_and_is_cut(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    before = torch.rand(SHAPE)
    after, wanted = torch.rand(SHAPE), before.clone()
    chunks = cut(draw, draw.randint(1, 4), draw.randint(1, 3))
    rows: Rows = []
    for chunk in chunks:
        ids = sorted(draw.sample(range(chunk.sizes[0]), draw.randint(0, chunk.sizes[0])))
        whole = draw.random() < 0.3
        rows.append((chunk, None if whole else ids))
        here = piece(wanted, chunk)
        which = list(range(chunk.sizes[0])) if whole else ids
        here[which] = piece(after, chunk)[which]
    found = manifest(written(tmp_path / "delta", after, rows))
    for places in (cut(draw, 1, 1), cut(draw, 3, 1), cut(draw, 2, 2)[1:]):
        target: Any = Cut(before, places)
        apply_rows(str(tmp_path / "delta"), found, {"t": target}, {"t": told(chunks)})
        for place in places:
            assert torch.equal(target.pieces[place.offsets], piece(wanted, place))


def test_what_a_rank_has_nothing_of_is_not_read(tmp_path: Path) -> None:
    chunks = cut(random.Random(0), 2, 1)
    table = torch.rand(SHAPE)
    parts = written(tmp_path / "delta", table, [(chunks[0], [0]), (chunks[1], [0])])
    (tmp_path / "delta" / parts[1].file.name).unlink()
    target: Any = Cut(table, chunks[:1])
    apply_rows(str(tmp_path / "delta"), manifest(parts), {"t": target}, {"t": told(chunks)})
    with pytest.raises(FileNotFoundError):
        whole = torch.zeros(SHAPE)
        apply_rows(str(tmp_path / "delta"), manifest(parts), {"t": whole}, {"t": told(chunks)})


def test_a_changed_byte_of_a_row_is_found(tmp_path: Path) -> None:
    chunks = cut(random.Random(0), 2, 1)
    parts = written(tmp_path / "delta", torch.rand(SHAPE), [(chunks[0], [0]), (chunks[1], [0])])
    path = tmp_path / "delta" / parts[1].file.name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    whole = torch.zeros(SHAPE)
    with pytest.raises(CheckpointDamaged, check=has_code("checksum-mismatch")) as raised:
        apply_rows(str(tmp_path / "delta"), manifest(parts), {"t": whole}, {"t": told(chunks)})
    assert raised.value.fields["item"] == name(chunks[1]) + ROWS_SUFFIX


def test_a_tensor_with_a_shard_by_rows_is_not_told_of_to_others(tmp_path: Path) -> None:
    chunks = cut(random.Random(0), 3, 1)
    whole = told(cut(random.Random(0), 1, 1))
    planned = stored.Metadata({"t": told(chunks), "other": whole})
    rows: Rows = [(chunks[0], [0]), (chunks[1], None), (chunks[2], [1])]
    table = torch.rand(SHAPE)
    parts = written(tmp_path / "delta", table, rows)
    with pytest.raises(SaveFailed, check=has_code("item-missing")) as raised:
        dcp.build_metadata(planned, parts)
    assert raised.value.fields["item"] == "other"
    other = write_part(tmp_path, 2, [TensorItem("other", b"", dcp.tensor_bytes(table))])
    content = dcp.build_metadata(planned, [*parts, other])
    (tmp_path / ".metadata").write_bytes(content)
    found = CheckpointReader(tmp_path).read_metadata()
    assert list(found.state_dict_metadata) == ["other"]
    assert [index.fqn for index in found.storage_data] == ["other"]
    with pytest.raises(SaveFailed, check=has_code("item-missing")) as raised:
        dcp.build_metadata(planned, [parts[0], other])
    assert raised.value.fields["item"] == name(chunks[1])
    odd = write_part(tmp_path, 3, [BytesItem("t[1, 0]" + IDS_SUFFIX, b"")])
    assert delta_tables(odd.file) == ["t[1, 0]"]
    with pytest.raises(SaveFailed, check=has_code("item-not-planned")) as raised:
        dcp.build_metadata(planned, [*parts, other, odd])
    assert raised.value.fields == {"rank": 3, "item": "t[1, 0]"}
