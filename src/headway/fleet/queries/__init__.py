"""The questions asked of a store: one Ibis expression each, the same on every engine.

They keep to what Ibis can say on DuckDB, Spark and PostgreSQL. Each answer has `jobs` and
`accelerator_hours`, and every mean twice: `..._by_jobs` counts each run once, the other one
counts each accelerator-hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headway.errors import UsageError
from headway.fleet.queries import checkpoints, compiles, ett, failures, nodes, top, ttr, tts
from headway.fleet.queries.slices import DIMENSIONS, Filter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import ibis.expr.types as ir


class Query(NamedTuple):
    """One question: `by` is how it is split unless told otherwise, `own` what only it can do."""

    ask: Callable[[Mapping[str, ir.Table], Filter], ir.Table]
    by: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


QUERIES = {
    "ett": Query(ett.ett_query, own=ett.ETT_DIMENSIONS),
    "tts": Query(tts.tts_query, own=tts.TTS_DIMENSIONS),
    "ttr": Query(ttr.ttr_query, own=ttr.TTR_DIMENSIONS),
    "failures": Query(failures.failures_query, ("category",), failures.FAILURE_DIMENSIONS),
    "checkpoints": Query(
        checkpoints.checkpoints_query, ("level",), checkpoints.CHECKPOINT_DIMENSIONS
    ),
    "compile": Query(compiles.compiles_query, ("recompile", "cached"), compiles.COMPILE_DIMENSIONS),
    "nodes": Query(nodes.nodes_query, ("host",), nodes.NODE_DIMENSIONS),
    "top": Query(top.top_query, ("leaf",), top.TOP_DIMENSIONS),
}


def build_query(name: str, asked: Filter) -> Callable[[Mapping[str, ir.Table]], ir.Table]:
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
