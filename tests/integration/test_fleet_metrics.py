"""`headway fleet metrics` as a process that Prometheus scrapes."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

from headway.fleet.store.parquet import Store
from tests.support import metric_families
from tests.unit.fleet.store_rows import run_rows


def test_the_verb_serves(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    now = datetime.now(UTC).replace(tzinfo=None)
    store.write(run_rows("a", start=now - timedelta(hours=2), team="ads", model="dlrm"))
    words = [sys.executable, "-m", "headway", "fleet", "metrics", "--store", store.url]
    with subprocess.Popen(
        [*words, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            with urllib.request.urlopen(url, timeout=60) as answer:
                page = answer.read().decode()
        finally:
            process.terminate()
    (jobs,) = metric_families(page)["headway_fleet_jobs"].samples
    assert (jobs.labels, jobs.value) == ({"team": "ads", "model": "dlrm"}, 1.0)
