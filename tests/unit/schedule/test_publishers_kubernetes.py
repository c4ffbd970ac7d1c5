"""The Kubernetes publisher, with recorded responses of an API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.errors import SchedulerUpdateFailed, UsageError
from headway.eviction_cost import EvictionCost
from headway.schedule.publishers.api import Api, connect_api
from headway.schedule.publishers.base import PriorityAdjustment, RunCost
from headway.schedule.publishers.kubernetes import (
    AT,
    BOOST,
    COST,
    HELD,
    OURS,
    UNSAVED,
    KubernetesPublisher,
)
from tests.support import codes, has_code
from tests.unit.schedule.kubernetes_server import (
    ANSWERS,
    BUSY,
    DROP,
    GROUP,
    JOB,
    POD,
    WORKLOAD,
    RecordedServer,
    recorded_server,
)
from tests.unit.schedule.launcher_journal import write_active_run

PRICE = EvictionCost(accelerators=8, unsaved=600, save=20, recover=100, preemptions=0, lost=5600)


@pytest.fixture
def api_server() -> Iterator[RecordedServer]:
    with recorded_server() as recorded:
        yield recorded


def run_cost(price: EvictionCost | None = PRICE, at: float = 1_790_000_000.0) -> RunCost:
    return RunCost(run="night", host="trainer-0", job=None, at=at, price=price)


def place(
    recorded: RecordedServer, waits: list[float] | None = None, **more: object
) -> KubernetesPublisher:
    slept = waits if waits is not None else []
    api = Api(recorded.url, lambda: "token-1", sleep=slept.append)
    return KubernetesPublisher(api, "train", **more)  # type: ignore[arg-type]


def test_annotations_of_the_launcher_pod_are_set_and_removed(api_server: RecordedServer) -> None:
    there = place(api_server)
    assert list(there.publish([run_cost()])) != []
    assert api_server.annotations(POD) == {
        COST: "5600",
        UNSAVED: "600",
        HELD: "8",
        AT: "2026-09-21T14:13:20Z",
    }
    assert api_server.headers[-1]["Content-Type"] == "application/merge-patch+json"
    assert api_server.headers[-1]["Authorization"] == "Bearer token-1"
    assert list(there.publish([run_cost()])) == [], "the same again changes nothing"
    assert [method for method, _ in api_server.requests] == ["GET", "PATCH", "GET"]
    list(there.publish([run_cost(None)]))
    assert api_server.annotations(POD) == {}
    count = len(api_server.requests)
    assert list(there.publish([run_cost(None)])) == [] and len(api_server.requests) == count
    del api_server.things[POD]
    assert list(place(api_server).publish([run_cost(None)])) == [], "gone, and all of it with it"


def test_requests_match_the_recorded_ones(
    api_server: RecordedServer,
) -> None:
    there = place(api_server)
    list(there.publish([run_cost()]))
    list(there.publish([run_cost(None)]))
    for name in ("pod annotated", "pod cleaned"):
        assert ANSWERS[name]["sent"] in api_server.bodies
    assert api_server.annotations(POD) == ANSWERS["pod cleaned"]["answer"]["metadata"].get(
        "annotations", {}
    )


def test_the_boost_of_the_workload_stays_within_its_limits(api_server: RecordedServer) -> None:
    adjustment = PriorityAdjustment(minimum=-5, maximum=50, full_loss_s=700)
    there = place(api_server, target="job/night", adjustment=adjustment)
    list(there.publish([run_cost()]))
    assert api_server.annotations(JOB)[COST] == "5600"
    assert api_server.annotations(WORKLOAD) == {BOOST: "50", OURS: "50"}
    cheap = EvictionCost(accelerators=8, unsaved=0, save=1, recover=0, preemptions=0, lost=0)
    list(there.publish([run_cost(cheap)]))
    assert api_server.annotations(WORKLOAD)[BOOST] == "-5"
    # Another controller, restarted, knows what was its own.
    list(place(api_server, target="job/night", adjustment=adjustment).publish([run_cost(None)]))
    assert api_server.annotations(WORKLOAD) == {}


def test_the_boost_of_another_client_is_not_changed(api_server: RecordedServer) -> None:
    api_server.things[WORKLOAD]["metadata"]["annotations"] = {BOOST: "7"}
    with pytest.raises(SchedulerUpdateFailed, check=has_code("workload-boosted-by-other")):
        list(
            place(
                api_server, target="job/night", adjustment=PriorityAdjustment(minimum=0, maximum=9)
            ).publish([run_cost()])
        )
    assert api_server.annotations(WORKLOAD) == {BOOST: "7"}


def test_without_kueue_or_a_workload(api_server: RecordedServer) -> None:
    adjustment = PriorityAdjustment(minimum=0, maximum=9)
    with pytest.raises(SchedulerUpdateFailed, check=has_code("workload-not-found")):
        list(place(api_server, adjustment=adjustment).publish([run_cost()]))
    list(place(api_server, workload="job-night-4f1c2", adjustment=adjustment).publish([run_cost()]))
    assert api_server.annotations(WORKLOAD)[BOOST] == "2"
    with pytest.raises(SchedulerUpdateFailed, check=has_code("workload-not-found")):
        list(place(api_server, workload="other", adjustment=adjustment).publish([run_cost()]))
    del api_server.things[GROUP]
    with pytest.raises(SchedulerUpdateFailed, check=has_code("kueue-not-found")):
        list(place(api_server, adjustment=adjustment).publish([run_cost()]))


@pytest.mark.parametrize(
    ("refusals", "waited"),
    [
        ([DROP], [0.5]),
        ([500, 503], [0.5, 1.0]),
        ([(429, "3"), (429, "900")], [3.0, 30.0]),
        ([401], [0.5]),
        ([None, 409], []),
    ],
)
def test_transient_errors_are_retried(
    api_server: RecordedServer, refusals: list[Any], waited: list[float]
) -> None:
    api_server.refusals = list(refusals)
    waits: list[float] = []
    list(place(api_server, waits).publish([run_cost()]))
    assert waits == waited
    assert api_server.annotations(POD)[COST] == "5600"


@pytest.mark.parametrize(
    ("refusals", "code", "status", "reason"),
    [
        ([401, 401], "api-refused", 401, ANSWERS["no such token"]["answer"]["message"]),
        ([403], "api-refused", 403, ANSWERS["may not get"]["answer"]["message"]),
        ([503] * 4, "api-not-reached", 503, "503 told to say 503"),
        ([429] * 4, "api-not-reached", 429, f"429 {BUSY.strip()}"),
        ([DROP] * 4, "api-not-reached", None, None),
    ],
)
def test_permanent_errors_are_one_line(
    api_server: RecordedServer,
    refusals: list[Any],
    code: str,
    status: int | None,
    reason: str | None,
) -> None:
    api_server.refusals = list(refusals)
    with pytest.raises(SchedulerUpdateFailed, check=has_code(code)) as error:
        list(place(api_server).publish([run_cost()]))
    assert error.value.fields["status"] == status
    assert reason is None or error.value.fields["reason"] == reason
    assert not api_server.refusals


def test_repeated_conflicts_are_an_error(api_server: RecordedServer) -> None:
    api_server.refusals = [None, 409] * 4
    with pytest.raises(SchedulerUpdateFailed, check=has_code("kubernetes-conflict")):
        list(place(api_server).publish([run_cost()]))
    assert not api_server.refusals


def test_a_refused_object_does_not_block_others(api_server: RecordedServer) -> None:
    other = RunCost(run="gone", host="no-such-pod", job=None, at=0.0, price=PRICE)
    with pytest.raises(
        SchedulerUpdateFailed, check=has_code("kubernetes-object-not-found")
    ) as error:
        list(place(api_server).publish([other, run_cost()]))
    assert error.value.fields["name"] == "no-such-pod"
    assert api_server.annotations(POD)[COST] == "5600"


def test_a_launcher_outside_a_pod(api_server: RecordedServer) -> None:
    other = RunCost(run="gone", host="my_host", job=None, at=0.0, price=PRICE)
    with pytest.raises(SchedulerUpdateFailed, check=has_code("run-not-in-pod")):
        list(place(api_server).publish([other, run_cost()]))
    assert api_server.annotations(POD)[COST] == "5600"


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("night", "kubernetes-object-invalid"),
        ("pod/", "kubernetes-object-invalid"),
        ("shoe/night", "kubernetes-object-invalid"),
        ("pod/../secrets/x", "kubernetes-name-invalid"),
    ],
)
def test_invalid_targets(target: str, code: str, api_server: RecordedServer) -> None:
    with pytest.raises(UsageError, check=has_code(code)):
        place(api_server, target=target)


def test_the_service_account_of_a_pod(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code("api-not-named")):
        connect_api(None, None, None, env={}, account=tmp_path)
    (tmp_path / "token").write_text("first\n")
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    api = connect_api(None, None, None, env=env, account=tmp_path)
    assert (api.url, api._token()) == ("https://[fd00::1]:6443", "first")
    (tmp_path / "token").write_text("second\n")
    assert api._token() == "second", "it is replaced while we run"
    clear = connect_api("http://proxy:8001", None, None, env=env, account=tmp_path)
    assert clear._token() is None, "not in the clear"
    with pytest.raises(UsageError, check=has_code("certificate-invalid")):
        connect_api("https://k", None, str(tmp_path / "token"), account=tmp_path)


def test_the_command_line(
    api_server: RecordedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_active_run(tmp_path / "night")
    words = ["schedule", "publish-cost", str(tmp_path), "--to", "kubernetes", "--once"]
    words += ["--api", api_server.url, "--namespace", "train", "--object", "job/night"]
    assert main([*words, "--nudge-max", "20", "--dry-run"]) == 0
    assert JOB in capsys.readouterr().out and not api_server.requests
    assert main(words) == 0
    assert int(api_server.annotations(JOB)[COST]) > 0
    assert "Authorization" not in api_server.headers[0]
    api_server.refusals = [403]
    assert main(words) == 1
    refused = str(ANSWERS["may not get"]["answer"]["message"])
    error = capsys.readouterr().err
    assert codes(error) == ["api-refused"]
    assert api_server.url in error and refused in error
