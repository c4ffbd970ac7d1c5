"""What publishers write for each run, and when they withdraw it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from headway.cli import main
from headway.errors import SchedulerUpdateFailed, UsageError
from headway.eviction_cost import EvictionCost
from headway.schedule.publishers.api import Api
from headway.schedule.publishers.base import PriorityAdjustment, PublishLoop, RunCost, run_costs
from headway.schedule.publishers.file import FilePublisher, RayPublisher
from headway.schedule.publishers.slurm import SlurmPublisher
from headway.testing import FakeRun
from tests.support import codes, has_code, metric_families
from tests.unit.schedule.kubernetes_server import recorded_server
from tests.unit.schedule.launcher_journal import write_active_run

PRICE = EvictionCost(accelerators=8, unsaved=600, save=20, recover=100, preemptions=0, lost=5600)
SHOWN = "JobId={job} JobName=x Priority=1 Nice={nice} Account=a Comment={comment} StdErr=/x"


def run_cost(
    run: str = "night", price: EvictionCost | None = PRICE, job: str | None = "7"
) -> RunCost:
    return RunCost(run=run, host="n0", job=job, at=1_790_000_000.0, price=price)


class RecordingPublisher:
    """Records what is published, and refuses on request."""

    def __init__(self) -> None:
        self.published: list[dict[str, bool]] = []
        self.refuse = False

    def publish(self, costs: list[RunCost]) -> Iterable[str]:
        if self.refuse:
            raise SchedulerUpdateFailed("the scheduler sleeps", code="scheduler-sleeps")
        self.published.append({cost.run: cost.price is not None for cost in costs})
        return ()


def controller(
    path: Path, publisher: RecordingPublisher, lines: list[str] | None = None
) -> PublishLoop:
    append = (lines if lines is not None else []).append
    return PublishLoop(path, publisher, grace=30, repeat_penalty_s=60, clock=time.time, log=append)


def test_the_cost_of_each_run(tmp_path: Path) -> None:
    write_active_run(tmp_path / "a")
    write_active_run(tmp_path / "b", over=True)
    (tmp_path / "c" / "journal").mkdir(parents=True)
    first, second = run_costs(tmp_path, time.time(), grace=30, repeat_penalty_s=60)
    assert (first.run, first.host, second.run, second.price) == ("a", "trainer-0", "b", None)
    assert first.price is not None
    assert first.price.lost == pytest.approx(8 * (20 + 100 + 2 * 60)), "it saves in 30 s of notice"
    later = next(iter(run_costs(tmp_path, time.time() + 500, grace=0, repeat_penalty_s=0)))
    assert later.price is None, "its launcher gave no sign of life for long"


def test_the_end_of_a_run_withdraws_its_cost_and_ends_the_loop(tmp_path: Path) -> None:
    write_active_run(tmp_path / "a")
    publisher = RecordingPublisher()

    def wait(_: float) -> bool:
        journal = tmp_path / "a" / "journal" / "launcher-L0-node0-7.jsonl"
        with journal.open("a") as file:
            file.write('{"ev":"exit","t":1,"code":0}\n')
        return False

    controller(tmp_path / "a", publisher).run(30, wait)
    assert publisher.published == [{"a": True}, {"a": False}]


def test_costs_are_withdrawn_on_removal_and_stop(tmp_path: Path) -> None:
    write_active_run(tmp_path / "a")
    write_active_run(tmp_path / "b")
    publisher = RecordingPublisher()
    turns = iter([False, True])

    def wait(_: float) -> bool:
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        return next(turns)

    controller(tmp_path, publisher).run(30, wait)
    assert publisher.published == [{"a": True, "b": True}, {"a": True, "b": False}, {"a": False}]


def test_a_refusal_is_logged_once_and_retried(tmp_path: Path) -> None:
    write_active_run(tmp_path / "a")
    publisher, log = RecordingPublisher(), list[str]()
    publisher.refuse = True
    turns = iter([False, False, True])

    def wait(_: float) -> bool:
        publisher.refuse = False if len(log) > 1 else publisher.refuse
        return next(turns)

    controller(tmp_path / "a", publisher, log).run(30, wait)
    assert codes("\n".join(log)) == ["scheduler-sleeps", "price-not-withdrawn"]
    assert all("the scheduler sleeps" in line for line in log)


def test_the_adjustment_is_bounded_and_has_levels() -> None:
    adjustment = PriorityAdjustment(minimum=-10, maximum=90, full_loss_s=1000)

    def of(lost: float) -> int:
        price = EvictionCost(
            accelerators=4, unsaved=0, save=None, recover=0, preemptions=0, lost=4 * lost
        )
        return adjustment.priority(price)

    assert [of(0), of(30), of(70), of(500), of(1000), of(10**9)] == [-10, -10, 0, 40, 90, 90]
    with pytest.raises(UsageError, check=has_code("value-out-of-range")):
        PriorityAdjustment(minimum=5, maximum=5)
    with pytest.raises(UsageError, check=has_code("value-out-of-range")):
        PriorityAdjustment(minimum=0, maximum=5, full_loss_s=0)


def scontrol(folder: Path, *, comment: str, nice: int = 0, refuses: str = "") -> Path:
    """A fake scontrol that records its calls."""
    shown = SHOWN.format(job=7, nice=nice, comment=comment)
    (folder / "scontrol").write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {folder}/asked\n'
        f'if [ "$1" = update ] && [ -n "{refuses}" ]; then echo "{refuses}" >&2; exit 1; fi\n'
        f"[ \"$4\" = 8 ] && echo 'Invalid job id specified' >&2 && exit 1\n"
        f'[ "$1" = show ] && echo "{shown}"\nexit 0\n'
    )
    (folder / "scontrol").chmod(0o755)
    return folder / "asked"


@pytest.mark.parametrize(
    ("comment", "price", "update"),
    [
        ("(null)", PRICE, "Comment=headway:cost=5600,unsaved=600,accelerators=8,at=1790000000"),
        ("mine headway:cost=1,at=2", None, "Comment=mine"),
        ("mine", None, None),
        ("headway:cost=5600,unsaved=600,accelerators=8,at=1790000000", PRICE, None),
        ("headway:cost=5,at=2,nice=4", None, "Comment= Nice=4"),
    ],
)
def test_the_comment_of_a_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    comment: str,
    price: EvictionCost | None,
    update: str | None,
) -> None:
    calls = scontrol(tmp_path, comment=comment)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    list(SlurmPublisher().publish([run_cost(price=price)]))
    assert calls.read_text().splitlines() == [
        "show job -o 7",
        *([f"update JobId=7 {update}"] if update else []),
    ]


def test_runs_that_share_a_job_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = scontrol(tmp_path, comment="(null)")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    list(SlurmPublisher().publish([run_cost("a"), run_cost("b"), run_cost("c", None)]))
    assert "Comment=headway:cost=11200,unsaved=600,accelerators=16," in calls.read_text()
    assert calls.read_text().count("update") == 1


def test_refusals_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = "slurm_update error: Access/permission denied"
    calls = scontrol(tmp_path, comment="(null)", nice=2, refuses=refuses)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SchedulerUpdateFailed, check=has_code("slurm-refused")) as error:
        list(
            SlurmPublisher(adjustment=PriorityAdjustment(minimum=0, maximum=10)).publish(
                [run_cost()]
            )
        )
    assert error.value.fields == {"job": "7", "reason": "Access/permission denied"}
    assert calls.read_text().split()[-1] == "Nice=0"
    with pytest.raises(SchedulerUpdateFailed, check=has_code("job-not-found")):
        list(SlurmPublisher("8").publish([run_cost()]))
    assert list(SlurmPublisher("8").publish([run_cost(price=None)])) == []
    with pytest.raises(SchedulerUpdateFailed, check=has_code("run-not-in-job")):
        list(SlurmPublisher().publish([run_cost(job=None)]))
    with pytest.raises(UsageError, check=has_code("job-id-invalid")):
        SlurmPublisher("7; rm")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, check=has_code("slurm-not-installed")):
        list(SlurmPublisher().publish([run_cost()]))


def test_the_prometheus_file_has_active_runs_only(tmp_path: Path) -> None:
    write_active_run(tmp_path / "runs" / "a", scheduler_job="7")
    write_active_run(tmp_path / "runs" / "b", over=True)
    path = tmp_path / "costs.prom"
    words = ["schedule", "publish-cost", str(tmp_path / "runs"), "--to", "file", "--once"]
    assert main([*words, "--file", str(path)]) == 0
    families = metric_families(path.read_text())
    (sample,) = families["headway_eviction_cost_accelerator_seconds"].samples
    assert sample.labels == {"run": "a", "scheduler_job": "7"}
    assert sample.value == pytest.approx(5600, rel=0.05)
    if shutil.which("promtool"):
        lines = [line for line in path.read_text().splitlines(True) if "# EOF" not in line]
        check = ["promtool", "check", "metrics"]
        done = subprocess.run(check, input="".join(lines), capture_output=True, text=True)
        assert done.returncode in (0, 3) and "error while linting" not in done.stderr
    assert main([*words, "--file", str(tmp_path / "costs.json")]) == 0
    publisher = json.loads((tmp_path / "costs.json").read_text())
    assert [(one["run"], one["price"] is None) for one in publisher["runs"]] == [
        ("a", False),
        ("b", True),
    ]


@pytest.mark.slow  # it loads the engine of a store
def test_fleet_metrics_have_the_costs_of_active_runs(tmp_path: Path) -> None:
    from headway.cli.fleet import metrics_text
    from headway.fleet.metrics import Window
    from headway.fleet.store.parquet import Store
    from tests.unit.fleet.store_rows import run_rows

    write_active_run(tmp_path / "runs" / "a")
    store = Store(str(tmp_path / "store"))
    store.write(run_rows("b", team="ads"))
    families = metric_families(metrics_text(store, Window(), tmp_path / "runs"))
    cost = families["headway_eviction_cost_accelerator_seconds"]
    assert [sample.labels for sample in cost.samples] == [{"run": "a"}]
    assert "headway_fleet_read_time_seconds" in families


def test_an_active_run_is_exported_with_its_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = FakeRun()
    launcher = job.launcher(begin=0)
    job.process(begin=1, rank=0, world=4).train(first=1, count=100, start=5, each=0.5)
    job.write(tmp_path / "going")
    launcher.exit(101, code=0)
    job.write(tmp_path / "over")
    for name, there in (("going", True), ("over", False)):
        assert main(["export", "openmetrics", str(tmp_path / name)]) == 0
        families = metric_families(capsys.readouterr().out)
        assert ("headway_eviction_cost_accelerator_seconds" in families) is there
        if there:
            assert families["headway_accelerators"].samples[0].value == 4


def test_a_finished_ray_job_has_no_cost(tmp_path: Path) -> None:
    path = tmp_path / "ray.prom"

    def page(found: Iterable[RunCost]) -> str:
        return " ".join(f"{one.run}/{one.job}" for one in found)

    with recorded_server() as dashboard:
        job = "/api/jobs/raysubmit_1"
        dashboard.things[job] = {"status": "RUNNING", "submission_id": "raysubmit_1"}
        ray = RayPublisher(Api(dashboard.url), "raysubmit_1", FilePublisher(path, page))
        assert list(ray.publish([run_cost()])) == [] and path.read_text() == "night/raysubmit_1"
        dashboard.things[job]["status"] = "SUCCEEDED"
        assert list(ray.publish([run_cost()])) == [] and path.read_text() == ""
        with pytest.raises(SchedulerUpdateFailed, check=has_code("job-not-found")):
            list(
                RayPublisher(Api(dashboard.url), "other", FilePublisher(path, page)).publish(
                    [run_cost()]
                )
            )
        with pytest.raises(UsageError, check=has_code("several-runs")):
            list(ray.publish([run_cost(), run_cost("day")]))
    with pytest.raises(UsageError, check=has_code("job-id-invalid")):
        RayPublisher(Api("http://x"), "../x", FilePublisher(path, page))


def test_an_unwritable_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_active_run(tmp_path / "a")
    (tmp_path / "file").touch()
    words = ["schedule", "publish-cost", str(tmp_path / "a"), "--to", "file", "--once"]
    assert main([*words, "--file", str(tmp_path / "file" / "x")]) == 1
    assert codes(capsys.readouterr().err) == ["file-unwritable"]
