"""From the reports of all nodes to one decision for all."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headway.launch.failures import Fact
from headway.launch.policy import AttemptSummary
from headway.launch.verdict import decide_for_all, judge, would_restart


def said(
    *facts: Fact,
    done: bool = False,
    told: int | None = None,
    step: int | None = 20,
    stillborn: bool = False,
) -> dict[str, Any]:
    return {
        "done": done,
        "told": told,
        "step": step,
        "progressed": True,
        "stillborn": stillborn,
        "facts": [asdict(fact) for fact in facts],
    }


def decided(nodes: dict[str, Any], gone: tuple[str, ...] = (), restarts: int = 3) -> Any:
    return decide_for_all(nodes, gone, [], restarts=restarts, seed=1)


BUG = Fact(source="exception", text="KeyError: 'no such column'", rank=1, node="b", at=10.0)
PEER = Fact(
    source="exception",
    text="RuntimeError: [gloo/pair.cc:553] Connection closed by peer [10.0.0.2]:6",
    rank=0,
    node="a",
    at=10.1,
)


def test_all_done_is_done() -> None:
    assert decided({"a-1": said(done=True), "b-1": said(done=True)}) == {"done": True}


def test_the_cause_may_lie_on_another_node() -> None:
    agreed = decided({"a-1": said(PEER), "b-1": said(BUG)})
    assert (agreed["verdict"]["category"], agreed["verdict"]["rank"]) == ("user_code", 1)
    assert agreed["decision"]["action"] == "stop"


def test_a_node_that_is_done_does_not_hide_a_failure() -> None:
    agreed = decided({"a-1": said(done=True), "b-1": said(BUG)})
    assert agreed["decision"]["action"] == "stop"


def test_told_to_stop_wins() -> None:
    kill = Fact(source="exit", code=-9, rank=0)
    agreed = decided({"a-1": said(kill, told=15), "b-1": said(kill)})
    assert agreed["decision"]["action"] == "stop"
    assert "SIGTERM" in agreed["decision"]["why"]


def test_a_lost_node_is_to_be_swapped() -> None:
    agreed = decided({"a-1": said(PEER)}, gone=("b",))
    assert (agreed["verdict"]["category"], agreed["verdict"]["node"]) == ("node_failure", "b")
    assert agreed["decision"]["action"] == "swap"


def test_a_hang_names_the_rank_that_somebody_could_name() -> None:
    unknown = Fact(source="hang", text="no step for 12 s", node="a")
    named = Fact(source="hang", text="no step for 12 s; rank 3 is behind", rank=3, node="b")
    verdict = judge([unknown, named, PEER])
    assert (verdict.category, verdict.rank, verdict.node) == ("hang", 3, "b")


def test_a_warm_start_that_fails_at_once_is_tried_cold() -> None:
    agreed = decided({"a-1": said(BUG, stillborn=True)})
    assert agreed["decision"]["action"] == "restart"
    assert agreed["cold"]
    assert not decided({"a-1": said(BUG)})["cold"]
    killed = Fact(source="exit", code=-9, rank=0)
    assert not decided({"a-1": said(killed, stillborn=True)})["cold"]  # not caused by a fork


def test_the_likely_decision() -> None:
    assert would_restart([Fact(source="exit", code=-9, rank=1)], [], 3)
    assert not would_restart([BUG], [], 3)
    used = [AttemptSummary(category="unknown", retry="bounded", progressed=True)] * 3
    assert not would_restart([Fact(source="exit", code=-9, rank=1)], used, 3)


def test_a_booster_that_may_be_to_blame_is_left_out_once() -> None:
    first = {**said(BUG), "suspects": ["async_save"]}
    agreed = decided({"a": first, "b": {**said(), "suspects": ["learn"]}})
    assert agreed["without"] == ["async_save", "learn"]
    assert agreed["decision"]["action"] == "restart"
    assert "async_save" in agreed["decision"]["why"] and "learn" in agreed["decision"]["why"]
    used_up = decided({"a": first}, restarts=0)
    assert used_up["decision"]["action"] == "stop" and used_up["without"] == ["async_save"]
    stopped = decided({"a": {**said(BUG, told=15), "suspects": ["learn"]}})
    assert stopped["decision"]["action"] == "stop"
    assert decided({"a": said(BUG)})["without"] == []
