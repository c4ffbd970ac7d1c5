"""The injector alone: orders, claims and actions by the clock. Signals are only recorded."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headway.chaos import claims, injector
from headway.chaos import injector as chaos_injector
from headway.chaos.injector import FaultInjector
from headway.chaos.plan import parse_inline_plan
from headway.chaos.schedule import FaultHistory, drawn_rank, plan_moments
from headway.journal.pulse import Pulse
from headway.launch import processes
from headway.launch.attempt import Attempt
from headway.launch.rank_tail import RankTail
from headway.launch.run_folder import RunFolder
from headway.probe import ENV_CHAOS


class Bench:
    """An attempt that runs nothing, and a clock set by the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run_folder = RunFolder(run="r", folder=folder, url=None, launch="abc", index=0)
        self.run_folder.journal.mkdir(parents=True, exist_ok=True)
        self.sent: list[tuple[int, signal.Signals]] = []
        self.ns = 1_000_000_000_000
        monkeypatch.setattr(injector, "now", lambda: self.ns)
        monkeypatch.setattr(
            injector.os, "kill", lambda pid, number: self.sent.append((pid, number))
        )

    def begin(self, injector: FaultInjector, number: int = 0) -> Attempt:
        attempt = Attempt(self.run_folder, number, supervised=False)
        injector.begin(attempt)
        return attempt

    def round(self, injector: FaultInjector, attempt: Attempt, seconds: float = 0.0) -> None:
        self.ns += round(seconds * 1e9)
        attempt.watch.journal_files = set(os.listdir(self.run_folder.journal))
        injector.round(attempt.watch)

    def events(self, attempt: Attempt, *names: str) -> list[dict[str, Any]]:
        lines = Path(attempt.writer.path).read_text().splitlines()
        return [e for e in map(json.loads, lines) if e["ev"] in (names or ("fault",))]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_ranks_get_their_orders_in_the_environment(bench: Bench) -> None:
    plan = parse_inline_plan(
        "kill rank=1 step=30; kill who=agent step=9; data delay=1 after=2; kill rank=0 after=3"
    )
    attempt = bench.begin(FaultInjector(plan, bench.run_folder))
    content = json.loads(attempt.extra_env[ENV_CHAOS])
    assert (content["launch"], content["mark"]) == ("abc", plan.mark)
    kill, hold, data = content["orders"]
    assert (kill["kind"], kill["who"], kill["moments"]) == (
        "kill",
        1,
        [{"keys": ["k0"], "step": 30}],
    )
    assert (hold["kind"], hold["who"], hold["fault"]) == ("hold", 0, 2)
    assert data["moments"] == [{"keys": ["a0"], "at": bench.ns + 2_000_000_000}]
    assert (data["delay_s"], data["for_s"], data["who"]) == (1.0, None, "all")
    (event,) = bench.events(attempt, "plan")
    assert [fault["planned"] for fault in event["faults"]] == [f.text for f in plan.faults]


def test_without_orders_the_environment_is_left_alone(bench: Bench) -> None:
    plan = parse_inline_plan("terminate after=3")
    assert bench.begin(FaultInjector(plan, bench.run_folder)).extra_env == {}


