"""Read and write safetensors files without copying the tensors.

The writer of the safetensors library copies every tensor.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from headway.checkpoint.format.dcp import tensor_bytes
from headway.errors import SnapshotDamaged, UsageError

SUFFIX = ".safetensors"
ALIGNMENT = 64  # bytes, for the first tensor; as for the constants of AOTInductor
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in TYPES.items()}


def pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
    """Bytes of a file with the tensors; only non-contiguous tensors are copied."""
    # First the tensors that keep the next one aligned for compiled code; a file has no gaps.
    names = sorted(
        tensors,
        key=lambda name: (
            tensors[name].nbytes % ALIGNMENT != 0,
            -tensors[name].element_size(),
            name,
        ),
    )
    header = {}
    at = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in TYPES:
            raise UsageError(
                f"{name} is of type {tensor.dtype}, which safetensors cannot hold",
                code="tensor-type-unsupported",
                tensor=name,
            )
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    yield memoryview(struct.pack("<Q", len(text)) + text)
    for name in names:
        yield tensor_bytes(tensors[name].detach().cpu().contiguous())


def read(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a file, mapped copy-on-write into memory."""
    try:
        with path.open("rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        (size,) = struct.unpack("<Q", whole[:8])
        header = json.loads(bytes(whole[8 : 8 + size]))
        return {
            name: _tensor(whole[8 + size :], **item)
            for name, item in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RuntimeError) as error:
        raise SnapshotDamaged(
            f"{path.name} is not a tensor file: {error}", code="not-a-tensor-file"
        ) from None


def _tensor(
    data: memoryview, dtype: str, shape: list[int], data_offsets: tuple[int, int]
) -> torch.Tensor:
    begin, end = data_offsets
    if not 0 <= begin <= end <= len(data):
        raise ValueError("the file is truncated")
    if begin == end:
        if 0 not in shape:
            raise ValueError("the file is truncated")
        return torch.empty(shape, dtype=DTYPES[dtype])
    flat = torch.frombuffer(data[begin:end], dtype=torch.uint8)
    return flat.view(DTYPES[dtype]).view(shape)
