"""Small cache folders and archives for the tests."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from headway.compile.cache.archive import ArchiveStore, CacheLookup
from headway.compile.cache.folder import DAY, CacheFolder
from headway.compile.cache.keys import CacheKey
from headway.compile.cache.manifest import Chunk, File, Manifest

NOW = 20_000.5 * DAY
TODAY = 20_000
FACTS: dict[str, Any] = {
    "torch": "2.13.0",
    "git": "abc",
    "python": "cpython-311",
    "cuda": None,
    "gpu": [],
    "isa": ["avx", "avx2", "fma"],
    "env": {},
    "place": ["/opt/torch", "/usr"],
}


def library(size: int = 200) -> bytes:
    """A minimal file with the header and last table of a shared library."""
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQ", 3, 62, 1, 0, 0, size - 64)
    head += struct.pack("<IHHHHHH", 0, 64, 56, 0, 64, 1, 0)
    return head + b"\x90" * (size - len(head) - 64) + bytes(64)


def fill(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def content(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def tree(root: Path, files: dict[str, bytes] | None = None) -> CacheFolder:
    folder = CacheFolder(root)
    fill(root, files or {})
    return folder


def wanted(job: str = "train", code: str = "1", **facts: Any) -> CacheKey:
    return CacheKey(facts=FACTS | facts, job=job, code=code)


def save(
    store: ArchiveStore,
    folder: CacheFolder,
    want: CacheKey | None = None,
    base: CacheLookup | None = None,
    now: float = NOW,
) -> Manifest | None:
    return store.publish(folder, want or wanted(), base or CacheLookup(level="miss"), 1.0, now)


def manifest(**fields: Any) -> Manifest:
    plain: dict[str, Any] = {
        "id": "18d-0a",
        "made": NOW,
        "job": "train",
        "code": "1",
        "facts": FACTS,
        "cold_s": 2.0,
        "files": (File("a/b", 3, False, TODAY), File("a/c.so", 2, True, TODAY)),
        "chunks": (Chunk("0" * 64, 5),),
        "maker": {"host": "here"},
    }
    return Manifest(**plain | fields)
