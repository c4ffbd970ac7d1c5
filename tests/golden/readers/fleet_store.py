"""Fleet stores: every row that counts, and the answer to every question."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from headway.fleet.schema import TABLES
from headway.fleet.store.parquet import Store
from headway.fleet.store.view import open_view
from tests.golden.cases import asked, command

# Each with the ways to split it. The other stores have the same rows, and so the same answers.
QUESTIONS = {
    "ett": ((), ("--by", "team,week")),
    "tts": ((),),
    "ttr": ((),),
    "failures": ((), ("--by", "owner")),
    "checkpoints": ((),),
    "compile": ((),),
    "nodes": ((),),
    "top": ((),),
}


def read(name: str, files: Path) -> Any:
    store = str(files / "store")
    found: dict[str, Any] = {"rows": _rows(store)}
    if name == "written":
        found["regressions"] = asked("fleet", "regressions", "--store", store, "--json")
        found["answers"] = {
            " ".join([question, *more]): _answer(store, question, *more)
            for question, ways in QUESTIONS.items()
            for more in ways
        }
    if name == "interrupted":
        assert command("fleet", "compact", "--store", store)[0] == 0
        found["compacted"] = {table: len(rows) for table, rows in _rows(store).items()}
    return found


def _answer(store: str, question: str, *more: str) -> Any:
    return _rounded(asked("fleet", question, "--store", store, "--json", *more))


def _rounded(value: Any) -> Any:
    """An engine with threads adds up in any order, which may change the last digits."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _rows(url: str) -> dict[str, list[str]]:
    """Every row of every table that counts, as JSON, in order."""
    store = Store(url)
    with open_view(store, store.live_files()) as rows:
        tables = rows.tables()
        found = {name: rows.get(tables[name]).to_pylist() for name in TABLES}
    return {
        name: sorted(json.dumps(row, default=datetime.isoformat) for row in rows)
        for name, rows in found.items()
    }
