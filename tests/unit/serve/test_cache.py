"""Repeated and concurrent queries of a store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.fleet.store.compaction import compact
from headway.fleet.store.parquet import Store
from headway.serve import cache as room
from headway.serve.cache import StoreCache
from tests.support import has_code
from tests.unit.fleet.store_rows import merge_rows, run_rows


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreCache]:
    monkeypatch.setattr(room, "VERSION_CHECK_S", -1.0)  # it looks each time
    store = Store(str(tmp_path / "store"))
    store.write(run_rows("a" * 12))
    calls = StoreCache(store)
    yield calls
    calls.close()


def runs(tables: Any) -> Any:
    return tables["runs"].select("run_id").order_by("run_id")


def test_results_are_cached_until_the_store_changes(cache: StoreCache) -> None:
    calls = []

    def make() -> int:
        calls.append(1)
        return len(cache.rows(runs))

    assert [cache.get_or_compute("runs", make) for _ in range(3)] == [1, 1, 1]
    assert len(calls) == 1
    cache.store.write(run_rows("b" * 12))
    assert [cache.get_or_compute("runs", make) for _ in range(3)] == [2, 2, 2]
    assert len(calls) == 2


def test_concurrent_requests_share_one_computation(cache: StoreCache) -> None:
    begun, go, calls, results = threading.Event(), threading.Event(), [], []

    def make() -> str:
        calls.append(1)
        begun.set()
        go.wait(30)
        return "answer"

    asking = [
        threading.Thread(target=lambda: results.append(cache.get_or_compute("slow", make)))
        for _ in range(4)
    ]
    for thread in asking:
        thread.start()
    assert begun.wait(30)
    go.set()
    for thread in asking:
        thread.join(30)
    assert (results, calls) == (["answer"] * 4, [1])


def test_a_slow_query_does_not_block_others(cache: StoreCache) -> None:
    begun, go, results = threading.Event(), threading.Event(), []

    def slow(tables: Any) -> Any:
        begun.set()
        assert go.wait(30)
        return runs(tables)

    thread = threading.Thread(target=lambda: results.extend(cache.rows(slow)))
    thread.start()
    assert begun.wait(30)
    assert cache.rows(runs) == [{"run_id": "a" * 12}]
    assert not results
    go.set()
    thread.join(30)
    assert results == [{"run_id": "a" * 12}]


def test_concurrent_queries_have_the_right_results(
    cache: StoreCache,
) -> None:
    cache.store.write(merge_rows(*(run_rows(f"{n:012d}", accelerators=1 + n) for n in range(20))))

    def of(least: int) -> Any:
        return lambda tables: tables["runs"].filter(tables["runs"].accelerators > least)

    alone = [sorted(row["run_id"] for row in cache.rows(of(n))) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        several = list(pool.map(lambda n: cache.rows(of(n % 8)), range(16)))
    assert [sorted(row["run_id"] for row in rows) for rows in several] == alone * 2
    cache.close()
    with pytest.raises(HeadwayError, check=has_code("server-stopping")):
        cache.rows(runs)


def test_failures_are_not_cached(cache: StoreCache) -> None:
    def fail() -> None:
        raise HeadwayError("no")

    for _ in range(2):
        with pytest.raises(HeadwayError):
            cache.get_or_compute("key", fail)
    assert cache.get_or_compute("key", lambda: 7) == 7


def test_the_number_of_cached_results_is_bounded(cache: StoreCache) -> None:
    calls = []
    for number in (*range(room.MAX_ANSWERS + 10), room.MAX_ANSWERS, 5):
        cache.get_or_compute(number, lambda number=number: calls.append(number))
    assert calls == [*range(room.MAX_ANSWERS + 10), 5]


def test_queries_survive_a_compaction(cache: StoreCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store.write(run_rows("b" * 12))
    assert len(cache.rows(runs)) == 2
    monkeypatch.setattr(room, "VERSION_CHECK_S", 3600.0)  # it does not see what comes now
    for _ in range(2):
        compact(cache.store, grace_s=0.0)
    assert len(cache.rows(runs)) == 2


def test_damaged_files_are_left_out(cache: StoreCache) -> None:
    cache.store.write(run_rows("b" * 12))
    for file in cache.store.live_files().of("runs")[1:]:
        Path(cache.store.files.path(file.name)).write_bytes(b"damaged")
    assert len(cache.rows(runs)) == 1
