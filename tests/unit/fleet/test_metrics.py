"""A store for Prometheus and Grafana: the page, the textfile, the rules and the dashboard."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.cli import main
from headway.fleet import grafana, metrics, metrics_http
from headway.fleet.metrics import Window, families
from headway.fleet.metrics_http import AccessRules, CachedPage, MetricsServer
from headway.fleet.store.parquet import Store
from headway.serve import address
from tests.support import codes, metric_families, wait_until
from tests.unit.fleet.store_rows import START, merge_rows, run_rows

pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("metrics")]
NOW = START + timedelta(hours=3)
RULES = Path(metrics.__file__).with_name("metrics_rules.yml")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two teams, the second with a start that takes half of its time; in 2026 and lately."""
    made = Store(str(tmp_path_factory.mktemp("fleet") / "store"))
    half = {"train.effective": 1800.0, "start.pt2_compile": 1800.0}
    now = datetime.now(UTC).replace(tzinfo=None, minute=0, second=0, microsecond=0)
    rows = [
        one
        for key, start in (("then", START), ("now", now - timedelta(hours=2)))
        for one in (
            run_rows(f"a-{key}", start=start, team="ads", model="dlrm", time_to_start_s=90.0),
            run_rows(f"b-{key}", start=start, team="llm", leaves=half, time_to_start_s=600.0),
        )
    ]
    made.write(merge_rows(*rows))
    return made


def samples(found: list[metrics.Family], name: str) -> dict[tuple[str, ...], float]:
    (family,) = (one for one in found if one.name == name)
    return {tuple(labels.values()): value for labels, value in family.samples}


def test_the_figures_are_those_of_the_questions(store: Store) -> None:
    found = families(store, Window(by=("team",)), NOW)
    ett = samples(found, "headway_fleet_ett_percent")
    assert ett["ads", "accelerators"] == pytest.approx(100 * 3000 / 3600)
    assert ett["llm", "jobs"] == pytest.approx(50.0)
    assert samples(found, "headway_fleet_accelerator_seconds")["llm",] == pytest.approx(7200.0)
    lost = samples(found, "headway_fleet_lost_accelerator_seconds")
    assert lost["llm", "start.pt2_compile"] == pytest.approx(3600.0)
    assert samples(found, "headway_fleet_time_to_start_seconds")["llm", "0.9"] == 600.0
    # What lies before the window is not in it.
    assert samples(families(store, Window(timedelta(hours=1)), NOW), "headway_fleet_jobs") == {}


def test_only_some_runs_and_other_labels(store: Store) -> None:
    window = Window(by=("model",), where=(("team", "ads"),))
    assert samples(families(store, window, NOW), "headway_fleet_jobs") == {("dlrm",): 1.0}


