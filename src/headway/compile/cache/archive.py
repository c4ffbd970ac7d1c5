"""Store of compile archives: find by key, verify, fetch, publish.

    archives/<key>/<job>/<id>     a sealed manifest; never modified after it is written
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

MAX_UNUSED_DAYS = 30  # files unused for longer are left out of the next archive
MAX_ARCHIVE_BYTES = 4 << 30  # the most recently used files are kept
REFRESH_DAYS = 7  # after this time even an unchanged archive is published again
MAX_NEAR_ARCHIVES = 3  # archives of other jobs to try
LOOKUP_ATTEMPTS = 3  # retries if all listed archives were superseded before they were read
MAX_FACTS_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class CacheLookup:
    """The archives for a job, and how closely they match."""

    level: str  # exact, job (its code has changed), near (of another job), or miss
    reason: Reason = FINE
    manifests: tuple[Manifest, ...] = ()
    refusals: tuple[Reason, ...] = ()  # one sentence per archive that cannot be used
    damaged: tuple[Manifest, ...] = ()  # signed, but bytes are missing or modified

    @property
    def cold_s(self) -> float:
        """Seconds of compiling without an archive."""
        own = () if self.level == "near" else self.manifests
        return max((archive.cold_s for archive in own), default=0.0)


class ArchiveStore:
    """Archives in one place, signed with one key."""

    def __init__(self, url: str, key: signing.SigningKey | None = None) -> None:
        self.place: ObjectPlace = open_object_place(url)
        self.key = key

    def untrusted_reason(self) -> Reason:
        """Why nothing from this store can be used; empty if it can."""
        return self.place.untrusted_reason() if self.key is None else FINE

    # Finding

    def find(self, request: CacheKey) -> CacheLookup:
        """Find the archives for a job: its own, else those of other jobs with the same facts."""
        for _ in range(LOOKUP_ATTEMPTS):
            refusals: list[Reason] = []
            lookup, vanished = self._look_up(request, refusals)
            if lookup is not None:
                return replace(lookup, refusals=tuple(refusals))
            if not vanished:
                break
        reason = refusals[-1] if refusals else self._miss_reason(request)
        return CacheLookup(level="miss", reason=reason, refusals=tuple(refusals))

    def _look_up(
        self, request: CacheKey, refusals: list[Reason]
    ) -> tuple[CacheLookup | None, bool]:
        """The archives, and whether any of them disappeared during the lookup."""
        root = f"archives/{request.key}/"
        names = [name for name, _, _ in self.place.entries(root)]
        own_names = [name for name in names if name.startswith(f"{root}{request.job}/")]
        own, vanished = self._usable_manifests(own_names, refusals)
        if own:
            exact = request.code != "" and any(archive.code == request.code for archive in own)
            code_reason = Reason("the code has changed since then", code="code-changed")
            if not request.code:
                text = "whether the code has changed since then is unknown"
                code_reason = Reason(text, code="code-unknown")
            reason = _with_torch_moved(FINE if exact else code_reason, request, own)
            level = "exact" if exact else "job"
            return CacheLookup(level=level, reason=reason, manifests=own), vanished
        other_names = sorted(set(names) - set(own_names), key=lambda name: name.rpartition("/")[2])[
            -MAX_NEAR_ARCHIVES:
        ]
        nearest, others_vanished = self._usable_manifests(other_names, refusals)
        if nearest:
            text = f"no archive of {request.job} yet; this one is of {nearest[0].job}"
            reason = Reason(text, code="archive-of-another-job")
            reason = _with_torch_moved(reason, request, nearest[:1])
            return CacheLookup(level="near", reason=reason, manifests=nearest[:1]), vanished
        return None, vanished or others_vanished

    def read_manifest(self, name: str) -> Manifest:
        """Read and verify a manifest; raises Untrusted or DamagedData if it cannot be used."""
        data = self.place.read(name, manifest.MAX_MANIFEST_BYTES, owned_only=self.key is None)
        archive = manifest.decode_manifest(signing.unseal(data, self.key))
        if name != _manifest_name(archive):
            raise signing.Untrusted(
                "it is stored under the name of another archive", code="archive-in-wrong-place"
            )
        return archive

    def _usable_manifests(
        self, names: Iterable[str], refusals: list[Reason]
    ) -> tuple[tuple[Manifest, ...], bool]:
        """The usable archives, newest first, and whether any of them disappeared."""
        archives, vanished = [], False
        for name in names:
            try:
                archives.append(self.read_manifest(name))
            except ObjectMissing:
                vanished = True
            except (chunks.DamagedData, signing.Untrusted) as error:
                refusals.append(_refusal(name, error))
        superseded = {old_id for archive in archives for old_id in archive.supersedes}
        current = [archive for archive in archives if archive.id not in superseded]
        return tuple(sorted(current, key=lambda archive: -archive.made)), vanished

    def _miss_reason(self, request: CacheKey) -> Reason:
        machines = list(self._known_machines())
        if not machines:
            return Reason("the store is empty", code="store-empty")
        closest = min(machines, key=lambda facts: len(keys.differing_facts(request.facts, facts)))
        difference = keys.describe_difference(request.facts, closest)
        if difference:
            return Reason(difference, code="machine-differs")
        return Reason("its archives were deleted", code="archives-gone")

    def _known_machines(self) -> Iterator[dict[str, Any]]:
        for name, _, _ in self.place.entries("machines"):
            try:
                facts = json.loads(self.place.read(name, MAX_FACTS_BYTES))
            except (ObjectMissing, chunks.DamagedData, ValueError, RecursionError):
                continue
            if isinstance(facts, dict):
                yield facts

    # Fetching

    def fetch(self, archive: Manifest) -> Iterator[bytes]:
        """Yield the chunks in order; each is verified first."""
        return chunks.parallel_map(self.read_chunk, archive.chunks)

    def read_chunk(self, chunk: Chunk) -> bytes:
        """Read and verify a chunk."""
        label = f"the chunk {chunk.name[:12]}"
        try:
            packed = self.place.read(
                _chunk_path(chunk.name), chunk.size + 1, owned_only=self.key is None
            )
            content = chunks.unpack_chunk(packed, chunk.size)
        except ObjectMissing:
            raise chunks.DamagedData(f"{label} is missing", code="chunk-missing") from None
        except (chunks.DamagedData, signing.Untrusted) as error:
            raise chunks.DamagedData(f"{label} cannot be used: {error}", code=error.code) from None
        if chunks.chunk_name(content) != chunk.name:
            raise chunks.DamagedData(f"{label} was modified", code="chunk-changed")
        return content

    def restore(self, lookup: CacheLookup, folder: CacheFolder) -> tuple[CacheLookup, int]:
        """Restore files into the folder; returns what was usable, and the number of new files."""
        count, refusals = 0, list(lookup.refusals)
        restored: list[Manifest] = []
        damaged: list[Manifest] = []
        for archive in lookup.manifests:
            try:
                count += folder.restore(
                    archive,
                    self.fetch(archive),
                    _is_shareable if lookup.level == "near" else _every_file,
                )
                restored.append(archive)
            except chunks.DamagedData as error:
                damaged.append(archive)
                refusals.append(_refusal(f"{archive.id} of {archive.job}", error))
        if damaged and not restored:
            lookup = CacheLookup(level="miss", reason=refusals[-1])
        lookup = replace(lookup, manifests=tuple(restored), damaged=tuple(damaged))
        return replace(lookup, refusals=tuple(refusals)), count

    # Publishing

    def publish(
        self,
        folder: CacheFolder,
        request: CacheKey,
        base: CacheLookup,
        cold_s: float,
        now: float | None = None,
    ) -> Manifest | None:
        """Save the folder's files as an archive; None if the store already has all of them."""
        created_at = time.time() if now is None else now
        today = int(created_at // DAY)
        names = [name for name in folder.files() if base.level != "near" or folder.used(name)]
        if _is_unchanged(folder, names, base, created_at):
            return None
        selected = _select_files(folder, names, today)
        files: list[File] = []
        chunk_list = self._put_chunks(
            _read_files(folder, selected, today, files), self._stored_chunks(base, request)
        )
        if not files:
            return None
        dropped = {*names} - {*selected}  # too old, or over the size limit
        archive = Manifest(
            id=f"{int(created_at * 1000):x}-{secrets.token_hex(4)}",
            made=created_at,
            job=request.job,
            code=request.code,
            facts=request.facts,
            cold_s=max(cold_s, base.cold_s),
            files=tuple(files),
            chunks=tuple(chunk_list),
            supersedes=_superseded_ids(base, request, dropped | {file.path for file in files}),
            maker={"headway": __version__, "host": os.uname().nodename},
        )
        self._write_manifest(archive)
        return archive

    def _stored_chunks(self, base: CacheLookup, request: CacheKey) -> set[str]:
        """Names of the chunks of those base archives that were not deleted since."""
        present = {name for name, _, _ in self.place.entries(f"archives/{request.key}/")}
        return {
            chunk.name
            for archive in base.manifests
            if _manifest_name(archive) in present
            for chunk in archive.chunks
        }

    def _put_chunks(self, contents: Iterable[bytes], stored: set[str]) -> list[Chunk]:
        chunk_list: list[Chunk] = []

        def new_chunks() -> Iterator[tuple[str, bytes]]:
            for content in chunks.split_chunks(contents):
                chunk = Chunk(chunks.chunk_name(content), len(content))
                chunk_list.append(chunk)
                if chunk.name not in stored:
                    stored.add(chunk.name)
                    yield chunk.name, content

        for _ in chunks.parallel_map(self._write_chunk, new_chunks()):
            pass
        return chunk_list

    def import_archive(self, archive: Manifest, read: Callable[[Chunk], bytes]) -> None:
        """Copy an archive from another store and sign it with this store's key."""
        for chunk in archive.chunks:
            self._write_chunk((chunk.name, read(chunk)))
        self._write_manifest(replace(archive, supersedes=()))

    def _write_chunk(self, chunk: tuple[str, bytes]) -> None:
        name, content = chunk
        self.place.write(_chunk_path(name), chunks.pack_chunk(content))

    def _write_manifest(self, archive: Manifest) -> None:
        facts = json.dumps(dict(archive.facts), sort_keys=True, indent=1) + "\n"
        self.place.write(f"machines/{host_facts.compile_key(archive.facts)}.json", facts.encode())
        self.place.write(
            _manifest_name(archive), signing.seal(manifest.encode_manifest(archive), self.key)
        )
        for old_id in archive.supersedes:
            self.place.delete(_manifest_name(replace(archive, id=old_id)))


def _refusal(name: str, error: chunks.DamagedData | signing.Untrusted) -> Reason:
    return Reason(f"archive {name} not used: {error}", code=error.code)


def _with_torch_moved(reason: Reason, request: CacheKey, archives: Sequence[Manifest]) -> Reason:
    """The reason, extended if torch is installed in another path than when it was made."""
    here = request.facts.get(host_facts.PLACE)
    if any(archive.facts.get(host_facts.PLACE) == here for archive in archives):
        return reason
    moved = Reason(
        "torch is installed in another path and rebuilds its C++ code", code="torch-moved"
    )
    return Reason(f"{reason}; {moved}", code=reason.code) if reason else moved


def _is_unchanged(folder: CacheFolder, names: Sequence[str], base: CacheLookup, now: float) -> bool:
    """Whether the archive it was restored from has every file and is recent enough."""
    if base.level != "exact" or len(base.manifests) != 1:
        return False
    is_fresh = now - base.manifests[0].made < REFRESH_DAYS * DAY
    listed = {file.path for file in base.manifests[0].files}
    return is_fresh and all(name in listed and not folder.changed(name) for name in names)


def _select_files(folder: CacheFolder, names: Sequence[str], today: int) -> list[str]:
    """Select recently used files, as many as fit."""
    files = [file for name in names if (file := folder.describe(name, today)) is not None]
    room, selected = MAX_ARCHIVE_BYTES, set()
    for file in sorted(files, key=lambda file: (-file.used, file.path)):
        if today - file.used <= MAX_UNUSED_DAYS and file.size <= room:
            room -= file.size
            selected.add(file.path)
    return [name for name in names if name in selected]


def _read_files(
    folder: CacheFolder, names: Sequence[str], today: int, files: list[File]
) -> Iterator[bytes]:
    """Yield the content of each readable file, and append the file to `files`."""
    for name in names:
        result = folder.read(name, today)
        if result is not None:
            files.append(result[0])
            yield result[1]


def _superseded_ids(base: CacheLookup, request: CacheKey, included: set[str]) -> tuple[str, ...]:
    """Archives of this job that the new one replaces completely."""
    replaced = (
        archive
        for archive in base.manifests
        if all(file.path in included for file in archive.files)
    )
    return tuple(archive.id for archive in (*replaced, *base.damaged) if archive.job == request.job)


def _manifest_name(archive: Manifest) -> str:
    """The name of an archive's manifest in the store."""
    return f"archives/{host_facts.compile_key(archive.facts)}/{archive.job}/{archive.id}"


def _every_file(path: str) -> bool:
    return True


def _is_shareable(path: str) -> bool:
    """False for precompile packages: they are valid for one job and configuration only."""
    return not re.match(r"dynamo/[^/]+/", path)


def _chunk_path(chunk: str) -> str:
    return f"chunks/{chunk[:2]}/{chunk}"