def test_preemption_by_the_clock_then_the_grace(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    injector = FaultInjector(parse_inline_plan("terminate after=3 grace=5"), bench.run_folder)
    attempt = bench.begin(injector)
    bench.round(injector, attempt, 2.9)
    assert bench.sent == []
    bench.round(injector, attempt, 0.2)
    assert bench.sent == [(os.getpid(), signal.SIGTERM)]
    (event,) = bench.events(attempt)
    assert (event["kind"], event["who"], event["fault"]) == ("terminate", "launcher", 1)
    monkeypatch.setattr(injector, "_everything", lambda: {77, 78})
    bench.round(injector, attempt, 4.9)
    assert len(bench.sent) == 1
    bench.round(injector, attempt, 0.2)
    assert bench.sent[1:] == [(77, signal.SIGKILL), (78, signal.SIGKILL)]
    assert [event["kind"] for event in bench.events(attempt)] == ["terminate", "kill"]


def test_a_rank_that_holds_still_is_answered(bench: Bench, tmp_path: Path) -> None:
    saved = tmp_path / "checkpoints" / "a.pt"
    saved.parent.mkdir()
    saved.write_bytes(bytes(2000))
    plan = parse_inline_plan(f"corrupt path={saved.parent} step=9")
    injector = FaultInjector(plan, bench.run_folder)
    attempt = bench.begin(injector)
    name = claims.claim_name(plan.mark, 1, "k0")
    content = {"host": os.uname().nodename, "pid": 77, "rank": 0, "step": 9, "t": 1}
    assert claims.take_claim(str(bench.run_folder.journal), [name], content) == name
    bench.round(injector, attempt)
    assert saved.read_bytes()[1000] == 0xFF
    (event,) = bench.events(attempt)
    assert (event["who"], event["step"], event["key"]) == (str(saved), 9, "k0")
    assert (bench.run_folder.journal / (name + claims.DONE)).exists()
    bench.round(injector, attempt)
    assert len(bench.events(attempt)) == 1
    attempt = bench.begin(injector, 1)
    assert attempt.extra_env == {}  # it has been injected


def test_what_hits_nothing_says_so(bench: Bench, tmp_path: Path) -> None:
    injector = FaultInjector(
        parse_inline_plan(f"corrupt path={tmp_path / 'no'} when=restart"), bench.run_folder
    )
    assert bench.events(bench.begin(injector)) == []
    (event,) = bench.events(bench.begin(injector, 1))
    assert str(tmp_path / "no") in event["missed"]


def test_a_rank_that_stopped_itself_is_woken(bench: Bench) -> None:
    plan = parse_inline_plan("stop rank=1 step=9 for=3; stop rank=0 step=9")
    injector = FaultInjector(plan, bench.run_folder)
    attempt = bench.begin(injector)
    for number, pid in ((1, 71), (2, 72)):
        content = {"host": os.uname().nodename, "pid": pid, "rank": 0, "step": 9, "t": 1}
        claims.take_claim(
            str(bench.run_folder.journal), [claims.claim_name(plan.mark, number, "k0")], content
        )
    bench.round(injector, attempt)
    bench.round(injector, attempt, 2.9)
    assert bench.sent == []
    bench.round(injector, attempt, 0.2)
    assert bench.sent == [(71, signal.SIGCONT)]


def test_another_nodes_rank_is_another_nodes_concern(bench: Bench) -> None:
    plan = parse_inline_plan("kill who=all step=9; terminate after=1 node=elsewhere")
    injector = FaultInjector(plan, bench.run_folder)
    attempt = bench.begin(injector)
    name = claims.claim_name(plan.mark, 1, "k0")
    claims.take_claim(
        str(bench.run_folder.journal), [name], {"host": "elsewhere", "pid": 77, "step": 9}
    )
    bench.round(injector, attempt, 2)
    assert bench.sent == [] and bench.events(attempt) == []


def test_the_network_is_put_back_when_the_attempt_is_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("down", "up"):
        monkeypatch.setattr(
            chaos_injector.network, name, lambda device, name=name: calls.append(name)
        )
    monkeypatch.setattr(chaos_injector.network, "unusable_reason", lambda device: "")
    injector = FaultInjector(parse_inline_plan("network device=eth0 after=1"), bench.run_folder)
    attempt = bench.begin(injector)
    bench.round(injector, attempt, 1)
    assert calls == ["down"]
    injector.end()
    assert calls == ["down", "up"]


def test_a_fault_of_ours_is_noted_and_the_watch_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_injector.network, "unusable_reason", lambda device: "")

    def down(device: str) -> None:
        raise OSError(f"{device} is stuck")

    monkeypatch.setattr(chaos_injector.network, "down", down)
    injector = FaultInjector(parse_inline_plan("network device=eth0 after=1"), bench.run_folder)
    attempt = bench.begin(injector)
    bench.round(injector, attempt, 1)
    (note,) = bench.events(attempt, "note")
    assert (note["hook"], note["code"]) == ("chaos", "fault-not-done")
    assert "eth0 is stuck" in note["text"]  # the error itself


