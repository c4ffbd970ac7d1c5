"""What the ledgers of recorded jobs must say, whatever the files beside them were rewritten to."""

from __future__ import annotations

from typing import Any

import pytest

from headway.ledger.model import Ledger
from headway.report.html import page
from tests.journals.recorded import load, rendered, truth


def ledger(name: str) -> Ledger:
    return load(name).ledger


def attempts(name: str) -> list[tuple[str, int | None, int | None]]:
    return [(a.outcome, a.resumed_from, a.last_step) for a in ledger(name).attempts]


def failures(name: str) -> list[tuple[str, int | None, str]]:
    """Category, rank and what was done about it."""
    return [
        (f.category, f.root_rank, (f.decision or "").partition(":")[0])
        for f in ledger(name).failures
    ]


def seconds(name: str, leaf: str) -> float:
    return ledger(name).buckets.get(leaf, 0) / 1e9


def agree(name: str, measured: dict[str, float]) -> None:
    """Within 0.1 s + 2 % of what the job has measured itself."""
    found = {leaf: (seconds(name, leaf), s) for leaf, s in measured.items()}
    wrong = {k: (a, b) for k, (a, b) in found.items() if abs(a - b) > 0.1 + 0.02 * b}
    assert not wrong, f"(ledger, job): {wrong}"


def marks(name: str, life: str) -> dict[str, float]:
    """When the job came to its marks, on its own clock; `life` is `ATTEMPT-RANK`."""
    found: dict[str, float] = truth(name)[life]["marks"]
    return found


# Jobs that measure themselves.


def test_plain() -> None:
    agree("plain", truth("plain")["0-0"]["seconds"])
    assert (ledger("plain").steps, ledger("plain").saves) == (40, 1)
    assert ledger("plain").batches_per_step == 1.0
    assert seconds("plain", "stop.shutdown") >= 0.5


def test_torchrun_own_restart() -> None:
    name = "torchrun_own_restart"
    lives = truth(name)
    first, second = marks(name, "0-1"), marks(name, "1-0")
    saves = sum(lives[key]["seconds"]["checkpoint_block"] for key in ("0-0", "1-0"))
    started = [max(marks(name, f"{a}-{rank}")["started"] for rank in (0, 1)) for a in (0, 1)]
    saved = max(marks(name, f"0-{rank}")["step_30"] for rank in (0, 1))
    again = second["last_step"] - started[1]
    agree(
        name,
        {
            "train.effective": saved - started[0] + again - saves,
            "failure.lost_training": first["step_35"] - saved,
            "waste.checkpoint_block": saves,
        },
    )
    assert attempts(name) == [("failed", None, 35), ("completed", 30, 60)]
    assert ledger(name).steps == 60
    (recovery,) = ledger(name).time_to_recover
    truly = started[1] - first["step_35"]
    assert abs(recovery / 1e9 - truly) <= 0.1 + 0.02 * truly
    (failure,) = ledger(name).failures
    assert failure.root_rank == 1 and "SIGKILL" in failure.evidence


def test_spawn() -> None:
    assert [rank.rank for rank in ledger("spawn").ranks] == [0, 1]
    assert ledger("spawn").steps == 30
    ranks = [marks("spawn", f"0-{rank}") for rank in (0, 1)]
    save = truth("spawn")["0-1"]["seconds"]["waste.checkpoint_block"]
    trained = max(m["last_step"] for m in ranks) - max(m["started"] for m in ranks)
    agree("spawn", {"waste.checkpoint_block": save, "train.effective": trained - save})


def test_hang_killed() -> None:
    own = marks("hang_killed", "0-0")
    agree(
        "hang_killed",
        {
            "failure.hang": own["killed"] - own["last_step"],
            "train.effective": own["last_step"] - own["started"],
        },
    )
    assert [f.category for f in ledger("hang_killed").failures] == ["hang"]
    assert ledger("hang_killed").exit_code == 137


