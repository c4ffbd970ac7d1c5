"""List, verify, copy and clean up a store of compile archives.

  headway cache list ./cache                 list the archives, the newest last
  headway cache show ./cache ID              print one archive and its files
  headway cache verify ./cache               read and verify every byte
  headway cache pull ./cache ID FOLDER       write its files to a folder
  headway cache push ./cache s3://team/cache [ID]    copy archives to another store
  headway cache gc ./cache --max-size 50G --max-age 30d
  headway cache stats ./cache                print the stored and shared sizes

Archives contain code that is run. Only archives signed with the team's key (--cache-key FILE) are
used, or unsigned archives in a folder that you own and no one else can write.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway import redact
from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.compile.cache.archive import ArchiveStore
    from headway.compile.cache.cleanup import StoredArchive

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
TIMES = {"h": 3600, "d": 86400, "w": 604800}


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.usage = "headway cache list|show|verify|pull|push|gc|stats STORE [...] [options]"
    parser.add_argument("action", choices=sorted(ACTIONS), metavar="ACTION", help="see above")
    parser.add_argument("store", metavar="STORE", help="folder or URL of the store")
    parser.add_argument("rest", nargs="*", metavar="...", help="arguments of the action")
    parser.add_argument("--cache-key", metavar="FILE", help="the team's key")
    parser.add_argument("--target-key", metavar="FILE", help="push: the key of the other store")
    parser.add_argument("--max-size", metavar="SIZE", help="gc: maximum total size, such as 50G")
    parser.add_argument("--max-age", metavar="AGE", help="gc: maximum age, such as 30d")
    parser.add_argument(
        "--dry-run", action="store_true", help="gc: only print what would be deleted"
    )
    parser.add_argument("--json", action="store_true", help="list, show, stats: print JSON")


def run(args: argparse.Namespace) -> int:
    from headway.settings import Settings

    key = Settings.read(cache_key=args.cache_key).cache_key
    store = _open(args.store, key)
    return ACTIONS[args.action](store, args)


def _open(url: str, key: str | None) -> ArchiveStore:
    from headway.compile.cache.archive import ArchiveStore
    from headway.storage.signing import read_key

    return ArchiveStore(url, read_key(key) if key else None)


def _list(store: ArchiveStore, args: argparse.Namespace) -> int:
    from headway.compile.cache.cleanup import list_archives

    rows = [_row(archive) for archive in list_archives(store)]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    if not rows:
        print(f"no archives in {redact.text(store.place.url)}")
    for row in rows:
        if row["why"]:
            print(f"{row['id']:<22} unusable: {row['why']}")
            continue
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["made"]))
        size = f"{row['bytes'] / 1e6:.1f} MB"
        print(
            f"{row['id']:<22} {created}  {row['job']:<24} {row['files']:>6} files {size:>10}"
            f"  cold {row['cold_s']:.1f} s  torch {row['torch']}  {row['gpu']}"
        )
    return 0


def _row(archive: StoredArchive) -> dict[str, Any]:
    manifest = archive.manifest
    row: dict[str, Any] = {"id": archive.id, "why": archive.reason}
    if manifest is None:
        return row
    return row | {
        "made": manifest.made,
        "job": manifest.job,
        "code": manifest.code,
        "files": len(manifest.files),
        "bytes": manifest.size,
        "cold_s": manifest.cold_s,
        "torch": manifest.facts.get("torch"),
        "gpu": "+".join(manifest.facts.get("gpu") or []) or "CPU",
    }


def _show(store: ArchiveStore, args: argparse.Namespace) -> int:
    archive = _find_archive(store, args.rest)
    manifest = archive.manifest
    if manifest is None:
        raise UsageError(
            f"the archive {args.rest[0]} cannot be used: {archive.reason}", code="archive-unusable"
        )
    detail = _row(archive) | {"facts": dict(manifest.facts), "maker": dict(manifest.maker)}
    detail |= {"content": {file.path: file.size for file in manifest.files}}
    if args.json:
        print(json.dumps(detail, indent=1))
        return 0
    for name, value in detail.items():
        if name == "content":
            print("content")
            for path, size in value.items():
                print(f"  {size:>10}  {path}")
        elif name != "why":
            print(f"{name:<8} {value}")
    return 0


def _verify(store: ArchiveStore, args: argparse.Namespace) -> int:
    from headway.compile.cache.cleanup import list_archives, verify_archive

    unusable = total = 0
    for archive in list_archives(store):
        reason = verify_archive(store, archive)
        total += 1
        unusable += bool(reason)
        print(f"{archive.id:<22} {reason or 'ok'}", flush=True)
    print(f"{total - unusable} of {total} archives are complete and usable")
    return 1 if unusable else 0


def _pull(store: ArchiveStore, args: argparse.Namespace) -> int:
    from headway.compile.cache.folder import CacheFolder
    from headway.storage import chunks

    if len(args.rest) != 2:
        raise UsageError(
            "pull needs an archive and a folder: headway cache pull STORE ID FOLDER",
            code="cache-pull-arguments",
        )
    reason = store.untrusted_reason()
    if reason:
        raise UsageError(
            f"archives contain code that is run, and {reason}", code="archive-key-missing"
        )
    archive = _find_archive(store, args.rest[:1])
    if archive.manifest is None:
        raise UsageError(
            f"the archive {args.rest[0]} cannot be used: {archive.reason}", code="archive-unusable"
        )
    try:
        file_count = CacheFolder(Path(args.rest[1]), owned=False).restore(
            archive.manifest, store.fetch(archive.manifest)
        )
    except chunks.DamagedData as error:
        raise UsageError(
            f"the archive {args.rest[0]} cannot be used: {error}", code="archive-unusable"
        ) from None
    print(
        f"{file_count} files in {args.rest[1]}; use it with TORCHINDUCTOR_CACHE_DIR={args.rest[1]}"
    )
    return 0


def _push(store: ArchiveStore, args: argparse.Namespace) -> int:
    from headway.compile.cache.cleanup import list_archives
    from headway.storage import chunks

    if not args.rest:
        raise UsageError(
            "push needs another store: headway cache push STORE OTHER [ID...]",
            code="cache-push-arguments",
        )
    reason = store.untrusted_reason()
    if reason:
        raise UsageError(
            f"archives contain code that is run, and {reason}", code="archive-key-missing"
        )
    other = _open(args.rest[0], args.target_key or args.cache_key)
    if other.key is not None and not other.key.signs:
        raise UsageError(
            "the key of the other store can only verify; push needs a signing key",
            code="archive-key-verify-only",
        )
    reason = other.untrusted_reason()
    if reason:
        raise UsageError(
            f"archives pushed there without a key would be unusable: {reason}",
            code="archive-key-missing",
        )
    chosen = [_find_archive(store, [name]) for name in args.rest[1:]] or list(list_archives(store))
    for archive in chosen:
        if archive.manifest is None:
            print(f"{archive.id:<22} skipped: {archive.reason}")
            continue
        try:
            other.import_archive(archive.manifest, store.read_chunk)
        except chunks.DamagedData as error:
            print(f"{archive.id:<22} skipped: {error}")
            continue
        print(f"{archive.id:<22} pushed to {args.rest[0]}", flush=True)
    return 0


def _gc(store: ArchiveStore, args: argparse.Namespace) -> int:
    from headway.compile.cache.cleanup import collect_garbage

    size = (
        None
        if args.max_size is None
        else _parse_quantity(args.max_size, UNITS, "--max-size", "50G")
    )
    age = None if args.max_age is None else _parse_quantity(args.max_age, TIMES, "--max-age", "30d")
    result = collect_garbage(store, max_size=size, max_age_s=age, dry_run=args.dry_run)
    would = "would be " if args.dry_run else ""
    print(
        f"{result.archives} archives and {result.chunks} chunks {would}deleted, "
        f"{result.bytes / 1e6:.1f} MB"
    )
    if result.unreadable:
        print(
            f"{result.unreadable} archives cannot be read; all chunks are kept, "
            "as they may need them"
        )
    return 0


def _stats(store: ArchiveStore, args: argparse.Namespace) -> int:
    from headway.compile.cache.cleanup import chunk_sizes, list_archives

    manifests = [
        manifest.manifest for manifest in list_archives(store) if manifest.manifest is not None
    ]
    stored = chunk_sizes(store)
    stats = {
        "archives": len(manifests),
        "jobs": len({manifest.job for manifest in manifests}),
        "machines": len(
            {json.dumps(dict(manifest.facts), sort_keys=True) for manifest in manifests}
        ),
        "bytes_in_archives": sum(manifest.size for manifest in manifests),
        "bytes_stored": sum(stored.values()),
        "cold_s": round(sum(manifest.cold_s for manifest in manifests), 1),
    }
    if args.json:
        print(json.dumps(stats, indent=1))
        return 0
    for name, value in stats.items():
        text = f"{value / 1e6:.1f} MB" if name.startswith("bytes") else value
        print(f"{name.replace('_', ' '):<18} {text}")
    return 0


ACTIONS: dict[str, Callable[[ArchiveStore, argparse.Namespace], int]] = {
    "list": _list,
    "show": _show,
    "verify": _verify,
    "pull": _pull,
    "push": _push,
    "gc": _gc,
    "stats": _stats,
}


def _find_archive(store: ArchiveStore, rest: list[str]) -> StoredArchive:
    """The archive whose id starts with the given text."""
    from headway.compile.cache.cleanup import list_archives

    if len(rest) != 1:
        raise UsageError(
            "give one archive; `headway cache list STORE` shows them", code="archive-not-given"
        )
    archives: Iterator[StoredArchive] = list_archives(store)
    matching = [archive for archive in archives if archive.id.startswith(rest[0])]
    if len(matching) != 1:
        count = "no archive" if not matching else f"{len(matching)} archives"
        raise UsageError(
            f"{count} in {store.place.url} with an id like {rest[0]}", code="archive-not-found"
        )
    return matching[0]


def _parse_quantity(text: str, units: dict[str, int], flag: str, example: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]?)", text)
    unit = match[2] if match else "?"
    scale = units.get(unit, units.get(unit.upper(), units.get(unit.lower())))
    if match is None or scale is None:
        raise UsageError(
            f"{flag} is {text!r}, but it must have the form of {example}", code="value-malformed"
        )
    return int(float(match[1]) * scale)
