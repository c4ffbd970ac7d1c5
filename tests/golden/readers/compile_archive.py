"""Stores of compile archives: the output of `headway cache`, and the restored files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.compile.cache.archive import ArchiveStore
from headway.compile.cache.cleanup import list_archives
from headway.compile.cache.keys import CacheKey
from headway.storage.signing import read_key
from tests.golden.cases import asked, command, sums

SEALED = ("hmac", "ed25519", "superseded", "zlib")


def read(name: str, files: Path) -> Any:
    store, key = str(files / "store"), _key(files)
    rows = asked("cache", "list", store, "--json", *key)
    result: dict[str, Any] = {
        "list": rows,
        "show": {
            row["id"]: asked("cache", "show", store, row["id"], "--json", *key)
            for row in rows
            if not row["why"]
        },
        "stats": asked("cache", "stats", store, "--json", *key),
        "verify": command("cache", "verify", store, *key)[0],
        "files": {row["id"]: _pulled(store, row["id"], files, key) for row in rows},
        "found": _found(files),
    }
    for row in rows:
        row["why"] = bool(row["why"])  # it is worded elsewhere
    return result


def _key(files: Path) -> list[str]:
    path = files / "team.key"
    if not path.exists():
        return []
    path.chmod(0o600)  # git keeps no such mode
    return ["--cache-key", str(path)]


def _pulled(store: str, archive: str, files: Path, key: list[str]) -> Any:
    """Checksums of the files of an archive; the exit code if it cannot be used."""
    folder = files / "pulled" / archive
    folder.mkdir(parents=True)
    code, _ = command("cache", "pull", store, archive, str(folder), *key)
    for path in folder.rglob("__grp__*"):  # where it names the folder it was put into
        path.write_text(path.read_text().replace(str(folder), "FOLDER"))
    runs = [path.name for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 1]
    return code or {"sums": sums(folder), "executable": sorted(runs)}


def _store(files: Path) -> ArchiveStore:
    key = _key(files)
    return ArchiveStore(str(files / "store"), read_key(key[1]) if key else None)


def _found(files: Path) -> dict[str, str]:
    """The level of the archive that a job finds: by its facts, its name and its code."""
    store = _store(files)
    machines = sorted((files / "store" / "machines").glob("*.json"))
    return {
        f"{machine.stem} {job} {code}": store.find(
            CacheKey(facts=json.loads(machine.read_text()), job=job, code=code)
        ).level
        for machine in machines
        for job in ("train", "serve", "another")
        for code in ("1" * 16, "3" * 16)
    }


def sealed(files: Path) -> list[Path]:
    """The chunks of usable archives, and their manifests if signed."""
    result = []
    for archive in list_archives(_store(files)):
        if archive.manifest is not None:
            chunks = [chunk.name for chunk in archive.manifest.chunks]
            result += [files / "store" / "chunks" / name[:2] / name for name in chunks]
            result += [files / "store" / archive.name] if _key(files) else []
    return result


def refused(files: Path) -> bool:
    """Whether no archive is usable."""
    _, out = command("cache", "verify", str(files / "store"), *_key(files))
    return out.splitlines()[-1].startswith("0 of ")
