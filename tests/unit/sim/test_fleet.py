"""The simulated fleet: it balances, it is the same each time, and the planted is in it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headway.cli import main
from headway.fleet.schema import FAILURE_COLUMNS, TABLES
from headway.fleet.store.parquet import Store
from headway.fleet.store.view import open_view
from headway.ledger.buckets import EFFECTIVE
from headway.sim.fleet import simulation
from headway.sim.fleet.account import COLUMN, split_windows
from headway.sim.fleet.defaults import distributions
from headway.sim.fleet.scenario import DAY, FIELDS, FleetScenario, make_scenario, slice_name
from headway.sim.fleet.simulation import draw_day, simulate
from tests.support import codes

if TYPE_CHECKING:
    import pyarrow as pa


pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("simulated")]
SMALL = make_scenario(5, 800, 12, regressions=3, lemons=2)


def rows(store: Store, *names: str) -> dict[str, pa.Table]:
    """Tables in one order."""
    with open_view(store, store.live_files()) as found:
        tables = found.tables()
        unordered = {name: found.get(tables[name]).drop_columns(["version"]) for name in names}
    return {
        name: table.sort_by([(column, "ascending") for column in table.column_names])
        for name, table in unordered.items()
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store(str(tmp_path_factory.mktemp("fleet") / "store"))
    counts = simulate(made, SMALL)
    assert counts["runs"] == 800
    return made


@pytest.fixture(scope="module")
def filled(store: Store) -> dict[str, pa.Table]:
    """All tables of the store."""
    return rows(store, *TABLES)


def summed(table: pa.Table, keys: list[str], value: str) -> dict[Any, float]:
    found = table.group_by(keys).aggregate([(value, "sum")])
    names = zip(*(found[key].to_pylist() for key in keys), strict=True)
    return dict(zip(names, found[f"{value}_sum"].to_pylist(), strict=True))


def test_every_second_of_every_attempt_is_in_one_leaf(filled: dict[str, pa.Table]) -> None:
    attempts, hours = filled["attempts"], filled["hours"]
    walls = summed(attempts, ["run_id", "attempt"], "wall_s")
    by_hour = summed(hours, ["run_id", "attempt"], "seconds")
    assert walls.keys() >= by_hour.keys()
    for key, wall in walls.items():
        assert by_hour.get(key, 0.0) == pytest.approx(wall, abs=1e-3)
    runs = filled["runs"]
    for name in ("wall_s", "effective_s"):
        by_run = summed(attempts, ["run_id"], name)
        for run, value in zip(runs["run_id"].to_pylist(), runs[name].to_pylist(), strict=True):
            assert by_run[run,] == pytest.approx(value, abs=1e-3)


def test_every_rank_has_the_seconds_of_its_run(filled: dict[str, pa.Table]) -> None:
    hours, buckets = filled["hours"], filled["buckets"]
    of_run = summed(hours, ["run_id", "attempt", "hour"], "accelerator_s")
    of_ranks = summed(buckets, ["run_id", "attempt", "hour"], "seconds")
    assert of_run.keys() == of_ranks.keys()
    for key, value in of_run.items():
        assert of_ranks[key] == pytest.approx(value, rel=1e-9)
    assert min(buckets["seconds"].to_pylist()) >= 0


def test_hosts_have_the_ranks_of_the_attempt(filled: dict[str, pa.Table]) -> None:
    attempts, nodes = filled["attempts"], filled["nodes"]
    assert summed(attempts, ["run_id", "attempt"], "accelerators") == summed(
        nodes, ["run_id", "attempt"], "accelerators"
    )


def test_every_table_is_filled_as_the_schema_asks(filled: dict[str, pa.Table]) -> None:
    for name in TABLES:
        assert filled[name].num_rows > 0, name


def test_failures_are_those_of_the_runs(filled: dict[str, pa.Table]) -> None:
    runs, failures = filled["runs"], filled["failures"]
    owners = Counter(failures["owner"].to_pylist())
    for owner, column in FAILURE_COLUMNS.items():
        assert sum(runs[column].to_pylist()) == owners[owner]
    hosts = zip(failures["category"].to_pylist(), failures["host"].to_pylist(), strict=True)
    for category, host in hosts:
        assert (host is None) == (category == "preemption" or category.startswith(("user", "data"))
                                  or category.endswith("oom"))  # fmt: skip


def test_nobody_trains_after_the_end(filled: dict[str, pa.Table]) -> None:
    runs = filled["runs"]
    end = np.datetime64(int(SMALL.end * 1e6), "us")
    assert (runs["ended_at"].to_numpy() <= end).all()
    running = runs["running"].to_numpy(zero_copy_only=False)
    assert running.any() and (runs["ended_at"].to_numpy()[running] == end).all()
    assert set(runs["outcome"].to_pylist()) == {"completed", "stopped", "failed", "running"}


def test_the_same_seed_is_the_same_fleet(
    store: Store,
    filled: dict[str, pa.Table],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulation, "ROWS", 20_000)  # also if it is written in other portions
    again = Store(str(tmp_path / "again"))
    simulate(again, SMALL)
    assert len(again.read_manifest().writes) > 1 == len(store.read_manifest().writes)
    for name, table in rows(again, "runs", "attempts", "hours", "failures").items():
        assert table.equals(filled[name]), name


def test_another_seed_is_another_fleet() -> None:
    drawn = [draw_day(make_scenario(seed, 1500, 12), 4)[0] for seed in (5, 6)]
    assert not np.array_equal(drawn[0].wall, drawn[1].wall)
    assert make_scenario(5, 1500, 12).planted != make_scenario(6, 1500, 12).planted


def test_written_twice_it_is_there_once(
    store: Store, filled: dict[str, pa.Table], tmp_path: Path
) -> None:
    copy = Store(str(shutil.copytree(store.url, tmp_path / "store")))
    simulate(copy, SMALL)
    for name, table in rows(copy, "runs", "hours").items():
        assert table.num_rows == filled[name].num_rows


def test_the_truth_stands_beside_it(store: Store) -> None:
    told = json.loads(Path(store.url, "truth.json").read_text())
    assert len(told["regressions"]) == 3 and len(told["lemons"]) == 2
    for one in told["regressions"]:
        assert one["points"] == 2 and one["field"] in FIELDS
        assert 0.25 * 12 <= one["day"] <= 0.85 * 12


def test_sizes_and_durations_are_those_of_the_trace() -> None:
    made = make_scenario(1, 60_000, 30, regressions=0)
    drawn = [draw_day(made, number)[0] for number in range(30)]
    sizes = np.concatenate([jobs.accelerators for jobs in drawn])
    walls = np.concatenate([jobs.wall for jobs in drawn])
    told = distributions()
    assert sizes.size == 60_000
    assert np.mean(sizes == 1) == pytest.approx(told.size_shares[0], abs=0.01)
    quantiles = np.quantile(walls[sizes == 1], [0.25, 0.5, 0.75, 0.9])
    trace = np.interp([0.25, 0.5, 0.75, 0.9], told.levels, told.durations[0])
    assert quantiles == pytest.approx(trace, rel=0.1)


def test_hosts_break_as_often_as_in_the_trace_and_bad_ones_far_more() -> None:
    made = make_scenario(2, 100_000, 60, regressions=0, lemons=6)
    failed, used = np.zeros(2), np.zeros(2)
    for number in range(60):
        jobs, full = draw_day(made, number)
        lives = full.attempts
        one = jobs.hosts[lives.job] == 1  # on one host, so that it is clear which
        host = jobs.host(lives.job, np.zeros(lives.job.size, dtype=np.int64))
        bad = np.isin(host, list(made.lemons)).astype(int)
        used += np.bincount(bad[one], (lives.end - lives.start)[one] / DAY, 2)
        failed += np.bincount(bad[one], (lives.host >= 0)[one], 2)
    assert failed[0] / used[0] == pytest.approx(distributions().faults_per_node_day, rel=0.35)
    assert failed[1] / used[1] > 15 * failed[0] / used[0]


def loss(made: FleetScenario, number: int, since: float) -> float:
    """ETT of the jobs that begin in a slice after a moment."""
    trained = whole = 0.0
    for one in range(made.days):
        jobs, full = draw_day(made, one)
        chosen = (jobs.slice == number) & (jobs.start >= since)
        seconds = full.by_job(jobs.start.size) * jobs.accelerators[:, None]
        trained += seconds[chosen, COLUMN[EFFECTIVE]].sum()
        whole += seconds[chosen].sum()
    return float(100 * trained / whole)


@pytest.mark.parametrize("bucket", ["waste.data_stall", "start.pt2_compile"])
def test_a_planted_regression_costs_about_its_points(bucket: str) -> None:
    made = make_scenario(4, 60_000, 30, regressions=1, lemons=0)
    (one,) = made.planted
    assert one.slice not in made.spot
    with_it = replace(made, planted=(replace(one, bucket=bucket),))
    cost = loss(replace(made, planted=()), one.slice, one.at) - loss(with_it, one.slice, one.at)
    assert cost == pytest.approx(2, abs=0.2 if bucket.startswith("waste") else 1.0)


def test_what_is_known_grows_to_the_whole() -> None:
    made = make_scenario(1, 3000, 10, regressions=0)
    jobs, full = draw_day(made, 2)
    count, before = jobs.start.size, np.zeros(jobs.start.size)
    for moment in made.begin + DAY * np.array([2.5, 3, 5, 9, 400]):
        known = full.known(moment).by_job(count).sum(axis=1)
        expected = np.clip(moment - jobs.start, 0, jobs.wall)
        assert known == pytest.approx(expected, abs=1e-3)
        assert (known >= before - 1e-3).all()
        before = known


def test_windows_of_any_grain_have_the_same_seconds() -> None:
    made = make_scenario(1, 3000, 10, regressions=0)
    _, full = draw_day(made, 1)
    for grain in (3600.0, DAY):
        cut = split_windows(full, grain)
        assert cut.seconds.sum(axis=0) == pytest.approx(full.seconds.sum(axis=0), rel=1e-6)
        assert cut.seconds.sum(axis=1).max() <= grain + 1e-3


@pytest.mark.parametrize(("count", "days"), [(1, 1), (3, 10)])
def test_a_fleet_may_be_tiny(tmp_path: Path, count: int, days: int) -> None:
    made = Store(str(tmp_path / "store"))
    assert simulate(made, make_scenario(1, count, days))["runs"] == count


def test_a_fleet_has_fifty_slices_of_ten_teams() -> None:
    names = {slice_name(number) for number in range(SMALL.shares.size)}
    assert len(names) == 50 and len({team for team, _ in names}) == 10


def test_a_folder_of_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["fleet", "simulate", "--store", str(tmp_path), "--jobs", "20", "--days", "2"]) == 2
    assert codes(capsys.readouterr().err) == ["not-a-store"]
    assert [one.name for one in tmp_path.iterdir()] == ["mine.txt"]


def test_the_notice_names_every_source() -> None:
    folder = Path(simulation.__file__).parent
    notice = (folder / "NOTICE.md").read_text()
    for part in json.loads((folder / "tables.json").read_text()):
        assert f"`{part}`" in notice
