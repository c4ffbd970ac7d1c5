"""Old files as the schema of today wants them; the files stay as they are until compaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headway.fleet.schema import SCHEMA, Table

if TYPE_CHECKING:
    import ibis.expr.types as ir

    Step = Callable[[ir.Table], ir.Table]

# From a schema to the next one, by table: what was renamed or is counted differently. A column
# that is only new needs no step, it is null in old files; one that is gone needs none either.
STEPS: Mapping[int, Mapping[str, Step]] = {}


def migrate(table: Table, found: ir.Table, schema: int) -> ir.Table:
    """A table that was read from files of that schema, with the columns of today."""
    import ibis

    for old in range(schema, SCHEMA):
        step = STEPS.get(old, {}).get(table.name)
        found = step(found) if step else found
    columns = {
        column.name: (
            found[column.name].cast(column.type)
            if column.name in found.columns
            else ibis.null(column.type)
        )
        for column in table.columns
    }
    return found.select(**columns)
