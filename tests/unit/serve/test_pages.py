"""The data of each panel, for a small store whose numbers can be checked by hand."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from headway.fleet.regressions.running import Alarm
from headway.serve.pages import PAGES, PANELS, alerts
from headway.serve.pages.run import RUN_PAGE
from headway.serve.query import PageQuery
from headway.serve.sources import Source
from tests.unit.serve.fleet import EVIL, RUNS

if TYPE_CHECKING:
    from starlette.testclient import TestClient


pytestmark = pytest.mark.xdist_group("pages")
SIZES = [2 + number for number in range(RUNS)]  # accelerators
LOSERS = range(0, RUNS, 3)
HOURS = sum(2 * SIZES[n] * (3600 if n in LOSERS else 3400) / 3600 for n in range(RUNS))
TRAINED = sum(2 * size * 3000 / 3600 for size in SIZES)


def panel_data(source: Source, name: str, **parameters: str) -> dict[str, Any]:
    return PANELS[name].load(source, PageQuery.parse(parameters))


def column(payload: dict[str, Any], key: str) -> list[Any]:
    place = [one["key"] for one in payload["columns"]].index(key)
    return [row[place] for row in payload["rows"]]


def card(payload: dict[str, Any], label: str) -> Any:
    return next(one["value"] for one in payload["cards"] if one["label"] == label)


@pytest.mark.parametrize("name", [name for name in PANELS if not name.startswith("run-")])
@pytest.mark.parametrize("query", ["", "?since=7d&team=ads&by=team", "?team=nobody"])
def test_every_panel_answers(client: TestClient, name: str, query: str) -> None:
    answer = client.get(f"/data/{name}{query}")
    assert answer.status_code == 200, answer.text
    content = answer.json()
    assert {"cards", "rows", "wait", "none"} & content.keys()
    for row in content.get("rows", ()):
        assert len(row) == len(content["columns"])
    plot = content.get("plot")
    if plot:
        keys = {one["key"] for one in content["columns"]}
        assert {plot["x"], *plot.get("lines", ()), *plot.get("parts", ())} <= keys


@pytest.mark.parametrize("panel", RUN_PAGE.panels, ids=lambda panel: panel.name)
def test_every_panel_of_a_run_answers(client: TestClient, panel: Any) -> None:
    answer = client.get(f"/data/{panel.name}?run_id=run000000003")
    assert answer.status_code == 200, answer.text
    missing = client.get(f"/data/{panel.name}?run_id=nothing")
    assert missing.status_code == 404
    assert missing.json()["code"] == "run-not-found"


def test_the_headline_adds_up(source: Source) -> None:
    content = panel_data(source, "headline")
    assert card(content, "Accelerator-hours") == pytest.approx(HOURS, abs=0.01)
    assert card(content, "ETT") == pytest.approx(100 * TRAINED / HOURS, abs=0.01)
    assert card(content, "Lost") == pytest.approx(HOURS - TRAINED, abs=0.01)
    unsaved = sum(2 * SIZES[n] * 200 / 3600 for n in LOSERS)
    assert card(content, "Unsaved") == pytest.approx(unsaved, abs=0.01)


def test_the_buckets_are_a_pareto(source: Source) -> None:
    content = panel_data(source, "lost-by-bucket")
    hours = column(content, "accelerator_hours")
    assert column(content, "leaf")[0] == "start.pt2_compile"
    assert hours == sorted(hours, reverse=True)
    assert sum(hours) == pytest.approx(HOURS - TRAINED, abs=0.01)
    assert column(content, "cumulative")[-1] == 100.0


def test_filters_and_slices(source: Source) -> None:
    whole, part = panel_data(source, "headline"), panel_data(source, "headline", team="ads")
    assert card(part, "Accelerator-hours") < card(whole, "Accelerator-hours")
    split = panel_data(source, "ett", by="team", since="7d")
    assert set(column(split, "team")) == {"ads", "<b>search</b>"}
    assert split["plot"]["split"] == "team"


def test_stages_sum_to_the_time_to_start(source: Source) -> None:
    content = panel_data(source, "start-stages")
    # Two hours of each run have the stages again: the mean is of both.
    assert dict(content["rows"]) == {"start.hardware_setup": 120.0, "start.pt2_compile": 600.0}
    releases = panel_data(source, "start-releases")
    assert column(releases, "torch") == ["2.13.0", "2.14.0"]
    assert column(releases, "start.pt2_compile") == [600.0, 600.0]
    weekly = panel_data(source, "start-releases", release="week")
    assert column(weekly, "week") == ["2026-11-02T00:00:00", "2026-11-09T00:00:00"]


def test_the_list_of_preemptions(source: Source) -> None:
    content = panel_data(source, "preempted-ledger")
    assert column(content, "run_id") == ["run000000009", "run000000006", "run000000003"]
    prices = [SIZES[n] * 290 / 3600 for n in (9, 6, 3)]
    assert column(content, "accelerator_hours") == pytest.approx(prices, abs=1e-4)
    assert content["paging"] == {"page": 1, "rows": 50, "of": 3}
    assert panel_data(source, "preempted-ledger", page="2")["rows"] == []


def test_the_list_of_runs(source: Source) -> None:
    content = panel_data(source, "runs", sort="accelerator_hours")
    assert content["paging"]["of"] == RUNS
    hours = column(content, "accelerator_hours")
    assert hours == sorted(hours, reverse=True)
    assert column(panel_data(source, "runs", q="NIGHT-1"), "run") == ["night-11", "night-10"]
    assert column(panel_data(source, "runs", q="script"), "run") == [EVIL]
    assert panel_data(source, "runs", q="100%_no")["rows"] == []
    assert len(panel_data(source, "runs", category="preemption")["rows"]) == 3
    assert column(panel_data(source, "runs", host="node-3"), "run_id") == ["run000000003"]
    assert column(panel_data(source, "runs", outcome="running"), "run") == ["night-11"]


def test_nodes_and_categories(source: Source) -> None:
    content = panel_data(source, "failures-nodes")
    assert set(zip(column(content, "host"), column(content, "category"), strict=True)) == {
        ("node-0", EVIL),
        *((f"node-{n}", "preemption") for n in (3, 6, 9)),
    }
    assert content["links"]["parameters"] == {"category": "category", "host": "host"}


def test_a_running_run_is_marked(source: Source) -> None:
    content = panel_data(source, "run-headline", run_id="run000000011")
    assert (content["running"], content["state"]) == (True, "running")
    assert panel_data(source, "run-headline", run_id="run000000001")["title"] == EVIL


def test_alerts_are_read_from_the_store(source: Source) -> None:
    assert panel_data(source, "alerts").keys() == {"none"}
    place = source.store_cache.store.files
    raised = [
        {"state": "resolved", "rule": "old", "since": "2026-11-01T00:00:00"},
        {"state": "firing", "rule": "new", "since": "2026-11-02T00:00:00", "text": EVIL},
        "no alert",
    ]
    place.put("alerts.json", json.dumps({"alerts": raised}).encode())
    try:
        content = panel_data(source, "alerts")
        assert column(content, "rule") == ["new", "old"]
        assert column(content, "text") == [EVIL, None]
        place.put("alerts.json", b"torn")
        assert panel_data(source, "alerts").keys() == {"none"}
    finally:
        place.delete("alerts.json")


def test_slow_searches_are_pending_first(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("alerts-changes", "alerts-running", "failures-lemons")
    for name in names:
        assert panel_data(source, name)["rows"] == [] and panel_data(source, name)["empty"]
    monkeypatch.setattr(source, "regressions", lambda: None)
    for name in names:
        assert panel_data(source, name).keys() == {"wait"}


CHANGE = {
    "slice": ["ads", "dlrm"],
    "at": 1_794_355_200.0,  # 2026-11-11
    "bucket": "start.pt2_compile",
    "points": 2.345,
    "ett_before": 90.0,
    "ett_after": 88.0,
    "hours": 100.0,
    "level": 0.01,
    "fields": [{"field": "torch", "before": "2.13.0", "after": EVIL}],
}


def test_changes_are_filtered_by_the_query(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    result = {"regressions": [CHANGE], "lemons": [], "running": [], "slices": 2, "jobs": RUNS}
    monkeypatch.setattr(source, "regressions", lambda: result)
    rows = panel_data(source, "alerts-changes", team="ads")["rows"]
    told_there = ["2026-11-11T00:00:00", "ads/dlrm", "start.pt2_compile", 2.345]
    assert rows == [[*told_there, "90.0 to 88.0 %", 100.0, 1.0, f"torch: 2.13.0 to {EVIL}"]]
    for parameters in ({"team": "search"}, {"since": "1d"}, {"until": "2026-11-05"}):
        assert panel_data(source, "alerts-changes", **parameters)["rows"] == []
    assert alerts.change_marks(source, PageQuery())["marks"] == [
        {
            "at": "2026-11-11T00:00:00",
            "slice": "ads/dlrm",
            "bucket": CHANGE["bucket"],
            "points": 2.35,
        }
    ]


def test_slow_running_jobs_are_described(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    alarm = Alarm("one", ("ads", "dlrm"), "pace", 31, 0.94, 0.66)
    result = {"running": [asdict(alarm) | {"words": alarm.words}]}
    monkeypatch.setattr(source, "regressions", lambda: result)
    (row,) = panel_data(source, "alerts-running")["rows"]
    assert row == ["one", "ads/dlrm", alarm.words, 31, "one"]


def test_every_page_has_its_own_panels() -> None:
    names = [panel.name for page in (*PAGES, RUN_PAGE) for panel in page.panels]
    assert len(names) == len(set(names))
