"""Store of compile archives: find by key, verify, fetch, publish.

    archives/<key>/<job>/<id>     a sealed manifest; never changed once it is written
    chunks/<ab>/<sha256>          bytes, named by their content
    machines/<key>.json           the facts behind a key, to explain a miss

Every save writes a manifest of its own with all files that its job knows, and deletes the manifests
it was itself restored from. If two jobs save at once, both manifests stay and the next job is
restored from both. Nothing is lost and no lock is needed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway import __version__
from headway.compile.cache import keys, manifest
from headway.compile.cache.folder import DAY, CacheFolder
from headway.compile.cache.keys import CacheKey
from headway.compile.cache.manifest import Chunk, File, Manifest
from headway.errors import FINE, Reason
from headway.probe import host_facts
from headway.storage import chunks, signing
from headway.storage.object_places import ObjectMissing, ObjectPlace, open_object_place

MAX_UNUSED_DAYS = 30  # a file that no run has used for so long is left out of the next archive
LARGEST = 4 << 30  # bytes of an archive; the files that were used last are kept
REFRESH_DAYS = 7  # an archive that is used and not changed is made anew after this time
MAX_NEAR_ARCHIVES = 3  # archives of other jobs that are tried
LOOKUP_ATTEMPTS = 3  # at a list in which all that was found has been superseded meanwhile
MAX_FACTS_BYTES = 1 << 20  # bytes of the facts of a machine


@dataclass(frozen=True, kw_only=True)
class CacheLookup:
    """What is there for it."""

    level: str  # exact, job (its code has changed), near (another job's), or miss
    why: Reason = FINE
    manifests: tuple[Manifest, ...] = ()
    refused: tuple[Reason, ...] = ()  # one sentence for each archive that may not be used
    broken: tuple[Manifest, ...] = ()  # signed, but their bytes are not there or were changed

    @property
    def cold_s(self) -> float:
        """Seconds of compiling when nothing was there."""
        own = () if self.level == "near" else self.manifests
        return max((one.cold_s for one in own), default=0.0)


class ArchiveStore:
    """Archives in one place, under one key of the team."""

    def __init__(self, url: str, key: signing.SigningKey | None = None) -> None:
        self.place: ObjectPlace = open_object_place(url)
        self.key = key

    def distrust(self) -> Reason:
        """Why nothing from here may be used; empty if it may."""
        return self.place.distrust() if self.key is None else FINE

    # Finding

    def find(self, wanted: CacheKey) -> CacheLookup:
        """The archives for a job: its own, else those of jobs that run on the same things."""
        for _ in range(LOOKUP_ATTEMPTS):
            refused: list[Reason] = []
            found, gone = self._look(wanted, refused)
            if found is not None:
                return replace(found, refused=tuple(refused))
            if not gone:
                break
        why = refused[-1] if refused else self._why_none(wanted)
        return CacheLookup(level="miss", why=why, refused=tuple(refused))

    def _look(self, wanted: CacheKey, refused: list[Reason]) -> tuple[CacheLookup | None, bool]:
        """What is there, and whether something went away while we looked."""
        root = f"archives/{wanted.key}/"
        names = [name for name, _, _ in self.place.entries(root)]
        own = [name for name in names if name.startswith(f"{root}{wanted.job}/")]
        mine, gone = self._usable(own, refused)
        if mine:
            exact = wanted.code != "" and any(one.code == wanted.code for one in mine)
            changed = Reason("the code has changed since it was made", code="code-changed")
            if not wanted.code:
                text = "nobody can tell whether the code has changed since it was made"
                changed = Reason(text, code="code-unknown")
            why = _with_torch_moved(FINE if exact else changed, wanted, mine)
            return CacheLookup(level="exact" if exact else "job", why=why, manifests=mine), gone
        others = sorted(set(names) - set(own), key=lambda name: name.rpartition("/")[2])[
            -MAX_NEAR_ARCHIVES:
        ]
        near, went = self._usable(others, refused)
        if near:
            text = f"{wanted.job} has none yet; this one is of {near[0].job}"
            why = _with_torch_moved(Reason(text, code="archive-of-another-job"), wanted, near[:1])
            return CacheLookup(level="near", why=why, manifests=near[:1]), gone
        return None, gone or went

    def manifest(self, name: str) -> Manifest:
        """Read and verify one; Untrusted or DamagedData say why it is not to be used."""
        stored = self.place.read(name, manifest.MAX_MANIFEST_BYTES, own=self.key is None)
        one = manifest.decode_manifest(signing.unseal(stored, self.key))
        if name != _manifest_name(one):
            raise signing.Untrusted(
                "it lies where another one belongs", code="archive-in-wrong-place"
            )
        return one

    def _usable(
        self, names: Iterable[str], refused: list[Reason]
    ) -> tuple[tuple[Manifest, ...], bool]:
        """Those that may be used, the newest first, and whether one of them has gone."""
        found, gone = [], False
        for name in names:
            try:
                found.append(self.manifest(name))
            except ObjectMissing:
                gone = True
            except (chunks.DamagedData, signing.Untrusted) as error:
                refused.append(_refusal(name, error))
        old = {gone for one in found for gone in one.supersedes}
        live = [one for one in found if one.id not in old]
        return tuple(sorted(live, key=lambda one: -one.made)), gone

    def _why_none(self, wanted: CacheKey) -> Reason:
        known = list(self._machines())
        if not known:
            return Reason("the store is empty", code="store-empty")
        there = min(known, key=lambda facts: len(keys.differing_facts(wanted.facts, facts)))
        told = keys.describe_difference(wanted.facts, there)
        if told:
            return Reason(told, code="machine-differs")
        return Reason("its archives are gone", code="archives-gone")

    def _machines(self) -> Iterator[dict[str, Any]]:
        for name, _, _ in self.place.entries("machines"):
            try:
                facts = json.loads(self.place.read(name, MAX_FACTS_BYTES))
            except (ObjectMissing, chunks.DamagedData, ValueError, RecursionError):
                continue
            if isinstance(facts, dict):
                yield facts

    # Fetching

    def fetch(self, one: Manifest) -> Iterator[bytes]:
        """Its bytes in order, each chunk verified before it is handed on."""
        return chunks.parallel_map(self.chunk, one.chunks)

    def chunk(self, chunk: Chunk) -> bytes:
        """The bytes of a chunk, if they are what its name says."""
        called = f"its chunk {chunk.name[:12]}"
        try:
            packed = self.place.read(_chunk_path(chunk.name), chunk.size + 1, own=self.key is None)
            content = chunks.unpack_chunk(packed, chunk.size)
        except ObjectMissing:
            raise chunks.DamagedData(f"{called} is missing", code="chunk-missing") from None
        except (chunks.DamagedData, signing.Untrusted) as error:
            raise chunks.DamagedData(f"{called} cannot be used: {error}", code=error.code) from None
        if chunks.chunk_name(content) != chunk.name:
            raise chunks.DamagedData(f"{called} was changed", code="chunk-changed")
        return content

    def restore(self, found: CacheLookup, tree: CacheFolder) -> tuple[CacheLookup, int]:
        """Fill the folder. What could be used of it, and the number of files."""
        made, refused = 0, list(found.refused)
        good: list[Manifest] = []
        broken: list[Manifest] = []
        for one in found.manifests:
            try:
                made += tree.restore(
                    one, self.fetch(one), _is_shareable if found.level == "near" else _every_file
                )
                good.append(one)
            except chunks.DamagedData as error:
                broken.append(one)
                refused.append(_refusal(f"{one.id} of {one.job}", error))
        if broken and not good:
            found = CacheLookup(level="miss", why=refused[-1])
        found = replace(found, manifests=tuple(good), broken=tuple(broken))
        return replace(found, refused=tuple(refused)), made

    # Publishing

    def publish(
        self,
        tree: CacheFolder,
        wanted: CacheKey,
        base: CacheLookup,
        cold_s: float,
        now: float | None = None,
    ) -> Manifest | None:
        """Save what the folder holds; None if that is what the store has already."""
        made = time.time() if now is None else now
        today = int(made // DAY)
        names = [name for name in tree.files() if base.level != "near" or tree.used(name)]
        if _is_unchanged(tree, names, base, made):
            return None
        picked = _select_files(tree, names, today)
        files: list[File] = []
        parts = self._put_chunks(_read_files(tree, picked, today, files), self._known(base, wanted))
        if not files:
            return None
        lost = {*names} - {*picked}  # by their age, or as there is no room
        one = Manifest(
            id=f"{int(made * 1000):x}-{secrets.token_hex(4)}",
            made=made,
            job=wanted.job,
            code=wanted.code,
            facts=wanted.facts,
            cold_s=max(cold_s, base.cold_s),
            files=tuple(files),
            chunks=tuple(parts),
            supersedes=_superseded_ids(base, wanted, lost | {file.path for file in files}),
            maker={"headway": __version__, "host": os.uname().nodename},
        )
        self._put_manifest(one)
        return one

    def _known(self, base: CacheLookup, wanted: CacheKey) -> set[str]:
        """The chunks that are there: of archives that nobody has cleared away meanwhile."""
        there = {name for name, _, _ in self.place.entries(f"archives/{wanted.key}/")}
        return {
            c.name for one in base.manifests if _manifest_name(one) in there for c in one.chunks
        }

    def _put_chunks(self, contents: Iterable[bytes], known: set[str]) -> list[Chunk]:
        parts: list[Chunk] = []

        def new() -> Iterator[tuple[str, bytes]]:
            for content in chunks.split_chunks(contents):
                chunk = Chunk(chunks.chunk_name(content), len(content))
                parts.append(chunk)
                if chunk.name not in known:
                    known.add(chunk.name)
                    yield chunk.name, content

        for _ in chunks.parallel_map(self._put, new()):
            pass
        return parts

    def adopt(self, one: Manifest, read: Callable[[Chunk], bytes]) -> None:
        """Take an archive over from another store, under this store's key."""
        for chunk in one.chunks:
            self._put((chunk.name, read(chunk)))
        self._put_manifest(replace(one, supersedes=()))

    def _put(self, chunk: tuple[str, bytes]) -> None:
        name, content = chunk
        self.place.write(_chunk_path(name), chunks.pack_chunk(content))

    def _put_manifest(self, one: Manifest) -> None:
        facts = json.dumps(dict(one.facts), sort_keys=True, indent=1) + "\n"
        self.place.write(f"machines/{host_facts.compile_key(one.facts)}.json", facts.encode())
        self.place.write(_manifest_name(one), signing.seal(manifest.encode_manifest(one), self.key))
        for old in one.supersedes:
            self.place.delete(_manifest_name(replace(one, id=old)))


