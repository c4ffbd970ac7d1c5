"""Run queries on Spark. Its workers read the files, so every worker must be able to reach them."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.fleet.store.parquet import LiveFiles, Store
from headway.fleet.store.view import View

if TYPE_CHECKING:
    import ibis.expr.types as ir
    from pyspark.sql import SparkSession


OpenView = Callable[..., AbstractContextManager[View]]


def spark_view(session: SparkSession) -> tuple[OpenView, tuple[type[Exception], ...]]:
    """How to look at a snapshot there, and what is raised when its files cannot be read."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    @contextlib.contextmanager
    def look(store: Store, snapshot: LiveFiles, *, without: Collection[str] = ()) -> Iterator[View]:
        import ibis

        con = ibis.pyspark.connect(session)
        made: list[str] = []

        def scan(names: Sequence[str]) -> ir.Table:
            made.append(f"files_{secrets.token_hex(8)}")
            rows = _read(session, [hadoop_path(store.place.path(name)) for name in names])
            rows.createOrReplaceTempView(made[-1])
            found: ir.Table = con.table(made[-1])
            return found

        try:
            yield View(con, snapshot, without, scan)
        finally:
            for name in made:
                session.catalog.dropTempView(name)

    return look, (PySparkException, Py4JError, OSError)


def _read(session: SparkSession, addresses: Sequence[str]) -> Any:
    """All rows of files; their folders say nothing that their columns do not say."""
    return session.read.option("recursiveFileLookup", True).parquet(*addresses)


def hadoop_path(path: str) -> str:
    """A path or URL as Hadoop calls it, with nothing in it that would be taken for a pattern."""
    if "://" not in path:
        path = f"file://{Path(path).absolute()}"
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", re.sub(r"^s3://", "s3a://", path))