def test_lightning() -> None:
    own = truth("lightning")["0-0"]
    evaluation, save = (own["seconds"][f"waste.{x}"] for x in ("evaluation", "checkpoint_block"))
    trained = own["marks"]["last_step"] - own["marks"]["started"]
    # Two of the three validations lie before the last step.
    agree("lightning", {**own["seconds"], "train.effective": trained - evaluation * 2 / 3 - save})
    assert ledger("lightning").steps == 30


def test_transformers() -> None:
    measured: dict[str, float] = {}
    for life in truth("transformers").values():
        for leaf, value in life["seconds"].items():
            measured[leaf] = measured.get(leaf, 0.0) + value
    agree("transformers", measured)
    assert attempts("transformers") == [("failed", None, 15), ("completed", 10, 20)]
    assert ledger("transformers").steps == 20
    batches = ledger("transformers").batches_per_step
    assert batches is not None and round(batches) == 2  # it reads one batch ahead


# Restarts and stops.


@pytest.mark.parametrize(
    ("name", "expected", "causes"),
    [
        ("torchrun_killed", [("failed", None, 25), ("completed", 20, 60)], [("unknown", 1)]),
        ("python_killed", [("failed", None, 25), ("completed", 20, 60)], [("unknown", 0)]),
        ("hang_stopped", [("failed", None, 25), ("completed", 20, 60)], [("hang", 1)]),
        ("warm_restart", [("failed", None, 25), ("completed", 20, 60)], [("unknown", 1)]),
        ("accelerate", [("failed", None, 70), ("completed", 60, 480)], [("unknown", 0)]),
        ("dcp", [("failed", None, 35), ("completed", 30, 40)], [("unknown", 1)]),
        ("async_save_killed", [("failed", None, 25), ("completed", 10, 40)], [("unknown", 0)]),
    ],
)
def test_restarted(name: str, expected: list[Any], causes: list[tuple[str, int]]) -> None:
    assert attempts(name) == expected
    assert failures(name) == [(*cause, "restart") for cause in causes]
    assert ledger(name).steps == expected[-1][-1]
    if causes[0][0] == "unknown":
        assert "SIGKILL" in ledger(name).failures[0].evidence
    else:
        assert ledger(name).buckets["failure.hang"] > 0


