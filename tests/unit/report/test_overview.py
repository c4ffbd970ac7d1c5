"""The largest loss, hints, ranks that differ, and other findings of a ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.ledger import model
from headway.ledger.buckets import BUCKETS, EFFECTIVE
from headway.ledger.model import (
    AsyncSave,
    Attempt,
    AutoRun,
    BoosterResult,
    CompileCacheLoad,
    Failure,
    Ledger,
)
from headway.ledger.segments import Segment
from headway.report import checkpoints, compiles, failures, overview
from headway.report.overview import _RUN_HINTS, _STAGE_HINTS, hint
from headway.units import NS
from tests.unit.report.ledgers import Line, killed, large, ledger_of, rank_of


def test_largest_loss_adds_start_and_recovery() -> None:
    loss = overview.largest_loss(killed())
    assert loss is not None
    assert (loss.stage, loss.ns) == ("pt2_compile", (167 + 166) * NS)
    assert loss.buckets == ("start.pt2_compile", "recover.pt2_compile")


def test_ett_without_a_loss() -> None:
    ledger = ledger_of(Line().add("start.pt2_compile", 50).add("train.effective", 50))
    assert overview.ett_without(ledger, 50 * NS) == 100.0
    assert overview.ett_without(ledger, 25 * NS) == pytest.approx(200 / 3)
    assert overview.ett_without(ledger, ledger.wall) == 0.0


def _attempt(index: int, last: int | None, resumed: int | None) -> Attempt:
    return Attempt(
        index=index, start=index, end=index + 1, outcome="failed", ranks=(0,),
        last_step=last, resumed_from=resumed,
    )  # fmt: skip


def test_rolled_back_skips_an_attempt_that_never_trained() -> None:
    lives = (_attempt(0, 50, None), _attempt(1, None, None), _attempt(2, 80, 40))
    ledger = ledger_of(Line().add("train.effective", 9), attempts=lives)
    assert failures.rolled_back_steps(ledger) == [(41, 50)]


def test_rolled_back_to_zero_and_not_at_all() -> None:
    lives = (_attempt(0, 50, None), _attempt(1, 30, None), _attempt(2, 80, 30))
    ledger = ledger_of(Line().add("train.effective", 9), attempts=lives)
    assert failures.rolled_back_steps(ledger) == [(1, 50)]


def test_saves_of_several_ranks_are_one() -> None:
    saves = checkpoints.merged_saves(killed())
    assert len(saves) == 11
    assert saves[0].step == 160
    assert saves[0].blocked == 5_700_000_000  # the slower rank's
    assert saves[0].written == 9 * NS


def test_recompiles_by_place_and_reason() -> None:
    (row,) = compiles.group_recompiles(killed())
    assert (row.where, row.times, row.ns) == ("forward (model.py:88)", 2, 18 * NS)


def test_by_attempt_cuts_at_the_end_of_an_attempt() -> None:
    lives = (
        Attempt(index=0, start=0, end=8, outcome="failed", ranks=(0,)),
        Attempt(index=1, start=10, end=20, outcome="completed", ranks=(0,)),
    )
    ledger = ledger_of(Line(), attempts=lives)
    cut = list(
        model.segments_by_attempt(ledger, [Segment(0, 9, "unknown"), Segment(9, 20, "unknown")])
    )
    assert cut == [
        (0, Segment(0, 8, "unknown")),
        (1, Segment(8, 9, "unknown")),
        (1, Segment(9, 20, "unknown")),
    ]


def test_by_attempt_loses_no_time() -> None:
    ledger = large(ranks=1, spans=200)
    assert sum(s.end - s.start for _, s in model.segments_by_attempt(ledger, ledger.segments)) == (
        ledger.wall
    )
    assert {i for i, _ in model.segments_by_attempt(ledger, ledger.segments)} == {0, 1, 2}


def test_own_losses_name_the_rank_that_stands_out() -> None:
    usual = Line().add("train.effective", 90).add("waste.blocked", 10)
    slow = Line().add("train.effective", 90).add("waste.data_stall", 10)
    ranks = (rank_of(0, usual, 1), rank_of(1, slow, 1), rank_of(2, usual, 1))
    ledger = ledger_of(usual, ranks=ranks)
    found = [(rank.rank, leaf, ns) for rank, leaf, ns in overview.own_losses(ledger)]
    assert found == [(1, "waste.data_stall", 10 * NS)]


def _hint(leaf: str, more: float = 0.0, **others: Any) -> str | None:
    """For a run that has lost most time to that bucket."""
    line = Line().add(leaf, 60).add("start.launcher_init", more).add("train.effective", 40)
    ledger = ledger_of(line, steps=10, **others)
    loss = overview.largest_loss(ledger)
    assert loss is not None
    return hint(ledger, loss)


def _on(*boosters: str) -> dict[str, Any]:
    return {"metadata": {"boosters": list(boosters)}}


def _auto(name: str) -> dict[str, Any]:
    return {
        "auto": AutoRun(
            job="j", comparison_key="k", boosters=(BoosterResult(name=name, state="off", why="x"),)
        )
    }


def _failure(retry: str = "bounded", owner: str = "infra", **others: Any) -> Failure:
    return Failure(
        attempt=0, at=NS, category="network", owner=owner, retry=retry, root_rank=0,
        evidence="gone", **others,
    )  # fmt: skip


FAILED: dict[str, Any] = {"failures": (_failure(),)}
ARCHIVE = CompileCacheLoad(
    attempt=0, level="miss", why="", files=0, bytes=0, load=0, compile_cold=0, compile=NS
)


def test_a_compile_cache_is_proposed_where_something_was_compiled_cold() -> None:
    compiles = killed().compiles
    leaf = "start.pt2_compile"
    assert "--compile-cache" in str(_hint(leaf, compiles=compiles))
    assert _hint(leaf) is None  # an eager job imports the compiler, and compiles nothing
    assert _hint(leaf, compiles=tuple(replace(one, cached=True) for one in compiles)) is None
    assert _hint(leaf, compiles=compiles, **_on("compile_cache")) is None
    assert _hint(leaf, compiles=compiles, **_auto("compile_cache")) is None
    stored = _hint(leaf, compiles=compiles, archives=(ARCHIVE,), archives_saved=1)
    assert stored is not None and "--compile-cache" not in stored
    exact = replace(ARCHIVE, level="exact")
    assert _hint(leaf, compiles=compiles, archives=(exact,), archives_saved=1) is None


def test_saves_in_the_background_are_proposed_until_they_are_on() -> None:
    leaf = "waste.checkpoint_block"
    assert "headway run --async-save" in str(_hint(leaf))
    behind = AsyncSave(saves=1, blocked=0, write=0, wait=0, failed=0, sync_fallbacks={})
    for on in (_on("async_save"), _auto("async_save"), {"async_save": behind}):
        assert _hint(leaf, **on) is None
        seldom = _hint(leaf, **on, save_interval=NS, recommended_interval=60 * NS)
        assert seldom is not None and "1 m 00 s instead of every 1.0 s" in seldom


@pytest.mark.parametrize("leaf", ["recover.downtime", "recover.detection"])
def test_restarts_are_proposed_where_one_may_help(leaf: str) -> None:
    assert "headway run --restarts 5" in str(_hint(leaf, **FAILED))
    assert _hint(leaf, **FAILED, **_on("restarts")) is None
    assert _hint(leaf, failures=(_failure(retry="no", owner="user"),)) is None
    assert _hint(leaf, failures=(_failure(owner="scheduler"),)) is None
    assert _hint(leaf, failures=(_failure(decision="restart: it may pass"),)) is None


def test_warm_restarts_are_proposed_for_slow_recoveries_only() -> None:
    leaf = "recover.launcher_init"
    assert "--restarts 5 --warm" in str(_hint(leaf, **FAILED))
    assert "--warm" not in str(_hint(leaf, more=61, **FAILED))
    assert "--warm" not in str(_hint(leaf, failures=(_failure("yes", "scheduler"),)))
    assert "--warm" not in str(_hint(leaf, **FAILED, **_on("restarts", "warm")))


def test_lost_training_asks_for_saves_then_for_more_of_them() -> None:
    leaf = "failure.lost_training"
    assert "Checkpointer" in str(_hint(leaf))
    known = {"saves": 3, "save_interval": 60 * NS}
    assert "1.0 s instead of every 1 m 00 s" in str(_hint(leaf, **known, recommended_interval=NS))
    assert _hint(leaf, **known, recommended_interval=90 * NS) is None
    assert _hint(leaf, **known) is None


def test_a_hang_is_ended_by_headway() -> None:
    assert "--restarts" in str(_hint("failure.hang"))
    assert "--hang-after" in str(_hint("failure.hang", **_on("restarts")))


def test_one_rank_holds_up_no_other() -> None:
    assert _hint("waste.blocked") is None
    line = Line().add("waste.blocked", 60)
    assert _hint("waste.blocked", ranks=(rank_of(0, line, 1), rank_of(1, line, 1))) is not None


def test_every_stage_has_a_text_or_a_function() -> None:
    stages = {leaf.rpartition(".")[2] for leaf in BUCKETS if leaf != EFFECTIVE}
    assert {*_STAGE_HINTS, *_RUN_HINTS} == stages and not set(_STAGE_HINTS) & set(_RUN_HINTS)


def test_no_hint_names_another_product() -> None:
    def texts(ledger: Ledger) -> list[str]:
        losses = [overview.Loss(leaf.rpartition(".")[2], NS, (leaf,)) for leaf in BUCKETS]
        return [text for loss in losses if (text := hint(ledger, loss))]

    for ledger in (killed(), ledger_of(Line().add("train.effective", 9), **_on("restarts"))):
        for text in texts(ledger):
            assert "torchrun" not in text and "torch.distributed" not in text