def test_another_launch_of_the_run_goes_on_where_the_last_one_ended(bench: Bench) -> None:
    plan = parse_inline_plan("seed=7; kill rank=0 between=10..20; kill rank=1 step=5")
    for name in (claims.claim_name(plan.mark, 1, "k0"), claims.claim_name(plan.mark, 2, "k0")):
        claims.take_claim(str(bench.run_folder.journal), [name], {"host": "x", "pid": 1})
    attempt = bench.begin(FaultInjector(plan, bench.run_folder))
    (order,) = json.loads(attempt.extra_env[ENV_CHAOS])["orders"]
    assert order["fault"] == 1 and order["over"]
    first = order["moments"][0]
    assert first["keys"] == ["k1"] and 10 <= first["step"] <= 20


def followed(attempt: Attempt, pid: int, **facts: Any) -> RankTail:
    process = RankTail("nowhere.jsonl", pid)
    for name, value in facts.items():
        setattr(process, name, value)
    attempt.watch.processes[pid] = process
    return process


def test_by_the_clock_a_fault_waits_for_whom_it_is_to_hit(bench: Bench) -> None:
    injector = FaultInjector(
        parse_inline_plan("kill rank=1 after=1; stop who=agent after=1"), bench.run_folder
    )
    attempt = bench.begin(injector)
    followed(attempt, 70, rank=0)
    followed(attempt, 60, rank=1, died=5)
    followed(attempt, 61, rank=1, head={"helper": True})
    bench.round(injector, attempt, 2)
    assert bench.sent == []
    followed(attempt, 71, rank=1)
    followed(attempt, 80, agent=True)
    bench.round(injector, attempt, 0.1)
    assert bench.sent == [(71, signal.SIGKILL), (80, signal.SIGSTOP)]
    assert [event["who"] for event in bench.events(attempt)] == ["rank 1", "agent"]
    bench.round(injector, attempt, 5)
    assert len(bench.sent) == 2


def test_a_random_rank_is_the_one_that_the_seed_chose(bench: Bench) -> None:
    plan = parse_inline_plan("seed=5; kill who=random after=1")
    injector = FaultInjector(plan, bench.run_folder)
    attempt = bench.begin(injector)
    for rank in range(4):
        followed(attempt, 70 + rank, rank=rank, head={"world": 4})
    bench.round(injector, attempt, 1)
    draw = plan_moments(plan, 0, FaultHistory(claimed={}, earlier={}, ran_s={}, steps={}))[0].draw
    assert draw is not None
    assert bench.sent == [(70 + drawn_rank(draw, 4), signal.SIGKILL)]
    assert bench.events(attempt)[0]["who"] == f"rank {drawn_rank(draw, 4)}"


def test_everything_is_all_below_the_launcher(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    injector = FaultInjector(parse_inline_plan("kill who=all after=1"), bench.run_folder)
    attempt = bench.begin(injector)
    parents = {71: os.getpid(), 72: 71, 73: os.getpid(), 74: 73, 80: 1}
    table = {pid: processes.ProcInfo(parent, pid, "S") for pid, parent in parents.items()}
    monkeypatch.setattr(processes, "process_table", lambda: table)
    monkeypatch.setattr(processes, "still_running", set)
    attempt.helper_pids = lambda: {73}
    followed(attempt, 71, rank=0)
    bench.round(injector, attempt, 1)
    assert sorted(bench.sent) == [(71, signal.SIGKILL), (72, signal.SIGKILL)]


def test_steps_and_seconds_are_counted_over_the_attempts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = parse_inline_plan("seed=7; kill rank=0 between=10..20")
    injector = FaultInjector(plan, bench.run_folder)
    attempt = bench.begin(injector)
    steps = [m["step"] for m in _orders(attempt)[0]["moments"]]
    process = followed(attempt, 70, rank=0)
    monkeypatch.setattr(process, "pulse", lambda: Pulse(steps=4))
    injector.end()
    attempt = bench.begin(injector, 1)
    assert [m["step"] for m in _orders(attempt)[0]["moments"]][:5] == [s - 4 for s in steps[:5]]


def _orders(attempt: Attempt) -> list[dict[str, Any]]:
    orders: list[dict[str, Any]] = json.loads(attempt.extra_env[ENV_CHAOS])["orders"]
    return orders
