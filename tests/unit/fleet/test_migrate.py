"""Old files stay readable. `stores/v1` was written by the first version of the schema."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headway.fleet import migrate
from headway.fleet.compact import compact
from headway.fleet.schema import TABLES, Column
from headway.fleet.store import Store

from .made import content, rows_of

V1 = Path(__file__).parent / "stores" / "v1"


@pytest.fixture
def old(tmp_path: Path) -> Store:
    return Store(str(shutil.copytree(V1, tmp_path / "store")))


def test_the_first_version_is_read(old: Store) -> None:
    assert content(old, "runs", "run_id", "team", "user", "wall_s") == [("a", "ads", "ann", 3600.0)]
    assert content(old, "failures", "category", "lost_s") == [("network", 60.0)]
    assert {file.schema for file in old.files()} == {1}


@pytest.fixture
def tomorrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema 2: `user` is called `person`, `planet` is new, `python` is gone."""
    runs = TABLES["runs"]
    columns = [column for column in runs.columns if column.name not in ("user", "python")]
    new = [Column("person", "string", "who"), Column("planet", "string", "where")]
    monkeypatch.setitem(TABLES, "runs", runs._replace(columns=(*new, *columns)))
    steps = {1: {"runs": lambda rows: rows.rename(person="user")}}
    monkeypatch.setattr(migrate, "STEPS", steps)
    for module in ("migrate", "store", "compact", "arrow"):
        monkeypatch.setattr(f"headway.fleet.{module}.SCHEMA", 2)


@pytest.mark.usefixtures("tomorrow")
def test_old_and_new_files_are_one_table(old: Store) -> None:
    old.write(rows_of("b", person="bob", planet="mars"))
    seen = [("a", "ann", None), ("b", "bob", "mars")]
    assert sorted(_people(old)) == seen
    assert {file.schema for file in old.files()} == {1, 2}
    compact(old)
    compact(old, grace_s=0.0)
    assert {file.schema for file in old.files()} == {2}
    assert sorted(_people(old)) == seen


def _people(store: Store) -> list[tuple[object, ...]]:
    from headway.fleet.engine import ask

    rows = ask(store, lambda tables: tables["runs"]).rows
    assert "python" not in rows.column_names and "user" not in rows.column_names
    return [(row["run_id"], row["person"], row["planet"]) for row in rows.to_pylist()]
