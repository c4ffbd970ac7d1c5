"""Tensors that `torch.save` has written: a zip whose entries are stored as they are.

torch itself compares no checksums when it loads one. 0 stands for one that nobody has computed.
"""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

ZIP_HEADER_SIZE = (
    30  # bytes before the name of an entry; the lengths of name and extra are its last
)


@dataclass(frozen=True)
class StoredTensor:
    """The bytes of a tensor's storage, and how the tensor lies in it."""

    at: int  # in the file
    size: int
    crc32: int
    tensor: torch.Tensor  # without memory

    @property
    def straight(self) -> bool:
        """Whether the bytes are the tensor's, in order."""
        whole = self.tensor.numel() * self.tensor.element_size() == self.size
        return whole and self.tensor.is_contiguous() and self.tensor.storage_offset() == 0


class _FileSlice(io.RawIOBase):
    """A part of a file as if it were one."""

    def __init__(self, file: BinaryIO, at: int, length: int) -> None:
        self._file, self._at, self._length = file, at, length
        self._here = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._here = offset + (0, self._here, self._length)[whence]
        return self._here

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer)[: max(0, self._length - self._here)]
        self._file.seek(self._at + self._here)
        got = self._file.readinto(room)  # type: ignore[attr-defined]
        self._here += got
        return int(got)


def read_record(file: BinaryIO, at: int, length: int) -> StoredTensor | None:
    """The one tensor in a stretch of a file; None if it is something else that torch may know."""
    view = _FileSlice(file, at, length)
    if view.read(4) != b"PK\3\4":
        return None
    with zipfile.ZipFile(view) as entries:
        data = [one for one in entries.infolist() if "/data/" in one.filename]
        if len(data) != 1 or data[0].compress_type != zipfile.ZIP_STORED:
            return None
        for one in entries.infolist():
            if one is not data[0] and one.CRC:
                entries.read(one)  # compares the checksum
    view.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.load(view, map_location="meta", weights_only=True)  # type: ignore[arg-type]
    view.seek(data[0].header_offset + ZIP_HEADER_SIZE - 4)
    lengths = struct.unpack("<HH", view.read(4))
    begin = at + data[0].header_offset + ZIP_HEADER_SIZE + sum(lengths)
    return StoredTensor(begin, data[0].file_size, data[0].CRC, tensor)


def first_damaged_entry(path: str) -> str:
    """The first entry of a zip that is not as it was written; empty if all are."""
    with zipfile.ZipFile(path) as entries:
        for one in entries.infolist():
            if one.CRC:
                try:
                    with entries.open(one) as content:
                        while content.read(1 << 20):
                            pass
                except zipfile.BadZipFile:
                    return one.filename
    return ""
