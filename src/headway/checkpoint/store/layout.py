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
)  # of a table in a delta: which rows have changed, and their bytes


@dataclass(frozen=True)
class Item:
    """One tensor or object in the file of a rank."""

    name: str
    offset: int  # of the whole of it, from the beginning of the file
    length: int
    data: int  # where its raw bytes begin in the file
    size: int  # of those
    crc32: int  # of those
    # If it is compressed, all that is of its frame. Inside: where its raw bytes begin, their size.
    unpacked: tuple[int, int] | None = None

    @property
    def raw_size(self) -> int:
        """Of its bytes, once they are not compressed."""
        return self.size if self.unpacked is None else self.unpacked[1]


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a checkpoint."""

    name: str
    size: int
    crc32: int
    sha256: str | None = None  # of small ones
    items: tuple[Item, ...] = ()


@dataclass(frozen=True)
class RankPart:
    """What one rank has written, once it is done."""

    rank: int
    file: File


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checkpoint, apart from its bytes."""

    step: int
    save_id: str
    world: int
    made: float
    sequence: int  # counts the commits of a store
    kind: str = "full"
    parent: str | None = None  # the save id that a delta builds on
    files: tuple[File, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)


def delta_tables(file: File) -> list[str]:
    """The tensors of which a file has only the rows that have changed."""
    return [
        item.name.removesuffix(IDS_SUFFIX) for item in file.items if item.name.endswith(IDS_SUFFIX)
    ]


def part_name(rank: int) -> str:
    """The file that says: this rank is done."""
    return f"part-{rank}.json"


def data_name(rank: int) -> str:
    """The file of a rank, as DCP calls it."""
    return f"__{rank}_0.distcp"


def part_to_bytes(part: RankPart) -> bytes:
    """As it lies in a draft."""
    return _seal({"schema": SCHEMA, "rank": part.rank, "file": _file_to_json(part.file)})


def part_from_bytes(content: bytes) -> RankPart:
    """Read one; UnreadableData says what is wrong."""
    found = _unseal(content)
    try:
        return RankPart(_count(found["rank"]), _file_from_json(found["file"]))
    except (KeyError, TypeError, ValueError):
        raise UnreadableData("it is no part of a checkpoint", code="not-a-part") from None


def manifest_to_bytes(manifest: Manifest) -> bytes:
    """As it lies in a checkpoint."""
    plain = {**vars(manifest), "files": [_file_to_json(file) for file in manifest.files]}
    return _seal({"schema": SCHEMA, **plain})


def manifest_from_bytes(content: bytes) -> Manifest:
    """Read one; UnreadableData says what is wrong."""
    found = _unseal(content)
    try:
        del found["schema"]
        made = float(found.pop("made"))
        files = tuple(_file_from_json(one) for one in found.pop("files"))
        manifest = Manifest(**found, made=made, files=files)
        counts = (manifest.step, manifest.world, manifest.sequence)
        fine = (
            all(_count(count) == count for count in counts)
            and re.fullmatch(SAVE_ID, manifest.save_id) is not None
            and manifest.kind in KINDS
            and (manifest.kind == "delta") == isinstance(manifest.parent, str)
            and isinstance(manifest.extra, dict)
        )
    except (KeyError, TypeError, ValueError):
        fine = False
    if not fine:
        raise UnreadableData("it is no manifest of Headway", code="not-a-manifest")
    return manifest


def _seal(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return _wrap(text.encode())


def _wrap(text: bytes) -> bytes:
    return b'{"sha256":"%s",\n"sealed":%s}\n' % (hashlib.sha256(text).hexdigest().encode(), text)


def _unseal(content: bytes) -> dict[str, Any]:
    """What was sealed; every byte of it is looked at."""
    begin, end = b'{"sha256":"', b"}\n"
    if not content.startswith(begin[: len(content)]):
        raise UnreadableData("it was not written by Headway", code="not-of-headway")
    if not content.endswith(end):
        raise UnreadableData("its end is missing", code="truncated")
    text = content[len(_wrap(b"")) - len(end) : -len(end)]
    if content != _wrap(text):
        raise UnreadableData(
            "it was changed: its checksum is another one", code="checksum-mismatch"
        )
    found = json.loads(text)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UnreadableData("it was written by another version of Headway", code="other-schema")
    return found


def _file_to_json(file: File) -> dict[str, Any]:
    return {**vars(file), "items": [_item_to_json(item) for item in file.items]}


def _item_to_json(item: Item) -> list[Any]:
    *always, unpacked = vars(item).values()
    return [*always, *(unpacked or ())]


def _file_from_json(found: dict[str, Any]) -> File:
    items = tuple(_item_from_json(*item) for item in found["items"])
    file = File(**{**found, "items": items})
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
DRAFT_LOCK = "lock"  # in a draft: held by all who write it
OWNER_PREFIX = "owner-"  # in a draft behind a URL: who writes it
ANCHOR = "anchor"  # in a checkpoint that is pinned
LAST_STEP = 10**10 - 1

STEP = re.compile(r"step-(\d{10})")
REMOTE_STEP = re.compile(rf"step-(\d{{10}})-({SAVE_ID})")
DRAFT = re.compile(rf"\.draft-(\d{{10}})-({SAVE_ID})")
REPLACED = re.compile(rf"\.aside-(\d{{10}})-({SAVE_ID})")
ABORT_MARK = re.compile(rf"\.given-up-(\d{{10}})-({SAVE_ID})")
TRASH = re.compile(r"\.trash-\d{10}-[0-9a-f]+")
REPLACEMENT = re.compile(r"\.new-.+")  # a file that was to replace another


def step_name(number: int) -> str:
    """A checkpoint."""
    return f"step-{_check_step(number):010}"


def remote_step_name(number: int, save_id: str) -> str:
    """A checkpoint behind a URL, and its draft."""
    return f"{step_name(number)}-{_check_save_id(save_id)}"


def draft_name(number: int, save_id: str) -> str:
    """A checkpoint that is being written."""
    return f".draft-{_check_step(number):010}-{_check_save_id(save_id)}"


def replaced_name(number: int, save_id: str) -> str:
    """A checkpoint that was replaced by another save of its step."""
    return f".aside-{_check_step(number):010}-{_check_save_id(save_id)}"


def abort_mark_name(number: int, save_id: str) -> str:
    """The mark of a save that will never be a checkpoint."""
    return f".given-up-{_check_step(number):010}-{_check_save_id(save_id)}"


def trash_name(number: int) -> str:
    """What is being deleted."""
    return f".trash-{_check_step(number):010}-{secrets.token_hex(8)}"


def _check_step(number: int) -> int:
    if not 0 <= number <= LAST_STEP:
        raise UsageError(
            f"a step is between 0 and {LAST_STEP}, not {number}",
            code="step-out-of-range",
            step=number,
        )
    return number


def _check_save_id(save_id: str) -> str:
    if re.fullmatch(SAVE_ID, save_id) is None:
        raise UsageError(
            f"a save id is 1 to 64 letters, digits, - and _, not {save_id!r}",
            code="save-id-invalid",
        )
    return save_id


def owner_file_name() -> str:
    """The file by which this process says that it writes."""
    return f"{OWNER_PREFIX}{boot_id()}-{os.getpid()}.json"
