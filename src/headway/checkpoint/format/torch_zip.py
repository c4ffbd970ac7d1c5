"""The zip container that `torch.save` writes for one tensor, with uncompressed entries.

All of it but the checksum of the data is known before the data is written, and the checksum follows
the data, so the file is written once from front to back.
"""

from __future__ import annotations

import struct
import sys
import zlib
from dataclasses import dataclass

ALIGNMENT = 64  # alignment of the data from the beginning of the zip
ZIP64_MIN = 0xFFFFFFFF  # sizes from here on are stored in the zip64 fields
UTF8, DATA_DESCRIPTOR = 1 << 11, 1 << 3  # flags of an entry
DOS_DATE = 0x21  # 1980-01-01: a zip entry needs a date


@dataclass(frozen=True)
class _Entry:
    name: bytes
    size: int
    crc32: int
    flags: int
    offset: int

    @property
    def large(self) -> bool:
        return self.size >= ZIP64_MIN

    @property
    def wide(self) -> bytes:
        """Its size for zip64; empty if not needed."""
        return struct.pack("<HHQQ", 1, 16, self.size, self.size) if self.large else b""

    def header(self, padding: bytes = b"") -> bytes:
        """The local header before its bytes."""
        behind = self.flags & DATA_DESCRIPTOR
        size = ZIP64_MIN if self.large else 0 if behind else self.size
        crc32 = 0 if behind else self.crc32
        extra = self.wide + padding
        needs = 45 if self.large else 20
        fields = (0x04034B50, needs, self.flags, 0, 0, DOS_DATE, crc32, size, size)
        lengths = (len(self.name), len(extra))
        return struct.pack("<IHHHHHIIIHH", *fields, *lengths) + self.name + extra

    def listing(self) -> bytes:
        """Its record in the central directory."""
        size = ZIP64_MIN if self.large else self.size
        needs = 45 if self.large else 20
        fields = (0x02014B50, needs, needs, self.flags, 0, 0, DOS_DATE, self.crc32, size, size)
        lengths = (len(self.name), len(self.wide), 0, 0, 0, 0, self.offset)
        return struct.pack("<IHHHHHHIIIHHHHHII", *fields, *lengths) + self.name + self.wide

    def behind(self) -> bytes:
        """The data descriptor after its bytes."""
        sizes = "QQ" if self.large else "II"
        return struct.pack(f"<II{sizes}", 0x08074B50, self.crc32, self.size, self.size)


@dataclass(frozen=True)
class ZipFrame:
    """The bytes around the data of a tensor."""

    head: bytes
    size: int  # of the data
    _before: tuple[_Entry, ...]
    _data: _Entry

    @property
    def length(self) -> int:
        """Total bytes with the data."""
        return len(self.head) + self.size + len(self.tail(0))

    def tail(self, crc32: int) -> bytes:
        """The bytes after data with that checksum."""
        data = _Entry(self._data.name, self.size, crc32, self._data.flags, self._data.offset)
        behind = data.behind()
        entries = (*self._before, data)
        listed = b"".join(entry.listing() for entry in entries)
        at = len(self.head) + self.size + len(behind)
        return behind + listed + _end(len(entries), len(listed), at)


def zip_frame(record: bytes, size: int, byteorder: str = sys.byteorder) -> ZipFrame:
    """The frame of a tensor with `record` as its `data.pkl` and `size` bytes of data."""
    head = b""
    before = []
    for name, content in (
        (b"data.pkl", record),
        (b"byteorder", byteorder.encode()),
        (b"version", b"3\n"),
    ):
        crc32 = zlib.crc32(content)
        entry = _Entry(b"archive/" + name, len(content), crc32, UTF8, len(head))
        before.append(entry)
        head += entry.header() + content
    # The data comes last, so that only the directory can be beyond the first 4 GiB.
    data = _Entry(b"archive/data/0", size, 0, UTF8 | DATA_DESCRIPTOR, len(head))
    start = len(head) + len(data.header()) + 4
    room = -start % ALIGNMENT
    head += data.header(b"FB" + struct.pack("<H", room) + bytes(room))
    return ZipFrame(head, size, tuple(before), data)


def _end(count: int, size: int, at: int) -> bytes:
    """The end of a zip whose central directory of `size` bytes begins at `at`."""
    wide = b""
    if at >= ZIP64_MIN:
        fields = (0x06064B50, 44, 45, 45, 0, 0, count, count, size, at)
        wide = struct.pack("<IQHHIIQQQQ", *fields)
        wide += struct.pack("<IIQI", 0x07064B50, 0, at + size, 1)
    fields_32 = (0x06054B50, 0, 0, count, count, size, min(at, ZIP64_MIN), 0)
    return wide + struct.pack("<IHHHHIIH", *fields_32)
