"""Stores of compile archives, made by `headway run --compile-cache` and by `shared_cache`.

The jobs compile nothing: what a compiler writes names its own folders. They fill the cache folder
with files of every kind that is treated in a way of its own, and talk to the launcher as a job does
in which torch compiles; see headway/probe/hooks/compile_cache.py.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from headway.compile.cache.archive import ArchiveStore, CacheLookup
from headway.compile.cache.folder import CacheFolder
from headway.compile.cache.keys import CacheKey
from headway.probe import host_facts
from headway.storage import chunks
from headway.storage.signing import SigningKey, read_key
from tests.golden.cases import command

FACTS: dict[str, Any] = {
    "torch": "2.13.0",
    "git": "cf30153c4c13",
    "python": "cpython-311",
    "cuda": None,
    "hip": None,
    "triton": None,
    "driver": None,
    "gpu": [],
    "machine": "x86_64",
    "isa": ["avx", "avx2", "fma"],
    "glibc": "glibc 2.36",
    "libstdcxx": "6.0.30",
    "env": {},
    "tier": "safe",
    "place": ["/opt/env/lib/python3.11/site-packages/torch", "/usr"],
}
OTHERS = FACTS | {"torch": "2.12.0", "gpu": ["NVIDIA H200"], "cuda": "12.9"}
SECRET = b"the secret of a golden file\n"
# What a job does in which torch compiles: ask for an archive, fill the folder, say that it did.
JOB = """
import json, os, pathlib, sys, time

facts = json.loads(pathlib.Path("facts.json").read_text())
key = sys.argv[1]
talk = pathlib.Path(os.environ["HEADWAY_COMPILE"], "talk")

def put(name, content):
    draft = talk / f".{name}"
    draft.write_text(json.dumps(content))
    draft.replace(talk / name)

put(f"want-{key}.json", facts)
until = time.monotonic() + 30
while not (talk / f"ready-{key}.json").exists() and time.monotonic() < until:
    time.sleep(0.01)
cache = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
for name, content in json.loads(pathlib.Path("content.json").read_text()).items():
    path = cache / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes.fromhex(content))
put("made-1-0.json", {"key": key, "seconds": 12.5})
"""


def _content(seed: int, here: str = "") -> dict[str, bytes]:
    """A cache folder: sources, shared libraries, packages, and a group file with absolute paths."""
    dice = random.Random(seed)
    contents = {
        f"fxgraph/{number:02}/{number}": dice.randbytes(300) * 3 for number in range(10 + seed)
    }
    contents["ab/kernel.so"] = _library(900)
    contents["ab/kernel.cpp"] = b"int main() { return 0; }\n" * 20
    contents["dynamo/train/guards"] = b"a package of this job"
    contents["keys/empty"] = b""
    listed = {"child_paths": {"kernel.cubin": f"{here}/triton/x/kernel.cubin"}}
    contents["triton/x/__grp__kernel.json"] = json.dumps(listed).encode()
    contents["triton/x/kernel.cubin"] = dice.randbytes(64)
    return contents


def _library(size: int) -> bytes:
    """The header and the last table of a shared library."""
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQ", 3, 62, 1, 0, 0, size - 64)
    head += struct.pack("<IHHHHHH", 0, 64, 56, 0, 64, 1, 0)
    return head + b"\x90" * (size - len(head) - 64) + bytes(64)


def _fill(tree: CacheFolder, seed: int) -> CacheFolder:
    for name, content in _content(seed, str(tree.root)).items():
        path = tree.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if path.suffix == ".so":
            path.chmod(0o755)
    return tree


def _publish(
    store: ArchiveStore, seed: int, request: CacheKey, base: CacheLookup | None = None
) -> None:
    tree = _fill(CacheFolder(Path(f"cache-{request.job}-{seed}").absolute()), seed)
    assert store.publish(tree, request, base or CacheLookup(level="miss"), 12.5)


def _unsigned(files: Path) -> None:
    """By the launcher, then by other jobs and on other machines."""
    Path("facts.json").write_text(json.dumps(FACTS))
    Path("train.py").write_text(JOB)
    content = {name: value.hex() for name, value in _content(1).items()}
    Path("content.json").write_text(json.dumps(content))
    where = ["-o", "run", "--compile-cache", str(files / "store")]
    job = [sys.executable, "train.py", host_facts.compile_key(FACTS)]
    code, _ = command("run", *where, "--", *job)
    assert code == 0 and (files / "store" / "archives").is_dir()
    store = ArchiveStore(str(files / "store"))
    _publish(store, 2, CacheKey(facts=FACTS, job="train", code="1" * 16))
    _publish(store, 3, CacheKey(facts=OTHERS, job="serve", code="2" * 16))


def _signed(files: Path, key: SigningKey) -> None:
    store = ArchiveStore(str(files / "store"), key)
    _publish(store, 1, CacheKey(facts=FACTS, job="train", code="1" * 16))
    _publish(
        ArchiveStore(str(files / "store")), 2, CacheKey(facts=FACTS, job="nobody", code="1" * 16)
    )


def _hmac(files: Path) -> None:
    """And an archive without a signature."""
    (files / "team.key").write_bytes(SECRET)
    (files / "team.key").chmod(0o600)
    _signed(files, read_key(str(files / "team.key")))


def _ed25519(files: Path) -> None:
    """The private key is not stored."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    pair = Ed25519PrivateKey.generate()
    private = pair.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = pair.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (files / "team.key").write_bytes(public)
    secret = Path("private.key")
    secret.touch(0o600)
    secret.write_bytes(private)
    _signed(files, read_key(str(secret)))


def _zlib(files: Path) -> None:
    """Where no zstd is installed."""
    with mock.patch.object(chunks, "_zstd", lambda: None):
        _publish(
            ArchiveStore(str(files / "store")), 1, CacheKey(facts=FACTS, job="train", code="1" * 16)
        )


def _superseded(files: Path) -> None:
    """A job that saved again; its first archive was deleted, the machine facts remain."""
    store = ArchiveStore(str(files / "store"))
    request = CacheKey(facts=FACTS, job="train", code="1" * 16)
    _publish(store, 1, request)
    tree = CacheFolder(Path("again").absolute())
    base, _ = store.restore(store.find(request), tree)
    (tree.root / "fxgraph" / "new").write_bytes(b"compiled later" * 40)
    newer = CacheKey(facts=FACTS, job="train", code="3" * 16)
    assert store.publish(tree, newer, base, 3.0)


ZSTD = ("zstandard",)
RECORDERS = {
    "unsigned": (_unsigned, "archives of several jobs and machines", ZSTD),
    "hmac": (_hmac, "an archive that is signed with a shared secret, and one without", ZSTD),
    "ed25519": (_ed25519, "an archive that is signed with a private key", (*ZSTD, "cryptography")),
    "zlib": (_zlib, "an archive that is compressed without zstd", ()),
    "superseded": (_superseded, "the second archive of a job", ZSTD),
}
