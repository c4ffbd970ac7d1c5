"""The schema against its documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.cli.fleet import ACTIONS, ASK
from headway.fleet.queries.dimensions import DIMENSIONS
from headway.fleet.queries.queries import QUERIES
from headway.fleet.schema import SCHEMA, TABLES, TYPES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "fleet.md").read_text()


@pytest.mark.parametrize("name", TABLES)
def test_every_column_is_explained(name: str) -> None:
    below = PAGE.partition(f"### {name}\n")[2].partition("\n### ")[0]
    assert f"Partitioned by the day of `{TABLES[name].day}`." in below
    told = [row for row in below.splitlines() if row.startswith("| `")]
    assert told == [
        f"| `{c.name}` | {c.type} | {'' if c.required else 'may be null'} | {c.meaning} |"
        for c in TABLES[name].columns
    ]


def test_the_schema_that_is_told_is_the_one_in_use() -> None:
    assert f"Schema {SCHEMA}." in PAGE
    assert {column.type for table in TABLES.values() for column in table.columns} <= {*TYPES}


def test_every_question_is_explained_and_can_be_asked() -> None:
    asked = PAGE.partition("## Ask")[2].partition("\n## ")[0]
    lines = [line for line in asked.splitlines() if line[:3] == "| `"]
    rows = [line.strip("|").split("|") for line in lines]
    told = {row[0].strip(" `"): tuple(re.findall(r"`(\w+)`", row[-1])) for row in rows}
    assert told == {name: query.by for name, query in QUERIES.items()}
    assert [name for name, (module, _) in ACTIONS.items() if module == ASK] == [*QUERIES]


def test_every_split_is_explained() -> None:
    asked = PAGE.partition("## Ask")[2].partition("## Compact")[0]
    labels = PAGE.partition("**Labels**")[2].partition("have a column")[0]
    told = {*re.findall(r"`(\w+)`", asked), *re.findall(r"`(\w+)`", labels)}
    assert {*DIMENSIONS, *(own for query in QUERIES.values() for own in query.dimensions)} <= told