def _refusal(name: str, error: chunks.DamagedData | signing.Untrusted) -> Reason:
    return Reason(f"the archive {name} is not used: {error}", code=error.code)


def _with_torch_moved(why: Reason, wanted: CacheKey, found: Sequence[Manifest]) -> Reason:
    """The same, and what cannot be used of it."""
    here = wanted.facts.get(host_facts.PLACE)
    if any(one.facts.get(host_facts.PLACE) == here for one in found):
        return why
    moved = Reason("torch lies elsewhere now, and builds its C++ code anew", code="torch-moved")
    return Reason(f"{why}; {moved}", code=why.code) if why else moved


def _is_unchanged(tree: CacheFolder, names: Sequence[str], base: CacheLookup, now: float) -> bool:
    """Whether all of it is in the archive that it was restored from, and that is young enough."""
    if base.level != "exact" or len(base.manifests) != 1:
        return False
    fresh = now - base.manifests[0].made < REFRESH_DAYS * DAY
    listed = {file.path for file in base.manifests[0].files}
    return fresh and all(name in listed and not tree.changed(name) for name in names)


def _select_files(tree: CacheFolder, names: Sequence[str], today: int) -> list[str]:
    """The files that are kept: used not long ago, and as many as there is room for."""
    found = [file for name in names if (file := tree.describe(name, today)) is not None]
    room, kept = LARGEST, set()
    for file in sorted(found, key=lambda file: (-file.used, file.path)):
        if today - file.used <= MAX_UNUSED_DAYS and file.size <= room:
            room -= file.size
            kept.add(file.path)
    return [name for name in names if name in kept]


def _read_files(
    tree: CacheFolder, names: Sequence[str], today: int, files: list[File]
) -> Iterator[bytes]:
    """The content of each file; those that could be read are put into `files`."""
    for name in names:
        taken = tree.take(name, today)
        if taken is not None:
            files.append(taken[0])
            yield taken[1]


def _superseded_ids(base: CacheLookup, wanted: CacheKey, accounted: set[str]) -> tuple[str, ...]:
    """The archives of this job of which nothing is lost without them."""
    whole = (o for o in base.manifests if all(file.path in accounted for file in o.files))
    return tuple(old.id for old in (*whole, *base.broken) if old.job == wanted.job)


def _manifest_name(one: Manifest) -> str:
    """Where an archive belongs."""
    return f"archives/{host_facts.compile_key(one.facts)}/{one.job}/{one.id}"


def _every_file(path: str) -> bool:
    return True


def _is_shareable(path: str) -> bool:
    """Not a package: that is for the job that made it, in its own configuration."""
    return not re.match(r"dynamo/[^/]+/", path)


def _chunk_path(chunk: str) -> str:
    return f"chunks/{chunk[:2]}/{chunk}"
