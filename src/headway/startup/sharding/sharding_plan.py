"""Embedding tables, their shards, and the plan that assigns each shard to a rank."""

from __future__ import annotations

import gc
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

from headway.errors import UsageError

SCHEMA = 1
SPLITS = ("auto", "table", "row", "column")
DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}


@dataclass(frozen=True)
class Table:
    """An embedding table; `dtype` is a name or a torch.dtype."""

    name: str
    rows: int
    dim: int
    dtype: str = "float32"
    lookups: float = 1.0  # rows looked up per sample
    pooled: bool = True  # the rows of a sample are reduced to one
    state: float = 0.0  # bytes of optimizer state per element
    split: str = "auto"  # table: not split; row, column: over all ranks

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(
                f"the name of a table must be a non-empty string, got {self.name!r}",
                code="table-value-invalid",
                field="name",
            )
        for field in ("rows", "dim"):
            value = getattr(self, field)
            if not isinstance(value, int) or value < 1:
                raise UsageError(
                    f"table {self.name!r} has {field} {value!r}; it must be 1 or more",
                    code="table-value-invalid",
                    field=field,
                )
        for field in ("lookups", "state"):
            value = getattr(self, field)
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise UsageError(
                    f"table {self.name!r} has {field} {value!r}; it must be 0 or more",
                    code="table-value-invalid",
                    field=field,
                )
            object.__setattr__(self, field, float(value))  # 1 and 1.0 are the same table
        if self.dtype not in DTYPE_BYTES:
            raise UsageError(
                f"table {self.name!r} has dtype {self.dtype!r}; "
                f"use one of {_comma_list(DTYPE_BYTES)}",
                code="table-value-invalid",
                field="dtype",
            )
        if self.split not in SPLITS:
            raise UsageError(
                f"table {self.name!r} has split {self.split!r}; use one of {_comma_list(SPLITS)}",
                code="table-value-invalid",
                field="split",
            )

    def values(self) -> list[Any]:
        """The fields as JSON values."""
        return [getattr(self, field) for field in FIELDS]

    def memory(self, sizes: Sequence[int]) -> int:
        """Bytes of a part of this size, including optimizer state."""
        return math.ceil(sizes[0] * sizes[1] * (DTYPE_BYTES[self.dtype] + self.state))

    def load(self, sizes: Sequence[int]) -> float:
        """Bytes that a part of this size reads and sends per sample."""
        read = self.lookups * sizes[0] / self.rows
        sent = min(1.0, self.lookups) if self.pooled else read
        return (read + sent) * sizes[1] * DTYPE_BYTES[self.dtype] if sizes[0] else 0.0


FIELDS = tuple(field.name for field in fields(Table))


class Shard(NamedTuple):
    """A part of a table on a rank of the group."""

    table: str
    offsets: tuple[int, int]
    sizes: tuple[int, int]
    rank: int


