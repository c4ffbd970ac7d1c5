"""Findings in made-up slices, in a store as the command tells them, and those of the docs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from headway.cli import main
from headway.fleet.queries.dimensions import Filter
from headway.fleet.regressions.cohorts import Series
from headway.fleet.regressions.findings import ScanOptions, find, slots
from headway.fleet.regressions.load import read_hosts, read_jobs, read_paces, read_shares
from headway.fleet.regressions.running import expected_share
from headway.fleet.store.parquet import Store
from headway.sim.fleet.defaults import STEP_S
from headway.sim.fleet.scenario import make_scenario
from headway.sim.fleet.simulation import simulate
from tests.support import Golden
from tests.unit.fleet.scan_result import SCAN_RESULT
from tests.unit.fleet.store_rows import START, run_rows

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("regressions")]
ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
DAY = 86400.0
NOW = 60 * DAY
BUCKETS = ("start.pt2_compile", "train.effective", "waste.data_stall", "waste.evaluation")


def jobs(name: str, seed: int, count: int = 800) -> Series:
    """Jobs of 60 days: a start of about 100 s, then some waste."""
    random = np.random.default_rng(seed)
    wall = random.lognormal(8.5, 1.2, count) + 300
    start = 100 * random.lognormal(0, 0.3, count)
    stall, evaluation = (wall * 0.03 * random.lognormal(0, 0.4, count) for _ in range(2))
    seconds = np.stack([start, wall - start - stall - evaluation, stall, evaluation], axis=1)
    return Series(
        (name,),
        BUCKETS,
        np.sort(random.uniform(0, NOW, count)),
        random.choice([1.0, 8.0], count),
        seconds,
        np.zeros(count, dtype=bool),
        {"image": np.full(count, "old"), "code": random.choice(["a", "b"], count)},
    )


def moved(series: Series, at: float, points: float, until: float = NOW) -> Series:
    """The same jobs, but those that begin after `at` train so many points less, and stall."""
    after = (series.start >= at) & (series.start < until)
    seconds = series.seconds.copy()
    took = points / 100 * series.wall[after]
    seconds[after, 1] -= took
    seconds[after, 2] += took
    image = np.where(after, "new", series.fields["image"])
    return replace(series, seconds=seconds, fields={**series.fields, "image": image})


def test_a_regression_is_told_with_its_day_bucket_and_field() -> None:
    fleet = [jobs(f"s{number}", number) for number in range(12)]
    fleet[5] = moved(fleet[5], 35 * DAY, 2)
    (found,) = find(fleet, NOW)
    assert found.slice == ("s5",) and found.regression
    assert abs(found.at - 35 * DAY) <= DAY
    assert found.bucket == "waste.data_stall" and found.points == pytest.approx(2, abs=0.4)
    assert found.mix + found.within == pytest.approx(found.ett_after - found.ett_before)
    assert sum(found.buckets.values()) == pytest.approx(0, abs=1e-9)
    assert [change.field for change in found.fields] == ["image"]
    assert found.fields[0].after == "new"
    assert found.level <= 0.05 and (found.since, found.until) == (pytest.approx(0), NOW)


def test_the_same_question_has_the_same_answer() -> None:
    fleet = [moved(jobs("one", 1), 30 * DAY, 2), jobs("two", 2)]
    assert find(fleet, NOW) == find(fleet, NOW)


def test_a_gain_is_no_regression() -> None:
    (found,) = find([moved(jobs("one", 1), 30 * DAY, -1.5)], NOW)
    assert not found.regression and found.points < 0 < found.within


def test_one_that_was_mended_is_two_breaks() -> None:
    found = find([moved(jobs("one", 3, 2000), 20 * DAY, 2, until=40 * DAY)], NOW)
    assert [one.regression for one in found] == [False, True]
    assert [round(one.at / DAY) for one in found] == [40, 20]
    assert found[1].until == found[0].at and found[0].since == found[1].at


def test_shorter_jobs_are_no_regression() -> None:
    """From day 30 on most jobs are short and spend more of their time on the start."""
    whole = jobs("one", 4, 3000)
    late = whole.start >= 30 * DAY
    random = np.random.default_rng(5)
    kept = np.where(late, whole.wall < np.median(whole.wall), True) | (random.random(3000) < 0.2)
    series = whole.where(kept)
    early = series.start < 30 * DAY
    raw = [
        np.average(series.points[side, 1], weights=series.hours[side]) for side in (early, ~early)
    ]
    assert raw[1] < raw[0] - 0.5
    assert find([series], NOW) == []


def test_jobs_that_all_run_to_the_same_time_limit_are_compared_with_each_other() -> None:
    whole = jobs("one", 12)
    seconds = (whole.seconds / whole.wall[:, None] * 14400).round()
    seconds[:, 1] += 14400 - seconds.sum(axis=1)
    limited = replace(whole, seconds=seconds)
    (found,) = find([moved(limited, 35 * DAY, 2)], NOW)
    assert found.bucket == "waste.data_stall" and abs(found.at - 35 * DAY) <= DAY


def test_the_part_of_a_slice_that_explains_it_is_told() -> None:
    parts = {"x": moved(jobs("all", 6), 30 * DAY, 6), "y": jobs("all", 7), "z": jobs("all", 8)}
    whole = Series(
        ("all",),
        BUCKETS,
        *(
            np.concatenate([getattr(one, name) for one in parts.values()])
            for name in ("start", "accelerators", "seconds", "running")
        ),
        {"model": np.repeat(list(parts), 800)},
    )
    (found,) = find([whole], NOW, ScanOptions(control_fields=("model",)))
    assert found.parts[0].name == ("x",) and {one.name for one in found.parts} == {
        ("x",),
        ("y",),
        ("z",),
    }
    assert found.parts[0].within == pytest.approx(found.within, abs=0.5)
    told = sum(one.mix + one.within for one in found.parts)
    assert told == pytest.approx(found.ett_after - found.ett_before)


def test_more_of_a_slow_model_is_mix_and_no_regression() -> None:
    """From day 30 on there is more of a model that always stalled more."""
    slow, fast = moved(jobs("all", 9, 2000), 0, 6), jobs("all", 10, 2000)
    random = np.random.default_rng(1)
    kept = [
        one.where(random.random(2000) < np.where(one.start < 30 * DAY, early, late))
        for one, early, late in ((slow, 0.2, 0.8), (fast, 0.8, 0.2))
    ]
    whole = Series(
        ("all",),
        BUCKETS,
        *(
            np.concatenate([getattr(one, name) for one in kept])
            for name in ("start", "accelerators", "seconds", "running")
        ),
        {"model": np.repeat(["slow", "fast"], [one.start.size for one in kept])},
    )
    assert find([whole], NOW, ScanOptions(control_fields=("model",))) == []
    (found,) = find([whole], NOW)
    assert found.bucket == "waste.data_stall" and found.points > 1


def test_too_few_jobs_are_no_series_and_an_empty_fleet_has_no_findings() -> None:
    assert find([], NOW) == []
    assert find([jobs("few", 1, 15)], NOW) == []


def test_a_change_below_the_least_is_not_told() -> None:
    series = moved(jobs("one", 1, 3000), 30 * DAY, 0.8)
    assert find([series], NOW, ScanOptions(min_change=2.0)) == []
    assert find([series], NOW, ScanOptions(min_change=0.3))


def test_the_last_slot_ends_now() -> None:
    found, count = slots(np.array([0.0, 5.0, 9.9, 10.0]), 10.0, 4.0)
    assert count == 3 and found.tolist() == [0, 1, 2, 2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store(str(tmp_path_factory.mktemp("fleet") / "store"))
    simulate(made, make_scenario(3, 4000, 20, regressions=2, lemons=2))
    return made


def test_jobs_come_out_of_a_store_with_all_their_seconds(store: Store) -> None:
    found = read_jobs(store, Filter(by=("team",)))
    assert found.run_ids.size == 4000 and len(found.by_slice()) == 10
    assert sum(one.start.size for one in found.by_slice()) == 4000
    assert found.now == make_scenario(3, 1, 20).end
    assert found.series.hours.sum() * 3600 == pytest.approx(
        float((found.series.wall * found.series.accelerators).sum())
    )
    assert set(found.series.accelerators.round(6)) <= {1, 2, 4, 8, 16, 32, 64, 128}
    assert (found.series.wall > 0).all()


def test_hosts_come_with_their_hours(store: Store) -> None:
    hosts = read_hosts(store, Filter())
    assert len(hosts.names) == len(set(hosts.names)) and (hosts.hours > 0).all()
    assert hosts.failures.sum() > 0


def test_running_jobs_come_hour_by_hour(store: Store) -> None:
    found = read_jobs(store, Filter(by=("cluster",)))
    running = [str(one) for one in found.run_ids[found.series.running]]
    shares = read_shares(store, running, Filter())
    assert running and set(shares) == set(running)
    assert all(0 <= share <= 1 for line in shares.values() for share in line)
    paces = read_paces(store, running, Filter())
    assert set(paces) <= set(running) and any(paces.values())
    assert {round(pace, 6) for line in paces.values() for pace in line} == {STEP_S}
    least = expected_share(found.by_slice()[0])
    assert least is not None and 0.5 < least < 1


def test_the_command_tells_it_as_json(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "regressions", "--store", store.url, "--by", "team", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["slices"], told["jobs"]) == (10, 4000)
    assert told.keys() == {"slices", "jobs", "as_of", "regressions", "lemons", "running"}


def test_a_running_job_that_a_straggler_slows_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It trains all of its time, and from hour 20 on each step takes twice as long."""
    rows = run_rows("slow", hours=40, leaves={"train.effective": 3600.0}, running=True, team="ads")
    step, saves = 0, []
    for hour in range(40):
        saves.append({"run_id": "slow", "attempt": 0, "at": START + timedelta(hours=hour),
                      "step": step, "level": "disk", "accelerators": 2})  # fmt: skip
        step += 7200 if hour < 20 else 3600
    made = Store(str(tmp_path / "store"))
    made.write({**rows, "checkpoints": saves})
    assert main(["fleet", "regressions", "--store", made.url, "--by", "team", "--json"]) == 0
    (alarm,) = json.loads(capsys.readouterr().out)["running"]
    assert (alarm["run_id"], alarm["slice"], alarm["beside"]) == ("slow", ["ads"], "pace")
    assert alarm["lately"] == pytest.approx(0.5)


