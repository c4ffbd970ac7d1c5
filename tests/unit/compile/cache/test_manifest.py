"""Encode and decode manifests, and refuse everything else."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.compile.cache import manifest
from headway.compile.cache.manifest import Chunk, File, decode_manifest, encode_manifest
from headway.storage import chunks
from headway.storage.chunks import DamagedData
from tests.support import examples, has_code
from tests.unit.compile.cache import sample_archives

NAMES = st.text("abcdefgh0123_.-", min_size=1, max_size=12).filter(lambda name: name.strip("."))


def stored(plain: bytes) -> bytes:
    return len(plain).to_bytes(8, "big") + chunks.pack_chunk(plain)


def altered(**fields: Any) -> bytes:
    """A valid manifest, with some fields replaced."""
    whole = encode_manifest(sample_archives.manifest())
    plain = json.loads(chunks.unpack_chunk(whole[8:], int.from_bytes(whole[:8], "big")))
    return stored(json.dumps(plain | fields).encode())


@settings(derandomize=True, deadline=None)
@given(
    paths=st.sets(st.lists(NAMES, min_size=2, max_size=2).map("/".join), max_size=8),
    sizes=st.lists(st.integers(0, 1000), min_size=8, max_size=8),
    job=NAMES,
    cold_s=st.floats(0, 1e6),
)
def test_round_trip(paths: set[str], sizes: list[int], job: str, cold_s: float) -> None:
    names = {path.split("/")[0] for path in paths}
    assert not names & paths
    files = tuple(File(path, sizes[i], i % 2 == 0, i) for i, path in enumerate(sorted(paths)))
    total = sum(file.size for file in files)
    original = sample_archives.manifest(
        files=files,
        chunks=(Chunk("ab" * 32, total),) if total else (),
        job=job,
        cold_s=cold_s,
        supersedes=("18c-00",),
    )
    assert decode_manifest(encode_manifest(original)) == original


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            ".",
            "..",
            "",
            "a/",
            "a\0b",
            "a/./b",
            "\ud800",
        ),
        *("a/" * 1000 + "b", "x" * 256),
    ],
)
def test_a_path_that_leads_out_of_the_folder_is_refused(path: str) -> None:
    with pytest.raises(DamagedData, check=has_code("file-outside-folder")):
        decode_manifest(altered(files=[[path, 5, False, 1]]))


@pytest.mark.parametrize("name", ["../x", "a/b", "", "..", ".", "a b", "x" * 101, "a\n", "\x1b[2J"])
@pytest.mark.parametrize("where", ["job", "id", "supersedes"])
def test_a_name_that_would_lead_elsewhere_is_refused(where: str, name: str) -> None:
    fields: dict[str, Any] = {where: [name] if where == "supersedes" else name}
    with pytest.raises(DamagedData, check=has_code("archive-name-malformed")):
        decode_manifest(altered(**fields))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"files": [["a", 4, False, 1]]}, "size-mismatch"),
        ({"files": [["a", 5, False, 1], ["a", 0, False, 1]]}, "file-twice"),
        ({"files": [["a", 5, False, 1], ["a/b", 0, False, 1]]}, "file-twice"),
        ({"chunks": [["x" * 64, 5]]}, "chunk-name-malformed"),
        ({"chunks": [["../../../../../../etc/passwd", 5]]}, "chunk-name-malformed"),
        ({"chunks": [["0" * 64, 5], ["1" * 64, 0]]}, "chunk-size-malformed"),
        ({"chunks": [["0" * 64, 1 << 60]]}, "chunk-size-malformed"),
        ({"files": [["a", -5, False, 1]]}, "archive-not-readable"),
        ({"files": [["a", 5.0, False, 1]]}, "archive-not-readable"),
        ({"files": [["a", True, False, 1]]}, "archive-not-readable"),
        ({"files": [["a", 5, 1, 1]]}, "archive-not-readable"),
        ({"files": [["a", 5, False, "today"]]}, "archive-not-readable"),
        ({"files": [[7, 5, False, 1]]}, "archive-not-readable"),
        ({"files": [["a", 5, False]]}, "archive-not-readable"),
        ({"files": "abc"}, "archive-not-readable"),
        ({"files": None}, "archive-not-readable"),
        ({"chunks": [[64, 5]]}, "archive-not-readable"),
        ({"made": "now"}, "archive-not-readable"),
        ({"made": float("nan")}, "archive-not-readable"),
        ({"cold_s": float("inf")}, "archive-not-readable"),
        ({"cold_s": None}, "archive-not-readable"),
        ({"facts": []}, "archive-not-readable"),
        ({"maker": "me"}, "archive-not-readable"),
        ({"code": 1}, "archive-not-readable"),
        ({"supersedes": [1]}, "archive-not-readable"),
        ({"supersedes": None}, "archive-not-readable"),
        ({"more": 1}, "archive-not-readable"),
        ({"schema": 2}, "archive-other-version"),
        ({"schema": None}, "archive-other-version"),
    ],
)
def test_what_is_wrong_is_said(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(DamagedData, check=has_code(code)):
        decode_manifest(altered(**fields))


@pytest.mark.parametrize(
    "plain", [b"", b"{", b"[]", b"null", b"7", b'"x"', b"{}", b"\xff", b"[" * 100_000]
)
def test_what_is_no_list_of_files_is_refused(plain: bytes) -> None:
    with pytest.raises(DamagedData):
        decode_manifest(stored(plain))


def test_one_that_says_it_is_huge_is_not_unpacked() -> None:
    with pytest.raises(DamagedData, check=has_code("archive-too-large")):
        decode_manifest(
            (manifest.MAX_MANIFEST_BYTES + 1).to_bytes(8, "big") + chunks.pack_chunk(b"x")
        )


@settings(derandomize=True, deadline=None, max_examples=examples(200))
@given(at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_changed_byte_makes_no_other_fault_than_a_refusal(at: int, value: int) -> None:
    whole = bytearray(encode_manifest(sample_archives.manifest()))
    whole[at % len(whole)] = value
    with contextlib.suppress(DamagedData):
        decode_manifest(bytes(whole))


@settings(derandomize=True, deadline=None, max_examples=examples(200))
@given(
    name=st.sampled_from(sorted(vars(sample_archives.manifest()))),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    ),
)
def test_any_value_in_any_field_is_read_or_refused(name: str, value: Any) -> None:
    with contextlib.suppress(DamagedData):
        decode_manifest(altered(**{name: value}))
