"""Names and manifest of a checkpoint store. The manifest is sealed by a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.errors import UsageError
from headway.storage.codecs import UnreadableData
from headway.storage.process_identity import boot_id

SCHEMA = 1
MANIFEST = "manifest.json"
METADATA = ".metadata"
SAVE_ID = r"[0-9A-Za-z][\w-]{0,63}"
KINDS = ("full", "delta")
IDS_SUFFIX, ROWS_SUFFIX = (
    "#ids",
    "#rows",
)  # suffixes of a table in a delta: the changed rows, and their bytes


@dataclass(frozen=True)
class Item:
    """A tensor or object in the file of a rank."""

    name: str
    offset: int  # from the beginning of the file
    length: int
    data: int  # where its raw bytes begin in the file
    size: int  # of the raw bytes
    crc32: int  # of the raw bytes
    # For a compressed item, `data`, `size` and `crc32` describe its frame; `unpacked` is the offset
    # of the raw bytes in the decompressed frame, and their size.
    unpacked: tuple[int, int] | None = None

    @property
    def raw_size(self) -> int:
        """Size of its uncompressed bytes."""
        return self.size if self.unpacked is None else self.unpacked[1]


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of a checkpoint."""

    name: str
    size: int
    crc32: int
    sha256: str | None = None  # only for small files
    items: tuple[Item, ...] = ()


@dataclass(frozen=True)
class RankPart:
    """What one rank has written, once complete."""

    rank: int
    file: File


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checkpoint without its data."""

    step: int
    save_id: str
    world: int
    made: float
    sequence: int  # number of the commit in the store
    kind: str = "full"
    parent: str | None = None  # the save id that a delta builds on
    files: tuple[File, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Total bytes of its files."""
        return sum(file.size for file in self.files)


def delta_tables(file: File) -> list[str]:
    """Tensors of which a file stores only the changed rows."""
    return [
        item.name.removesuffix(IDS_SUFFIX) for item in file.items if item.name.endswith(IDS_SUFFIX)
    ]


def part_name(rank: int) -> str:
    """The file that marks the part of a rank as complete."""
    return f"part-{rank}.json"


def data_name(rank: int) -> str:
    """The data file of a rank, named as DCP names it."""
    return f"__{rank}_0.distcp"


def part_to_bytes(part: RankPart) -> bytes:
    """The content of the file that marks a part as complete."""
    return _seal({"schema": SCHEMA, "rank": part.rank, "file": _file_to_json(part.file)})


def part_from_bytes(content: bytes) -> RankPart:
    """Parse it; UnreadableData says what is wrong."""
    body = _unseal(content)
    try:
        return RankPart(_count(body["rank"]), _file_from_json(body["file"]))
    except (KeyError, TypeError, ValueError):
        raise UnreadableData("it is not a part of a checkpoint", code="not-a-part") from None


def manifest_to_bytes(manifest: Manifest) -> bytes:
    """The content of the manifest file."""
    fields = {**vars(manifest), "files": [_file_to_json(file) for file in manifest.files]}
    return _seal({"schema": SCHEMA, **fields})


def manifest_from_bytes(content: bytes) -> Manifest:
    """Parse it; UnreadableData says what is wrong."""
    body = _unseal(content)
    try:
        del body["schema"]
        made = float(body.pop("made"))
        files = tuple(_file_from_json(file) for file in body.pop("files"))
        manifest = Manifest(**body, made=made, files=files)
        counts = (manifest.step, manifest.world, manifest.sequence)
        valid = (
            all(_count(count) == count for count in counts)
            and re.fullmatch(SAVE_ID, manifest.save_id) is not None
            and manifest.kind in KINDS
            and (manifest.kind == "delta") == isinstance(manifest.parent, str)
            and isinstance(manifest.extra, dict)
        )
    except (KeyError, TypeError, ValueError):
        valid = False
    if not valid:
        raise UnreadableData("it is not a manifest of Headway", code="not-a-manifest")
    return manifest