def test_the_textfile_is_written_over_and_parses(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "headway.prom"
    path.write_text("of the last time")
    assert main(["export", "prometheus", store.url, "--textfile", str(path)]) == 0
    found = metric_families(path.read_text())
    ett = found["headway_fleet_ett_percent"].samples
    assert {sample.labels["team"] for sample in ett} == {"ads", "llm"}
    capsys.readouterr()
    assert main(["export", "prometheus", store.url, "--by", "leaf"]) == 2
    assert codes(capsys.readouterr().err) == ["split-unknown"]


def test_of_a_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.unit.report.ledgers import killed

    run = SimpleNamespace(ledger=killed())
    monkeypatch.setattr("headway.run.load", lambda path: run)
    assert main(["export", "prometheus", "some-run"]) == 0
    assert 'headway_ett_percent{run="train-0815"}' in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_page_and_the_rules(store: Store, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    assert main(["export", "prometheus-rules", "-o", str(rules)]) == 0
    told = ["promtool", "check", "rules", str(rules)]
    done = subprocess.run(told, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    page = tmp_path / "page.prom"
    assert main(["export", "prometheus", store.url, "-o", str(page)]) == 0
    lines = [line for line in page.read_text().splitlines(True) if not line.startswith("# EOF")]
    told = ["promtool", "check", "metrics"]
    done = subprocess.run(told, input="".join(lines), capture_output=True, text=True, timeout=30)
    assert done.returncode in (0, 3), done.stdout + done.stderr  # 3: it would name them otherwise
    assert "error while linting" not in done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """promtool plays three hours of a team whose ETT is 50 % and whose starts take 10 minutes."""
    labels = 'team="llm", model="m"'
    series = {
        f'headway_fleet_ett_percent{{weight="accelerators", {labels}}}': "50+0x60",
        f"headway_fleet_accelerator_seconds{{{labels}}}": "7200+0x60",
        f'headway_fleet_time_to_start_seconds{{quantile="0.9", {labels}}}': "600+0x60",
        f'headway_fleet_failure_percent{{weight="accelerators", {labels}}}': "5+0x60",
    }
    fires = {"HeadwayEttLow": True, "HeadwayTimeToStartHigh": True, "HeadwayFailureHigh": False}
    annotations = {
        "HeadwayEttLow": "ETT of llm is 50.0 %, below 80 %",
        "HeadwayTimeToStartHigh": "Time to Start p90 of llm m is 10m 0s",
    }
    own = {"HeadwayEttLow": {"team": "llm"}}
    quantile = {"team": "llm", "model": "m", "quantile": "0.9"}
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "5m",
        "tests": [
            {
                "interval": "5m",
                "input_series": [{"series": k, "values": v} for k, v in series.items()],
                "alert_rule_test": [
                    {
                        "eval_time": "3h",
                        "alertname": name,
                        "exp_alerts": [
                            {
                                "exp_labels": {"severity": "warning", **own.get(name, quantile)},
                                "exp_annotations": {"summary": annotations[name]},
                            }
                        ]
                        if does
                        else [],
                    }
                    for name, does in fires.items()
                ],
            }
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(json.dumps(test))  # JSON is YAML
    told = ["promtool", "test", "rules", str(path)]
    done = subprocess.run(told, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_dashboard_ask_for_metrics_that_there_are() -> None:
    known = {figure.name for figure in metrics.GAUGES} | {"headway_fleet_read_time_seconds"}
    text = RULES.read_text() + grafana.dashboard()
    assert set(re.findall(r"(?<![:\w])headway_fleet_\w+", text)) <= known


def test_the_dashboard(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "grafana"]) == 0
    told = json.loads(capsys.readouterr().out)
    places = [tuple(panel["gridPos"].values()) for panel in told["panels"]]
    assert len(set(places)) == len(places) == len(grafana.PANELS)
    assert all(x + w <= 24 for x, _, w, _ in places)
    assert {one["name"] for one in told["templating"]["list"]} == {"team", "model"}
    assert told["__inputs"][0]["pluginId"] == "prometheus"


@pytest.fixture
def scraped() -> Iterator[Any]:
    """A server around a function that makes the page."""
    running = []

    def start(make: Any, every_s: float = 60.0, token: str | None = None) -> str:
        bound = address.bind("127.0.0.1", 0)
        made = MetricsServer(
            bound, CachedPage(make, every_s), AccessRules(token, lambda host: "evil" not in host)
        )
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        running.append((made, thread))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"

    yield start
    for made, thread in running:
        made.shutdown()
        made.server_close()
        thread.join()


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_scrape_reads_the_store_once_a_minute(scraped: Any) -> None:
    made: list[int] = []
    url = scraped(lambda: made.append(1) or f"# {len(made)}\n")
    assert get(f"{url}/metrics") == (200, "# 1\n") == get(f"{url}/metrics?again")
    assert get(url)[0] == 404
    often = scraped(lambda: made.append(1) or f"# {len(made)}\n", every_s=0.0)
    assert [get(f"{often}/metrics")[1] for _ in range(2)] == ["# 2\n", "# 3\n"]


def test_a_store_that_fails_is_said_and_tried_again(scraped: Any, tmp_path: Path) -> None:
    from headway.cli.fleet import metrics_text

    store = Store(str(tmp_path / "none"))
    url = scraped(lambda: metrics_text(store, Window()))
    status, answer = get(f"{url}/metrics")
    assert (status, codes(answer)) == (503, ["store-not-found"])
    store.write(run_rows("a", start=datetime.now() - timedelta(hours=1)))
    assert get(f"{url}/metrics")[0] == 200


def test_a_token_is_asked_for(scraped: Any) -> None:
    url = scraped(lambda: "# EOF\n", token="s3cret-s3cret-s3cret")
    assert get(f"{url}/metrics")[0] == 401
    assert get(f"{url}/metrics", Authorization="Bearer wrong")[0] == 401
    assert get(f"{url}/metrics", Authorization="Bearer s3cret-s3cret-s3cret")[0] == 200


def test_a_name_that_is_pointed_at_it_is_refused(scraped: Any) -> None:
    url = scraped(lambda: "# EOF\n")
    assert get(f"{url}/metrics", Host="evil.example")[0] == 400
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 10) as bare:
        bare.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert bare.recv(12) == b"HTTP/1.0 400"


def serving() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "process_request" in thread.name]


def test_half_sent_scrapes_hold_up_no_others(scraped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(scraped(lambda: "# EOF\n").rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        for _ in range(3 * metrics_http.MAX_WAITING):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            half.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert get(f"http://127.0.0.1:{port}/metrics")[0] == 200
        wait_until(lambda: len(serving()) <= metrics_http.MAX_WAITING)
    monkeypatch.setattr(metrics_http, "REQUEST_S", 0.1)
    with socket.create_connection(("127.0.0.1", port), 10) as slow:
        slow.sendall(b"GET")
        assert slow.recv(1) == b""