def test_where_nothing_is_nothing_is_found(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--store", store.url, "--where", "team=nobody", "--json"]
    assert main(["fleet", "regressions", *flags]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["slices"], told["jobs"], told["regressions"]) == (0, 0, [])


def test_what_the_terminal_shows(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    texts = []
    for seen, *more in (
        (SCAN_RESULT,),
        (SCAN_RESULT, "--gains"),
        (replace(SCAN_RESULT, findings=[], lemons=[], alarms=[]),),
    ):
        monkeypatch.setattr("headway.fleet.regressions.scan.scan", lambda *_, seen=seen: seen)
        assert main(["fleet", "regressions", "--store", store.url, *more]) == 0
        shown = capsys.readouterr()
        assert "a note" in shown.err
        texts.append(shown.out)
    golden("regressions.txt", "\n".join(texts))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_planted_in_a_store_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "store")
    assert main(["fleet", "simulate", "--store", url, "--jobs", "50000", "--days", "45"]) == 0
    truth = json.loads((tmp_path / "store" / "truth.json").read_text())
    capsys.readouterr()
    assert main(["fleet", "regressions", "--store", url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    planted = {(one["team"], one["model"]): one for one in truth["regressions"]}
    found = {tuple(one["slice"]): one for one in told["regressions"]}
    assert set(found) <= set(planted)
    assert len(found) >= 7 and len(planted) == 8
    for name, one in found.items():
        assert abs(one["at"] - planted[name]["at"]) <= 3 * DAY
    right = sum(one["bucket"] == planted[name]["bucket"] for name, one in found.items())
    named = sum(
        planted[name]["field"] in [change["field"] for change in one["fields"]]
        for name, one in found.items()
    )
    assert right >= len(found) - 1 and named >= len(found) - 1
    assert {one["host"] for one in told["lemons"]} <= set(truth["lemons"])
    assert len(told["lemons"]) >= 2


# -- docs/regressions.md ------------------------------------------------------------------------


def rows() -> Iterator[str]:
    for name in ("regressions", "regressions_noise_2"):
        path = RESULTS / f"{name}.json"
        for row in json.loads(path.read_text())["rows"] if path.exists() else ():
            if "found" not in row:
                yield f"| {row['detector']} | {row['setting']} | | | | |"
                continue
            yield (
                f"| {row['detector']} | {row['setting']} "
                f"| {row['found']} of {row['planted']}, {row['found_share']:.0%} "
                f"| {row['delay_median_days'] or 0:.1f} | {row['delay_p90_days'] or 0:.1f} "
                f"| {row['false_alarms_a_week']:.2f} |"
            )


def running() -> Iterator[str]:
    for row in json.loads((RESULTS / "regressions_running.json").read_text())["rows"][:-1]:
        yield (
            f"| {row['case']} | {row['noticed']} of {row['planted']}, {row['noticed_share']:.0%} "
            f"| {row['delay_median_hours'] or 0:.0f} | {row['delay_p90_hours'] or 0:.0f} |"
        )


def test_the_table_is_that_of_the_results() -> None:
    told = (ROOT / "docs" / "regressions.md").read_text().splitlines()
    missing = [row for row in (*rows(), *running()) if row not in told]
    assert not missing, "put these rows into docs/regressions.md:\n" + "\n".join(missing)
    ours = json.loads((RESULTS / "regressions.json").read_text())["rows"][0]
    assert ours["found_share"] >= 0.95 and ours["false_alarms_a_week"] <= 1
    nothing = json.loads((RESULTS / "regressions_running.json").read_text())["rows"][-1]
    assert nothing["false_alarms_a_week"] <= 1
