"""How a Spark is told of files; the questions themselves are in tests/spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.fleet.store.spark import hadoop_path


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/data/store/hours/day=2026-11-16/a.s1.parquet", None),
        ("/data/a [b] {c}*?/x.parquet", "/data/a \\[b\\] \\{c\\}\\*\\?/x.parquet"),
    ],
)
def test_a_path_is_no_pattern(path: str, told: str | None) -> None:
    assert hadoop_path(path) == f"file://{told or path}"


def test_urls_are_those_of_hadoop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hadoop_path("s3://team/fleet/x.parquet") == "s3a://team/fleet/x.parquet"
    assert hadoop_path("gs://team/fleet/x.parquet") == "gs://team/fleet/x.parquet"
    monkeypatch.chdir(tmp_path)
    assert hadoop_path("store/x.parquet") == f"file://{tmp_path}/store/x.parquet"
