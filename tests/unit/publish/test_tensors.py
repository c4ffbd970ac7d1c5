"""Files of tensors are those of the safetensors library, both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from headway.errors import SnapshotDamaged, UsageError
from headway.publish import tensors


def held() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    made = {
        str(dtype): torch.randn(3, 5).mul(10).to(dtype)
        for dtype in tensors.TYPES
        if dtype != torch.complex64
    }
    return made | {
        "turned": torch.randn(4, 6).t(),
        "none": torch.empty(0, 3),
        "one": torch.ones(()),
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    def bits(tensor: torch.Tensor) -> bytes:
        return bytes(tensors.raw(tensor.contiguous()))

    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape
        and one[name].dtype == other[name].dtype
        and bits(one[name]) == bits(other[name])
        for name in one
    )


def test_written_and_read_by_the_library(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"".join(tensors.pieces(held())))
    assert same(safetensors.torch.load_file(path), held())
    assert same(tensors.read(path), held())
    safetensors.torch.save_file({n: t.contiguous() for n, t in held().items()}, path)
    assert same(tensors.read(path), held())


def test_what_is_read_can_be_written_to_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"".join(tensors.pieces({"a": torch.zeros(4)})))
    before = path.read_bytes()
    tensors.read(path)["a"].add_(1)
    assert path.read_bytes() == before


@pytest.mark.parametrize("cut", [0, 4, 40, -1])
def test_a_damaged_file(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.safetensors"
    whole = b"".join(tensors.pieces({"a": torch.zeros(4)}))
    path.write_bytes(whole[:cut])
    with pytest.raises(SnapshotDamaged, match="is no file of tensors"):
        tensors.read(path)


def test_a_type_that_cannot_be_held() -> None:
    with pytest.raises(UsageError, match="odd is of type"):
        list(tensors.pieces({"odd": torch.zeros(2, dtype=torch.complex128)}))
