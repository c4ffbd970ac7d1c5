"""Asks a Spark of two workers what DuckDB is asked too; run by fleet.py in an environment apart."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

from pyspark.sql import SparkSession

from headway.fleet.queries.dimensions import Filter
from headway.fleet.queries.queries import QUERIES, build_query
from headway.fleet.store.parquet import Store
from headway.fleet.store.reader import run_query


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def main() -> None:
    session = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    store = Store(sys.argv[1])
    asked = equal = values = 0
    took = 0.0
    for name, query in QUERIES.items():
        for by in ((), ("team", "week"), ("month", *query.dimensions[:1], "model")):
            put = build_query(name, Filter(by))
            began = time.perf_counter()
            there = run_query(store, put, session=session).rows.to_pylist()
            took += time.perf_counter() - began
            here = run_query(store, put).rows.to_pylist()
            asked += 1
            values += sum(len(row) for row in here)
            equal += len(there) == len(here) and all(
                same(row[key], other[key])
                for row, other in zip(there, here, strict=True)
                for key in row
            )
    version = session.version
    session.stop()
    told = {"spark": version, "asked": asked, "equal": equal, "values": values}
    print(json.dumps({**told, "spark_s": round(took, 1)}))


if __name__ == "__main__":
    main()
