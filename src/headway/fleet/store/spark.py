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
    """A function that opens a view on Spark, and the exceptions of files that cannot be read."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    @contextlib.contextmanager
    def open_spark_view(
        store: Store, live_files: LiveFiles, *, without: Collection[str] = ()
    ) -> Iterator[View]:
        import ibis

        con = ibis.pyspark.connect(session)
        views: list[str] = []

        def scan(names: Sequence[str]) -> ir.Table:
            views.append(f"files_{secrets.token_hex(8)}")
            rows = _read(session, [hadoop_path(store.files.path(name)) for name in names])
            rows.createOrReplaceTempView(views[-1])
            table: ir.Table = con.table(views[-1])
            return table

        try:
            yield View(con, live_files, without, scan)
        finally:
            for name in views:
                session.catalog.dropTempView(name)

    return open_spark_view, (PySparkException, Py4JError, OSError)


def _read(session: SparkSession, paths: Sequence[str]) -> Any:
    """All rows of the files. Folder names are ignored: columns contain the same values."""
    return session.read.option("recursiveFileLookup", True).parquet(*paths)


def hadoop_path(path: str) -> str:
    """A path or URL for Hadoop, with glob characters escaped."""
    if "://" not in path:
        path = f"file://{Path(path).absolute()}"
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", re.sub(r"^s3://", "s3a://", path))
