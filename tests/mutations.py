"""Damaged and hostile variants of files, reproducible by seed."""

from __future__ import annotations

import copy
import random
from typing import Any

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, -(2**70), 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", ".", "..", "../x", "/etc/passwd", "a/../../x", "a\0b"),
    *("\ud800", "x" * 300, "a/" * 3000 + "b", "\x1b[2J", "__class__", "{}", "0" * 64),
    *([], {}, [[]], [None], [1, "x"], {"a": 1}, {"": None}, {"__class__": "os.system"}),
)  # fmt: skip


def bent(content: bytes, chance: random.Random) -> bytes:
    """Bytes after damage by a broken disk, a truncated transfer or an editor."""
    if not content:
        return chance.randbytes(chance.randrange(1, 40))
    at = chance.randrange(len(content))
    end = min(len(content), at + chance.randrange(1, 64))
    kind = chance.randrange(7)
    if kind == 0:
        return content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :]
    if kind == 1:
        return content[:at]
    if kind == 2:
        return content[:at] + bytes(end - at) + content[end:]
    if kind == 3:
        return content[:at] + chance.randbytes(end - at) + content[at:]
    if kind == 4:
        return content[:at] + content[end:]
    if kind == 5:
        return content + content[at:]
    return chance.choice((b"", b"{", b"[" * 100_000, b"null", b"\xff" * 64, b'{"a":' * 50_000))


def altered(document: Any, chance: random.Random, *, times: int = 2) -> Any:
    """A document with a few values, keys or items replaced, removed or duplicated."""
    root = [copy.deepcopy(document)]
    for _ in range(chance.randint(1, times)):
        holder, key = chance.choice(list(_places(root)))
        kind = chance.randrange(5)
        if kind == 0 and holder is not root:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[_name(chance)] = chance.choice(HOSTILE)
        elif kind == 2 and isinstance(holder, list) and holder is not root:
            holder.append(copy.deepcopy(holder[key]))
        elif kind == 3 and holder is not root:
            _, other = chance.choice(list(_places(root)))
            holder[key] = other
        else:
            holder[key] = copy.deepcopy(chance.choice(HOSTILE))
    return root[0]


def _name(chance: random.Random) -> str:
    return chance.choice([value for value in HOSTILE if isinstance(value, str)])


def _places(value: Any) -> list[tuple[Any, Any]]:
    """All positions in a document: container and key."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    places = []
    for key in keys:
        places.append((value, key))
        if isinstance(value[key], (dict, list)) and value[key]:
            places += _places(value[key])
    return places