@dataclass(frozen=True)
class ShardingPlan:
    """Tables split by rows or columns, each part on one rank of a group."""

    tables: tuple[Table, ...]
    shards: tuple[Shard, ...]
    world_size: int

    def __post_init__(self) -> None:
        if not isinstance(self.world_size, int) or self.world_size < 1:
            raise UsageError(
                f"world_size must be 1 or more, got {self.world_size!r}", code="world-size-invalid"
            )
        check_distinct(self.tables)
        names = {table.name for table in self.tables}
        for shard in self.shards:
            if shard.table not in names:
                raise UsageError(
                    f"the plan has a shard of the unknown table {shard.table!r}",
                    code="shard-of-unknown-table",
                )
            if not 0 <= shard.rank < self.world_size:
                raise UsageError(
                    f"a shard of table {shard.table!r} is on rank {shard.rank} of "
                    f"{self.world_size}",
                    code="rank-out-of-range",
                )
        for table in self.tables:
            _check_covered(table, self.of(table.name))

    @cached_property
    def _by_table(self) -> dict[str, tuple[Shard, ...]]:
        shards_by_table: dict[str, list[Shard]] = {table.name: [] for table in self.tables}
        for shard in self.shards:
            shards_by_table[shard.table].append(shard)
        return {name: tuple(shards) for name, shards in shards_by_table.items()}

    def of(self, table: str) -> tuple[Shard, ...]:
        try:
            return self._by_table[table]
        except KeyError:
            raise UsageError(
                f"the plan has no table {table!r}", code="table-not-in-plan", table=table
            ) from None

    def on(self, rank: int) -> tuple[Shard, ...]:
        """The shards on a rank, in the order of the tables."""
        return tuple(shard for shard in self.shards if shard.rank == rank)

    @cached_property
    def hash(self) -> str:
        """Hash of the plan, the same in every process."""
        return digest(self.document())

    def document(self) -> dict[str, Any]:
        """The plan as a JSON document."""
        return {
            "schema": SCHEMA,
            "world_size": self.world_size,
            "tables": [table.values() for table in self.tables],
            "shards": [
                [[shard.rank, *shard.offsets, *shard.sizes] for shard in self.of(table.name)]
                for table in self.tables
            ],
        }

    @classmethod
    def read(cls, document: Any, expected: Sequence[Table] = ()) -> ShardingPlan:
        """Read a document of `document()`; reuses the `expected` tables if they are the same."""
        try:
            if document["schema"] != SCHEMA:
                raise UsageError(
                    f"the plan has schema {document['schema']!r}, expected {SCHEMA}",
                    code="plan-other-schema",
                )
            as_expected = [table.values() for table in expected] == document["tables"]
            source = expected if as_expected else [Table(*values) for values in document["tables"]]
            tables = tuple(source)
            shards = tuple(
                Shard(table.name, (row[1], row[2]), (row[3], row[4]), row[0])
                for table, parts in zip(tables, document["shards"], strict=True)
                for row in parts
            )
            return cls(tables, shards, document["world_size"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UsageError(f"not a valid plan: {error!r}", code="not-a-plan") from None


def canonical_json(document: Any) -> bytes:
    """JSON that is identical for equal content."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(document: Any) -> str:
    """Hash of a document's content."""
    return hashlib.sha256(canonical_json(document)).hexdigest()


def check_distinct(tables: Sequence[Table]) -> None:
    names: set[str] = set()
    for table in tables:
        if table.name in names:
            raise UsageError(
                f"two tables are named {table.name!r}", code="table-twice", table=table.name
            )
        names.add(table.name)


def difference(here: Sequence[Table], there: Sequence[Table]) -> str:
    """The first difference between two lists of tables; empty if they are equal."""
    if tuple(here) == tuple(there):
        return ""
    ours, theirs = ({table.name: table for table in tables} for tables in (here, there))
    if list(ours) != list(theirs):
        missing = [name for name in theirs if name not in ours]
        extra = [name for name in ours if name not in theirs]
        if missing:
            return f"table {missing[0]!r} is missing here"
        return f"table {extra[0]!r} is only here" if extra else "the order of the tables"
    for name, table in ours.items():
        for field in FIELDS:
            own, other = getattr(table, field), getattr(theirs[name], field)
            if own != other:
                return f"table {name!r} has {field} {own} here and {other} in the plan"
    return ""


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection: it would take half of the time and find nothing to free."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _check_covered(table: Table, shards: Sequence[Shard]) -> None:
    """UsageError unless the shards cover the table and split one dimension only."""
    full_size = (table.rows, table.dim)
    for along in (0, 1):
        across = 1 - along
        if all((s.offsets[across], s.sizes[across]) == (0, full_size[across]) for s in shards):
            break
    else:
        raise UsageError(
            f"table {table.name!r} is split along two dimensions or not completely covered",
            code="shards-in-two-dimensions",
        )
    position = 0
    for start, size in sorted((shard.offsets[along], shard.sizes[along]) for shard in shards):
        if start != position or size < 0:
            raise UsageError(
                f"the shards of table {table.name!r} overlap or leave a gap at {position}",
                code="shards-not-contiguous",
                at=position,
            )
        position += size
    if position != full_size[along]:
        raise UsageError(
            f"the shards of table {table.name!r} end at {position} of {full_size[along]}",
            code="shards-incomplete",
            at=position,
        )


def _comma_list(words: Iterable[str]) -> str:
    return ", ".join(words)
