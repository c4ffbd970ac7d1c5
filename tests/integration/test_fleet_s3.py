"""The store behind an S3 API over HTTP: moto's server, which keeps its objects in memory."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli import main
from headway.errors import HeadwayError
from headway.fleet.store.compaction import compact
from headway.fleet.store.parquet import Store
from headway.testing import FakeRun
from tests.support import codes
from tests.unit.fleet.store_rows import content, run_rows, walls

MISSING = [name for name in ("moto", "s3fs") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.timeout(120),
    pytest.mark.xdist_group("s3"),
    # s3fs closes what it has opened when the interpreter ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]
SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.kill()


@pytest.fixture
def url(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    import fsspec

    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = request.node.name.replace("_", "-")[:40]
    fsspec.filesystem("s3").mkdir(bucket)
    return f"s3://{bucket}/fleet"


def test_written_replaced_compacted_deleted(url: str) -> None:
    store = Store(url)
    store.write(run_rows("a", hours=30), as_of=100.0)
    store.write(run_rows("b"), as_of=100.0)
    store.write(run_rows("a", hours=2), as_of=200.0)
    assert walls(Store(url)) == [("a", 7200.0), ("b", 3600.0)]
    assert len(content(store, "hours", "run_id")) == 4 + 2
    assert compact(store).replaced == 3
    assert walls(Store(url)) == [("a", 7200.0), ("b", 3600.0)]
    assert compact(store, grace_s=-3600.0).deleted > 0  # the server's clock may be another one
    assert walls(Store(url)) == [("a", 7200.0), ("b", 3600.0)]
    assert len(store.data_files()) == 4


def test_the_command_line(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = FakeRun()
    launcher = job.launcher(begin=0)
    job.process(begin=1).train(first=1, count=100, start=5, each=0.5)
    launcher.exit(60, code=0)
    run = job.write(tmp_path / "run")
    for _ in range(2):
        assert main(["ingest", str(run), "--store", url, "--label", "team=ads"]) == 0
    capsys.readouterr()
    assert main(["fleet", "ett", "--store", url, "--by", "team", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["team"], row["jobs"]) == ("ads", 1)
    assert row["ett_percent"] == pytest.approx(job.ledger().ett_percent)


def test_a_bucket_that_is_not_there_is_a_sentence(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "ett", "--store", "s3://no-such-bucket/fleet"]) == 2
    error = capsys.readouterr().err
    assert codes(error) == ["store-not-found"] and "s3://no-such-bucket/fleet" in error


def test_a_server_that_is_gone_is_a_sentence(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headway", "fleet", "ett", "--store", url],
        env={**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == HeadwayError.exit_code
    assert codes(done.stderr) == ["store-unreachable"] and url in done.stderr
