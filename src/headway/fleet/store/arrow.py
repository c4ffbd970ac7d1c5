"""Convert rows to Arrow tables and Parquet bytes according to the schema."""

from __future__ import annotations

import datetime
import importlib.util
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.errors import MissingExtra
from headway.fleet.schema import SCHEMA, VERSION, RowsInvalid, Table

if TYPE_CHECKING:
    import pyarrow


ROW_GROUP = 262_144
WRITE_PACKAGES = ("pyarrow",)
READ_PACKAGES = ("pyarrow", "duckdb", "ibis")
SCHEMA_KEY = b"headway.schema"


def require_packages(*packages: str) -> None:
    """Raise MissingExtra if a package is not installed, without importing any of them."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(f"a store needs {name}", extra="fleet")


def arrow_schema(table: Table) -> pyarrow.Schema:
    """The Arrow schema of a table's files."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "timestamp": pa.timestamp("us"),
    }
    fields = [pa.field(c.name, kinds[c.type], nullable=not c.required) for c in table.columns]
    return pa.schema(fields, {SCHEMA_KEY: str(SCHEMA).encode()})


def to_arrow(
    table: Table, rows: Sequence[Mapping[str, Any]] | pyarrow.Table, version: str
) -> pyarrow.Table:
    """Rows as an Arrow table with the write ID in `version`.

    Raises RowsInvalid for an unknown column, or for a null in a required one.
    """
    import pyarrow as pa

    schema = arrow_schema(table)
    if isinstance(rows, pa.Table):
        columns = {name: rows.column(name) for name in rows.column_names}
        count = rows.num_rows
    else:
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        count = len(rows)
    columns[VERSION.name] = pa.repeat(version, count)
    unknown = columns.keys() - set(schema.names)
    if unknown:
        raise RowsInvalid(
            f"the table {table.name} has no column {min(unknown)!r}",
            code="column-unknown",
            table=table.name,
            column=min(unknown),
        )
    arrays = []
    for field in schema:
        value = columns.get(field.name)
        column = pa.nulls(count, field.type) if value is None else _column(value, field.type)
        if column.null_count and not field.nullable:
            raise RowsInvalid(
                f"{table.name}.{field.name} must not be null",
                code="value-missing",
                table=table.name,
                column=field.name,
            )
        arrays.append(column)
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(value: Any, kind: pyarrow.DataType) -> Any:
    import pyarrow as pa

    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return value.cast(kind)
    try:
        return pa.array(value, kind)
    except UnicodeEncodeError:  # a command or a path may contain bytes that are not valid text
        texts = (text.encode("utf-8", "replace").decode() if text else text for text in value)
        return pa.array(list(texts), kind)


def split_by_day(table: Table, rows: pyarrow.Table) -> Iterator[tuple[str, pyarrow.Table]]:
    """Yield the rows of each day, with the day in ISO 8601."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = pc.cast(rows.column(table.day), pa.date32())
    for day in pc.unique(days).to_pylist():
        yield day.isoformat(), rows.filter(pc.equal(days, pa.scalar(day, pa.date32())))


def to_parquet(rows: pyarrow.Table) -> bytes:
    """The rows as the bytes of a Parquet file."""
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(rows, file, compression="zstd", row_group_size=ROW_GROUP)
    return file.getvalue()


def attempt_keys(rows: pyarrow.Table) -> set[tuple[str, int]]:
    """The pairs of run ID and attempt that have rows."""
    groups = rows.group_by(["run_id", "attempt"]).aggregate([])
    return set(zip(groups["run_id"].to_pylist(), groups["attempt"].to_pylist(), strict=True))


def utc_datetime(seconds: float) -> datetime.datetime:
    """Convert seconds since the epoch to UTC without a time zone, as in the tables."""
    epoch = datetime.datetime(1970, 1, 1)
    return epoch + datetime.timedelta(seconds=seconds)
