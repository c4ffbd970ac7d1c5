"""A tensor on disk is what `torch.save` would have written, to torch and to any reader of zips."""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from pathlib import Path

import pytest

from headway.checkpoint.format.torch_zip import ALIGNMENT, zip_frame
from headway.errors import UsageError
from headway.storage.codecs import crc32_combine
from tests.support import has_code, lazy

torch = lazy("torch")
dcp = lazy("headway.checkpoint.format.dcp")


def dtypes() -> list[torch.dtype]:
    known = torch.storage._new_dtypes() | set(torch.storage._dtype_to_storage_type_map())
    plain = (dtype for dtype in known if not str(dtype).startswith(("torch.q", "torch.bits")))
    return sorted(plain, key=str)


def filed(tensor: torch.Tensor) -> bytes:
    data = dcp.tensor_bytes(tensor)
    around = zip_frame(dcp.tensor_pickle(tensor.dtype, tensor.shape), data.nbytes)
    whole = around.head + bytes(data) + around.tail(zlib.crc32(data))
    assert len(whole) == around.length
    assert len(around.head) % ALIGNMENT == 0
    return whole


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.stride() == right.stride()
        and bytes(dcp.tensor_bytes(left)) == bytes(dcp.tensor_bytes(right))
    )


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (3, 5, 2)])
def test_every_type_is_read_by_torch(shape: tuple[int, ...]) -> None:
    assert len(dtypes()) >= 20
    for dtype in dtypes():
        count = math.prod(shape) * dtype.itemsize
        noise = torch.randint(0, 2 if dtype == torch.bool else 256, (count,))
        tensor = noise.to(torch.uint8).view(dtype).view(shape)
        stored = filed(tensor)
        assert same(torch.load(io.BytesIO(stored), weights_only=True), tensor), dtype
        with zipfile.ZipFile(io.BytesIO(stored)) as file:
            assert file.testzip() is None, dtype


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn"])
def test_the_record_is_that_of_torch(name: str) -> None:
    dtype = getattr(torch, name)
    tensor = torch.zeros(4, 3).to(dtype)
    out = io.BytesIO()
    torch.save(tensor, out)
    with zipfile.ZipFile(out) as file:
        assert file.read("archive/data.pkl") == dcp.tensor_pickle(dtype, (4, 3))


def test_what_cannot_be_saved_by_its_bytes_is_refused() -> None:
    with pytest.raises(UsageError, check=has_code("dtype-not-supported")) as raised:
        dcp.tensor_pickle(torch.qint8, (3,))
    assert raised.value.fields["dtype"] == "torch.qint8"


@pytest.mark.timeout(60)
def test_more_than_4_gib(tmp_path: Path) -> None:
    size = (1 << 32) + 512
    around = zip_frame(dcp.tensor_pickle(torch.uint8, (size,)), size)
    tail = around.tail(0)
    path = tmp_path / "tensor"
    with open(path, "wb") as file:  # with a hole: nothing of that size is written
        file.write(around.head)
        file.write(b"first")
        os.pwrite(file.fileno(), b"last" + tail, len(around.head) + size - 4)
    assert path.stat().st_size == around.length
    tensor = torch.load(path, mmap=True, weights_only=True)
    assert tensor.shape == (size,)
    assert bytes(tensor[:5].tolist()) == b"first"
    assert bytes(tensor[-4:].tolist()) == b"last"
    with zipfile.ZipFile(path) as listed:
        assert listed.getinfo("archive/data/0").file_size == size


@pytest.mark.parametrize("size", [0, 1, 63, 1000, 100_000])
def test_checksums_are_put_together(size: int) -> None:
    left, right = os.urandom(777), os.urandom(size)
    assert crc32_combine(zlib.crc32(left), zlib.crc32(right), size) == zlib.crc32(left + right)