def test_agent_killed() -> None:
    (first, second) = attempts("agent_killed")
    assert first[:2] == ("failed", None) and (first[2] or 0) >= 25  # its ranks live a little longer
    assert second == ("completed", (first[2] or 0) // 10 * 10, 60)
    assert [decision for _, _, decision in failures("agent_killed")] == ["restart"]


@pytest.mark.parametrize(
    ("name", "outcomes", "causes", "why"),
    [
        ("bug", [("failed", None, 25)], [("user_code", 1, "stop")], ""),
        (
            "same_step_twice",
            [("failed", None, 25), ("failed", 20, 25)],
            [("unknown", 1, "restart"), ("unknown", 1, "stop")],
            "same failure at step 25 again",
        ),
        (
            "crash_loop",
            [("failed", None, 26), ("failed", 10, 27), ("failed", 10, 28), ("failed", 10, 29)],
            [("unknown", 0, "restart")] * 3 + [("unknown", 0, "stop")],
            "3 attempts in a row added no durable step",
        ),
        (
            "restarts_used",
            [("failed", None, 25), ("failed", 20, 25)],
            [("network", 0, "restart"), ("network", 0, "stop")],
            "all 1 restarts are used",
        ),
        ("swap", [("failed", None, 25)], [("gpu_hardware", 0, "swap")], ""),
        ("fails_before_first_step", [("failed", None, None)], [("user_code", 1, "stop")], ""),
    ],
)
def test_stopped(name: str, outcomes: list[Any], causes: list[Any], why: str) -> None:
    assert attempts(name) == outcomes
    assert failures(name) == causes
    assert why in (ledger(name).failures[-1].decision or "")


def test_launcher_killed() -> None:
    assert [outcome for outcome, _, _ in attempts("launcher_killed")] == ["failed", "completed"]


def test_continued() -> None:
    assert [outcome for outcome, _, _ in attempts("continued")] == ["completed"] * 2
    assert failures("continued") == []


def test_stopped_by_user() -> None:
    assert [outcome for outcome, _, _ in attempts("stopped_by_user")] == ["stopped"]


# Notices.


def test_slurm_requeue() -> None:
    (first, second) = attempts("slurm_requeue")
    assert (first[0], second[:2]) == ("preempted", ("completed", 10))
    (failure,) = ledger("slurm_requeue").failures
    assert (failure.category, failure.owner) == ("preemption", "scheduler")
    assert ledger("slurm_requeue").queue_capacity
    assert seconds("slurm_requeue", "start.hardware_setup") > 1


def test_preempted() -> None:
    (first, second) = attempts("preempted")
    assert first[0] == "preempted" and second == ("completed", first[2], 200)
    (notice,) = ledger("preempted").notices
    assert (notice.response, notice.step, notice.lost, notice.lost_steps) == (
        "saved",
        first[2],
        0,
        0,
    )


def test_preempted_unanswered() -> None:
    (notice,) = ledger("preempted_unanswered").notices
    assert (notice.response, notice.saved, notice.saved_steps) == ("none", 0, 0)
    lost = ledger("preempted_unanswered").buckets["failure.lost_training"]
    assert notice.lost == lost > 0


def test_preempted_ranks() -> None:
    ((outcome, _, last),) = attempts("preempted_ranks")
    assert outcome == "preempted"
    (notice,) = ledger("preempted_ranks").notices
    assert (notice.response, notice.accelerators, notice.lost) == ("saved", 2, None)
    assert notice.step == last
    assert any(f"a last save of step {last}" in note for note in ledger("preempted_ranks").notes)


# Planned faults.


def test_chaos_kills() -> None:
    first, second, third, last = attempts("chaos_kills")
    assert first == ("failed", None, 15)
    assert second[:2] == ("failed", 10)
    saved = (second[2] or 0) // 10 * 10  # the ranks live a little longer than the agent
    assert saved >= 20 and third == ("failed", saved, saved + 14)
    assert last == ("completed", saved + 10, 60)
    faults = ledger("chaos_kills").faults
    assert [f.who for f in faults] == ["rank 1", "agent", "all"]
    assert [f.step for f in faults] == [15, 12, 14]
    assert [f.failure for f in faults] == [0, 1, 2]
    assert all(f.detected_after is not None and f.detected_after >= 0 for f in faults)
    assert ledger("chaos_kills").failures[0].root_rank == 1
    for number in (0, 2):
        assert "SIGKILL" in ledger("chaos_kills").failures[number].evidence


def test_chaos_slow() -> None:
    assert attempts("chaos_slow") == [("completed", None, 60)]
    # The last save is after the last step, and a save of rank 0 does not hold up rank 1's data.
    assert seconds("chaos_slow", "waste.checkpoint_block") >= 3 * 0.2
    assert seconds("chaos_slow", "waste.data_stall") >= 16 * 0.05
    disk, data = ledger("chaos_slow").faults
    assert (disk.kind, disk.who, disk.step, disk.failure) == ("disk", "rank 0, 1", 15, None)
    assert (data.kind, data.who, data.step, data.failure) == ("data", "rank 0, 1", 40, None)


def test_chaos_disk() -> None:
    assert attempts("chaos_disk") == [("failed", None, 30), ("completed", 10, 60)]
    assert failures("chaos_disk") == [("storage", 0, "restart")]
    assert "Input/output error" in ledger("chaos_disk").failures[0].evidence
    disk, corrupt = ledger("chaos_disk").faults
    assert (disk.failure, disk.detected) == (0, "storage")
    assert (corrupt.attempt, corrupt.failure) == (1, None)
    assert corrupt.who.endswith("checkpoints/step-000020.pt")


def test_chaos_full_disk() -> None:
    assert attempts("chaos_full_disk") == [("failed", None, 20)]
    (failure,) = ledger("chaos_full_disk").failures
    assert (failure.category, failure.root_rank) == ("disk_full", 0)
    assert failure.decision == "stop: disk_full comes back on a retry"
    assert ledger("chaos_full_disk").faults[0].detected == "disk_full"


def test_chaos_paused() -> None:
    stopped, raised = ledger("chaos_paused").faults
    assert (stopped.kind, stopped.failure) == ("stop", None)
    assert raised.at - stopped.at >= 1_000_000_000
    assert attempts("chaos_paused") == [("failed", None, 40)]
    assert failures("chaos_paused") == [("user_code", 1, "stop")]
    assert "RuntimeError: a planned fault" in ledger("chaos_paused").failures[0].evidence
    assert raised.failure == 0


def test_chaos_preempted() -> None:
    assert [outcome for outcome, _, _ in attempts("chaos_preempted")] == ["preempted"]
    (failure,) = ledger("chaos_preempted").failures
    assert (failure.category, failure.owner) == ("preemption", "scheduler")
    assert failure.decision == "stop: it was told to stop by SIGTERM"
    notice, kill = ledger("chaos_preempted").faults
    assert (notice.kind, notice.who, notice.step) == ("terminate", "launcher", 20)
    assert kill.kind == "kill" and kill.planned.endswith("the grace is over")
    assert kill.at - notice.at >= 1_000_000_000


# Checkpoints and publishing.


def test_checkpointer_killed() -> None:
    resumed = [(one.resumed_from, one.resumed_by) for one in ledger("checkpointer_killed").attempts]
    assert resumed == [(None, None), (7, "memory")]
    levels = load("checkpointer_killed").to_dict()["checkpoints"]["levels"]
    saves = {one["level"]: one["saves"] for one in levels}
    assert saves["disk"] >= 1 and saves["memory"] >= 5


def test_async_save_killed() -> None:
    behind = ledger("async_save_killed").async_save
    assert behind is not None and behind.saves == 4 and behind.failed == 0


def test_publish() -> None:
    training = load("publish").to_dict()["publish"]
    assert (training["run"], training["folder"]) == (
        "publish-publish",
        "/job/headway/publish-publish",
    )
    assert training["would_cost_s"] == training["accelerators"] * training["seconds"] > 0
    assert training["did_cost_s"] > 0 and training["accelerators"] == 1
    own = load("published").to_dict()
    assert (own["publishes"]["run"], own["publishes"]["folder"]) == (
        "publish",
        "/job/headway/publish",
    )
    assert own["publishes"]["snapshot"] == training["snapshot"] != ""
    assert own["buckets"]["stop.publish"] > 0 and own["steps"] == 0


# Compiles.


def test_compile_cache() -> None:
    cold, cached = ledger("compile_cold"), ledger("compile_cached")
    assert [one.level for one in cold.archives] == ["miss"] and cold.archives_saved == 2
    assert [one.level for one in cached.archives] == ["exact"] and cached.archives[0].saved > 0
    assert [(one.cached, one.recompile) for one in cold.compiles] == [(False, False)]
    assert [(one.cached, one.recompile) for one in cached.compiles] == [(True, False)]


def test_recompile() -> None:
    told = load("recompile").to_dict()["compile"]
    assert len(told["recompiles"]) == 21 and len(told["gave_up"]) == 3


def test_compile_ahead() -> None:
    """The report names the size that differed and the cure; nothing is said where it hit."""
    for name, missed, times in (
        ("compile_ahead", [True], 1),
        ("compile_ahead_hit", [False], 0),
        ("compile_ahead_marked", [], 0),
    ):
        assert [one.missed_precompile for one in ledger(name).compiles if one.recompile] == missed
        (graph,) = ledger(name).stages
        assert {row.name for row in graph.rows} == {"preproc_creation", "ahead"}
        shown, drawn = rendered(name)["report.txt"], page(ledger(name))
        assert shown.count("first real batch recompiled") == times
        assert ("was 16 on the fast batch and is 24" in shown) == (times == 1)
        assert ("was 16 on the fast batch and is 24" in drawn) == (times == 1)
        assert "Start-up stages (2)" in shown and 'id="stages"' in drawn
    cure = "on the fast batch: torch._dynamo.mark_dynamic(ids, 0)"
    assert cure in rendered("compile_ahead")["report.txt"]


def test_auto() -> None:
    first, second = ledger("auto_first").auto, ledger("auto_second").auto
    assert first is not None and second is not None and first.job == second.job
    boosters = [{one.name: one for one in run.boosters} for run in (first, second)]
    assert boosters[0]["compile_cache"].state == "on"
    assert boosters[1]["compile_cache"].state == "acted"
    assert (boosters[1]["compile_cache"].saved or 0) > 0
    assert boosters[1]["restarts"].what == "1 restart(s)"
    assert attempts("auto_second") == [("failed", None, 25), ("completed", 20, 40)]


# Several nodes, and runs of which not everything is there.


def test_two_nodes() -> None:
    assert [(a.outcome, a.ranks) for a in ledger("two_nodes").attempts] == [("completed", (0, 1))]
    assert ledger("two_nodes").steps == 100


def test_two_nodes_killed() -> None:
    assert [outcome for outcome, _, _ in attempts("two_nodes_killed")] == ["failed", "completed"]
    assert [(f.root_rank, f.node) for f in ledger("two_nodes_killed").failures] == [(1, "node-1")]
    assert failures("two_nodes_killed")[0][2] == "restart"
    assert ledger("two_nodes_killed").steps == 100


def test_running() -> None:
    assert ledger("running").running and ledger("running").exit_code is None
    assert [outcome for outcome, _, _ in attempts("running")] == ["running"]
    assert 50 <= ledger("running").steps < 400


def test_torn() -> None:
    assert attempts("torn") == [("failed", None, 25), ("running", 20, 60)]
    assert failures("torn") == [("unknown", 0, "restart")]


def test_missing_rank() -> None:
    assert [rank.rank for rank in ledger("missing_rank").ranks] == [0]
    assert attempts("missing_rank")[-1] == ("completed", 20, 60)


def test_data_stall() -> None:
    assert ledger("data_stall").metadata["labels"]["team"] == "ads"
    assert seconds("data_stall", "waste.data_stall") >= 39 * 2 * 0.01


def test_evaluation() -> None:
    assert seconds("evaluation", "waste.evaluation") >= 3 * 0.2


def test_groups() -> None:
    rows = {one.desc: one for one in ledger("groups").process_groups}
    assert rows["unused"].unused == 1 and rows["again"].duplicate == 1
    calls = {one.what: one.times for one in ledger("groups").pre_step_collectives}
    assert calls == {"all_gather_object": 3, "barrier": 1}


def test_sdk() -> None:
    assert ledger("sdk").steps == 40
    assert attempts("sdk") == [("completed", 100, 140)]
    for leaf, least in (
        ("start.preproc_creation", 0.2),
        ("waste.data_stall", 0.3),
        ("waste.checkpoint_block", 0.2),
        ("waste.blocked", 0.1),
    ):
        assert seconds("sdk", leaf) >= least


def test_no_launcher() -> None:
    assert ledger("adopted").steps == 30
    assert ledger("adopted").command == ()


def test_no_training() -> None:
    assert (ledger("no_training").steps, ledger("no_training").exit_code) == (0, 3)
