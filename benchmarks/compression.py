"""zstd against zlib for what Headway compresses: a compile archive and a checkpoint.

    python benchmarks/compression.py

The job is examples/dlrm on one rank: its compile archive as `headway run --compile-cache` stores
it, and the tensors of its last checkpoint (weights and Adam's moments). CPU time of one thread,
minima over rounds.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import zstandard
from keep import keep

from headway.compile.cache.archive import ArchiveStore
from headway.compile.cache.cleanup import list_archives

TRAIN = Path(__file__).parents[1] / "examples" / "dlrm" / "train.py"
BIN = Path(sys.executable).parent
ROUNDS = 5
Pack = Callable[[bytes], bytes]


def zstd(level: int) -> tuple[Pack, Pack]:
    return zstandard.ZstdCompressor(level=level).compress, zstandard.ZstdDecompressor().decompress


WAYS: dict[str, tuple[Pack, Pack]] = {
    "zstd, level 3": zstd(3),
    "zlib, level 1": (lambda content: zlib.compress(content, 1), zlib.decompress),
    "zlib, level 3": (lambda content: zlib.compress(content, 3), zlib.decompress),
    "zlib, level 6": (lambda content: zlib.compress(content, 6), zlib.decompress),
}


def train(folder: Path) -> None:
    """A job that compiles and saves, in a container as far as compiling goes."""
    words = [BIN / "headway", "run", "-o", folder / "run", "--compile-cache", folder / "cache"]
    words += ["--", sys.executable, TRAIN, "--steps", "60", "--save-every", "60"]
    words += ["--checkpoint-dir", folder / "checkpoints"]
    inductor = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("wb") as log:
        env = {**os.environ, **inductor}
        done = subprocess.run([str(word) for word in words], env=env, stdout=log, stderr=log)
    if done.returncode:
        raise SystemExit((folder / "log").read_text()[-2000:])


def archive(folder: Path) -> list[bytes]:
    """All chunks of the archives, as they were before they were packed."""
    store = ArchiveStore(str(folder / "cache"))
    manifests = [one.manifest for one in list_archives(store) if one.manifest is not None]
    contents = {chunk.name: store.read_chunk(chunk) for one in manifests for chunk in one.chunks}
    return list(contents.values())


def checkpoint(folder: Path) -> list[bytes]:
    """The bytes of each tensor."""
    import torch

    saved = torch.load(max((folder / "checkpoints").glob("step_*.pt")))
    return [one.numpy().tobytes() for one in tensors(saved)]


def tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)


def seconds(call: Pack, contents: list[bytes]) -> tuple[float, list[bytes]]:
    least, made = float("inf"), []
    for _ in range(ROUNDS):
        begun = time.process_time()
        made = [call(content) for content in contents]
        least = min(least, time.process_time() - begun)
    return least, made


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(folder)
        data = {"compile archive": archive(folder), "checkpoint": checkpoint(folder)}
    for what, contents in data.items():
        size = sum(map(len, contents))
        for way, (pack, unpack) in WAYS.items():
            pack_s, packed = seconds(pack, contents)
            unpack_s, back = seconds(unpack, packed)
            assert back == contents
            row = {"what": what, "way": way, "bytes": size, "packed": sum(map(len, packed))}
            rows.append({**row, "pack_s": round(pack_s, 4), "unpack_s": round(unpack_s, 4)})
            ratio, ms = rows[-1]["packed"] / size, (pack_s * 1e3, unpack_s * 1e3)
            print(f"{what:<18}{way:<16}{size / 1e6:7.1f} MB  {ratio:6.1%}", end="")
            print(f"{ms[0]:9.1f} ms{ms[1]:9.1f} ms", flush=True)
    facts = {"machine": f"{os.cpu_count()} cores, {platform.machine()}"}
    versions = {"python": platform.python_version()}
    versions |= {name: version(name) for name in ("torch", "zstandard")}
    keep("compression", {**facts, "versions": versions, "rows": rows})


if __name__ == "__main__":
    main()