def _seal(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return _wrap(text.encode())


def _wrap(text: bytes) -> bytes:
    return b'{"sha256":"%s",\n"sealed":%s}\n' % (hashlib.sha256(text).hexdigest().encode(), text)


def _unseal(content: bytes) -> dict[str, Any]:
    """The sealed content; every byte is checked."""
    begin, end = b'{"sha256":"', b"}\n"
    if not content.startswith(begin[: len(content)]):
        raise UnreadableData("it was not written by Headway", code="not-of-headway")
    if not content.endswith(end):
        raise UnreadableData("its end is missing", code="truncated")
    text = content[len(_wrap(b"")) - len(end) : -len(end)]
    if content != _wrap(text):
        raise UnreadableData("it was modified: its checksum differs", code="checksum-mismatch")
    body = json.loads(text)
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise UnreadableData("it was written by another version of Headway", code="other-schema")
    return body


def _file_to_json(file: File) -> dict[str, Any]:
    return {**vars(file), "items": [_item_to_json(item) for item in file.items]}


def _item_to_json(item: Item) -> list[Any]:
    *always, unpacked = vars(item).values()
    return [*always, *(unpacked or ())]


def _file_from_json(fields: dict[str, Any]) -> File:
    items = tuple(_item_from_json(*item) for item in fields["items"])
    file = File(**{**fields, "items": items})
    if not isinstance(file.name, str) or "/" in file.name or file.name in ("", ".", ".."):
        raise ValueError(file.name)
    _count(file.size)
    _count(file.crc32)
    return file


def _item_from_json(name: object, *numbers: object) -> Item:
    counts = [_count(number) for number in numbers]
    offset, length, data, size, crc32, *rest = counts
    if len(rest) not in (0, 2):
        raise ValueError(rest)
    unpacked = (rest[0], rest[1]) if rest else None
    return Item(str(name), offset, length, data, size, crc32, unpacked)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


LATEST = "latest"
DRAFT_LOCK = "lock"  # in a draft; locked by all processes that write it
OWNER_PREFIX = "owner-"  # in a draft at a URL: identifies a process that writes it
ANCHOR = "anchor"  # in a pinned checkpoint
LAST_STEP = 10**10 - 1

STEP = re.compile(r"step-(\d{10})")
REMOTE_STEP = re.compile(rf"step-(\d{{10}})-({SAVE_ID})")
DRAFT = re.compile(rf"\.draft-(\d{{10}})-({SAVE_ID})")
REPLACED = re.compile(rf"\.aside-(\d{{10}})-({SAVE_ID})")
ABORT_MARK = re.compile(rf"\.given-up-(\d{{10}})-({SAVE_ID})")
TRASH = re.compile(r"\.trash-\d{10}-[0-9a-f]+")
REPLACEMENT = re.compile(r"\.new-.+")  # a file that was about to replace another


def step_name(number: int) -> str:
    """The folder of a checkpoint."""
    return f"step-{_check_step(number):010}"


def remote_step_name(number: int, save_id: str) -> str:
    """The folder of a checkpoint at a URL, and of its draft."""
    return f"{step_name(number)}-{_check_save_id(save_id)}"


def draft_name(number: int, save_id: str) -> str:
    """The folder of a checkpoint that is being written."""
    return f".draft-{_check_step(number):010}-{_check_save_id(save_id)}"


def replaced_name(number: int, save_id: str) -> str:
    """The folder of a checkpoint that was replaced by another save of its step."""
    return f".aside-{_check_step(number):010}-{_check_save_id(save_id)}"


def abort_mark_name(number: int, save_id: str) -> str:
    """The file that marks a save as aborted."""
    return f".given-up-{_check_step(number):010}-{_check_save_id(save_id)}"


def trash_name(number: int) -> str:
    """The folder of something that is being deleted."""
    return f".trash-{_check_step(number):010}-{secrets.token_hex(8)}"


def _check_step(number: int) -> int:
    if not 0 <= number <= LAST_STEP:
        raise UsageError(
            f"step must be between 0 and {LAST_STEP}, not {number}",
            code="step-out-of-range",
            step=number,
        )
    return number


def _check_save_id(save_id: str) -> str:
    if re.fullmatch(SAVE_ID, save_id) is None:
        raise UsageError(
            f"a save id must be 1 to 64 letters, digits, '-' and '_', not {save_id!r}",
            code="save-id-invalid",
        )
    return save_id


def owner_file_name() -> str:
    """The file that identifies this process as a writer of the draft."""
    return f"{OWNER_PREFIX}{boot_id()}-{os.getpid()}.json"
