"""The questions asked of a store: one Ibis expression each, the same on every engine.

They keep to what Ibis can say on DuckDB, Spark and PostgreSQL. Each answer has `jobs` and
`accelerator_hours`, and every mean twice: `..._by_jobs` counts each run once, the other one
counts each accelerator-hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headway.errors import UsageError
from headway.fleet.queries import checkpoints, compiles, ett, failures, nodes, top, ttr, tts
from headway.fleet.queries.slices import DIMENSIONS, Asked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import ibis.expr.types as ir


class Query(NamedTuple):
    """One question: `by` is how it is split unless told otherwise, `own` what only it can do."""

    ask: Callable[[Mapping[str, ir.Table], Asked], ir.Table]
    by: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


QUERIES = {
    "ett": Query(ett.ask, own=ett.OWN),
    "tts": Query(tts.ask, own=tts.OWN),
    "ttr": Query(ttr.ask, own=ttr.OWN),
    "failures": Query(failures.ask, ("category",), failures.OWN),
    "checkpoints": Query(checkpoints.ask, ("level",), checkpoints.OWN),
    "compile": Query(compiles.ask, ("recompile", "cached"), compiles.OWN),
    "nodes": Query(nodes.ask, ("host",), nodes.OWN),
    "top": Query(top.ask, ("leaf",), top.OWN),
}


def question(name: str, asked: Asked) -> Callable[[Mapping[str, ir.Table]], ir.Table]:
    """The question of that name, ready to be put to the tables; UsageError for a bad split."""
    query = QUERIES[name]
    asked = asked._replace(by=asked.by or query.by)
    known = (*DIMENSIONS, *query.own)
    for one in asked.by:
        if one not in known:
            raise UsageError(
                f"{name} cannot be split by {one!r}; it can by {', '.join(known)}",
                code="split-unknown",
                split=one,
            )
    return lambda tables: query.ask(tables, asked)
