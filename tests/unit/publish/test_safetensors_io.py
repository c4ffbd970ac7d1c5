"""Files of tensors are those of the safetensors library, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.errors import SnapshotDamaged, UsageError
from tests.support import has_code, lazy

torch = lazy("torch")
library = lazy("safetensors.torch")
tensors = lazy("headway.publish.safetensors_io")


def example_tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    content = {
        str(dtype): torch.randn(3, 5).mul(10).to(dtype)
        for dtype in tensors.TYPES
        if dtype != torch.complex64
    }
    return content | {
        "turned": torch.randn(4, 6).t(),
        "none": torch.empty(0, 3),
        "one": torch.ones(()),
    }


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    def bits(tensor: Any) -> bytes:
        return bytes(tensors.tensor_bytes(tensor.contiguous()))

    return left.keys() == right.keys() and all(
        left[name].shape == right[name].shape
        and left[name].dtype == right[name].dtype
        and bits(left[name]) == bits(right[name])
        for name in left
    )


def test_written_and_read_by_the_library(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"".join(tensors.pieces(example_tensors())))
    assert same(library.load_file(path), example_tensors())
    assert same(tensors.read(path), example_tensors())
    library.save_file({n: t.contiguous() for n, t in example_tensors().items()}, path)
    assert same(tensors.read(path), example_tensors())


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
    with pytest.raises(SnapshotDamaged, check=has_code("not-a-tensor-file")):
        tensors.read(path)


def test_a_type_that_cannot_be_held() -> None:
    with pytest.raises(UsageError, check=has_code("tensor-type-unsupported")) as error:
        list(tensors.pieces({"odd": torch.zeros(2, dtype=torch.complex128)}))
    assert error.value.fields["tensor"] == "odd"
