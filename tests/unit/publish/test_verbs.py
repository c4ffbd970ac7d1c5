"""`headway publish` without a model: what is printed of snapshots, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.publish.store import SnapshotStore
from tests.support import Golden, cli, codes
from tests.unit.publish.snapshots import publish


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    """With three snapshots, the second of which is damaged."""
    filled = SnapshotStore(tmp_path / "store")
    snapshots = [publish(filled, anchor) for anchor in "abc"]
    filled.place.write(snapshots[1].manifest.files["weights"].stored, b"weights of x")
    return filled


def test_what_each_option_prints(
    store: SnapshotStore, utc: None, tmp_path: Path, golden: Golden
) -> None:
    pages = []
    for words, code in (
        (("--list", "--to", "nothing"), 0),
        (("--list", "--to", "store"), 0),
        (("--list", "--check", "--to", "store"), 70),
        (("--show", "1", "--to", "store"), 0),
        (("--rollback", "--to", "store"), 0),
        (("--list", "--to", "store"), 0),
    ):
        done = cli("publish", *words, cwd=tmp_path)
        assert done.returncode == code
        pages.append(f"$ headway publish {' '.join(words)}\n{done.stdout}{done.stderr}")
    golden("publish.txt", "\n".join(pages).replace(str(tmp_path), "FOLDER"))


def test_what_can_be_read_by_a_program(store: SnapshotStore, tmp_path: Path) -> None:
    rows = json.loads(cli("publish", "--list", "--json", "--to", "store", cwd=tmp_path).stdout)
    assert [row["serves"] for row in rows] == [False, False, True]
    assert [bool(row["damage"]) for row in rows] == [False, False, False], "by their sizes"
    done = cli("publish", "--list", "--json", "--check", "--to", "store", cwd=tmp_path)
    assert [bool(row["damage"]) for row in json.loads(done.stdout)] == [False, True, False]
    assert codes(done.stderr) == ["snapshot-damaged"]
