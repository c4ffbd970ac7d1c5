"""Which checkpoint is gone on from: the newest whole one, and why not a newer one."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest

from headway.checkpoint.store.store import Store
from tests.support import code_of, examples
from tests.unit.checkpoint.store.small_saves import save

FILES = (".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json")


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_wherever_it_is(name: str, tmp_path: Path) -> None:
    old = save(tmp_path, 1, "old")
    new = save(tmp_path, 2, "new", world=2)
    path = Path(new.path) / name
    bits = path.stat().st_size * 8
    chance = random.Random(7)
    for bit in {0, bits - 1, *(chance.randrange(bits) for _ in range(examples(150)))}:
        flip(path, bit)
        found = Store(tmp_path).latest_valid("full")
        assert found.checkpoint == old, bit
        (note,) = found.notes
        assert "step-0000000002" in note and code_of(note)
        flip(path, bit)
    assert Store(tmp_path).latest_valid("full").checkpoint == new


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("depth", ["quick", "full"])
def test_a_file_that_is_cut_or_gone_is_found(name: str, depth: str, tmp_path: Path) -> None:
    old = save(tmp_path, 1, "old")
    new = save(tmp_path, 2, "new", world=2)
    path = Path(new.path) / name
    for size in (path.stat().st_size - 1, 1, 0, None):
        if size is None:
            path.unlink()
        else:
            os.truncate(path, size)
        found = Store(tmp_path).latest_valid(depth)  # type: ignore[arg-type]
        assert found.checkpoint == old
        assert len(found.notes) == 1


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "truncated"),
        (b'{"sha2', "truncated"),
        (b'{"weights": 1}', "not-of-headway"),
        (b"\x80\x04garbage", "not-of-headway"),
        (None, "manifest-missing"),
    ],
)
def test_a_foreign_manifest_has_one_reason(
    content: bytes | None, code: str, tmp_path: Path
) -> None:
    (tmp_path / "step-0000000009").mkdir()
    if content is not None:
        (tmp_path / "step-0000000009" / "manifest.json").write_bytes(content)
    save(tmp_path, 1, "old")
    found = Store(tmp_path).latest_valid()
    assert found.checkpoint is not None and found.checkpoint.step == 1
    (note,) = found.notes
    assert "step-0000000009" in note and code_of(note) == code


def test_a_checkpoint_under_another_name_is_not_taken_for_it(tmp_path: Path) -> None:
    one = save(tmp_path, 1, "old")
    os.rename(one.path, tmp_path / "step-0000000002")
    found = Store(tmp_path).latest_valid()
    assert found.checkpoint is None
    (note,) = found.notes
    assert "step-0000000002" in note and code_of(note) == "manifest-of-other-step"


def test_a_delta_is_as_good_as_what_it_builds_on(tmp_path: Path) -> None:
    full = save(tmp_path, 1, "full")
    save(tmp_path, 2, "delta1", parent="full")
    last = save(tmp_path, 3, "delta2", parent="delta1")
    assert Store(tmp_path).latest_valid("full").checkpoint == last
    assert [one.step for one in Store(tmp_path).chain(last)] == [1, 2, 3]
    (Path(full.path) / "__0_0.distcp").write_bytes(b"")
    found = Store(tmp_path).latest_valid()
    assert found.checkpoint is None
    assert [set(re.findall(r"step-\d+", note)) for note in found.notes] == [
        {"step-0000000003", "step-0000000001"},  # which it builds on
        {"step-0000000002", "step-0000000001"},
        {"step-0000000001"},
    ]
    assert {code_of(note) for note in found.notes} == {"size-mismatch"}
    assert all("__0_0.distcp" in note for note in found.notes)


def test_a_delta_outlives_the_name_of_what_it_builds_on(tmp_path: Path) -> None:
    save(tmp_path, 1, "full")
    delta = save(tmp_path, 2, "delta", parent="full")
    again = save(tmp_path, 1, "again")
    store = Store(tmp_path)
    assert store.checkpoints() == [again, delta]
    assert store.verify(delta, "full") == ""


def test_a_delta_without_a_parent_is_passed_over(tmp_path: Path) -> None:
    full = save(tmp_path, 1, "full")
    save(tmp_path, 2, "delta", parent="full")
    shutil.rmtree(full.path)
    found = Store(tmp_path).latest_valid()
    (note,) = found.notes
    assert "step-0000000002" in note and code_of(note) == "parent-missing"


def test_the_clock_may_jump(tmp_path: Path) -> None:
    one = save(tmp_path, 1, "one")
    manifest = json.loads((Path(one.path) / "manifest.json").read_bytes())["sealed"]
    assert (manifest["made"], manifest["sequence"]) == (0.0, 1)
    assert save(tmp_path, 2, "two").manifest.sequence == 2
    assert Store(tmp_path).checkpoints()[0].step == 2
