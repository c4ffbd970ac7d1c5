"""The stages of a start as the reports show them."""

from __future__ import annotations

import re

from headway.ledger.model import Ledger
from headway.report.html import LIMIT, page
from headway.report.startup_stages import StageBar, draw_stages
from tests.support import Golden
from tests.unit.report.rendering import page_of, text_of, words_of
from tests.unit.report.starts import SEVEN, many, staged

EVIL = "</ol><script>alert(1)</script>\"'|x"


def bars(ledger: Ledger) -> dict[str, StageBar]:
    return {bar.name: bar for lane in draw_stages(ledger)[0].lanes for bar in lane.bars}


def test_lanes_bars_and_the_critical_path() -> None:
    (graph,) = draw_stages(staged(SEVEN))
    assert [(lane.name, len(lane.bars)) for lane in graph.lanes] == [
        ("main thread", 4),
        ("threads", 3),
        ("processes", 1),
    ]
    found = bars(staged(SEVEN))
    path = ["preproc_creation", "get_first_batch_data", "pre_train"]
    assert [name for name, bar in found.items() if bar.critical] == ["pre_train", *path[:2]]
    batch = found["get_first_batch_data"]
    assert (round(batch.left, 2), round(batch.width, 2)) == (28.57, 57.14)
    assert batch.words == (
        "4.0 s, from 2.0 s to 6.0 s",
        "depends on preproc_creation",
        "on the critical path",
    )
    assert round(graph.bound, 2) == 92.86


def test_a_line_for_each_need_from_its_end_to_where_it_is_used() -> None:
    (graph,) = draw_stages(staged(SEVEN))
    names = {bar.place: bar.name for lane in graph.lanes for bar in lane.bars}
    lines = {(names[line.since], names[line.until]): line for line in graph.lines}
    assert set(lines) == {(need, stage[0]) for stage in SEVEN for need in stage[2]}
    assert [pair for pair, line in lines.items() if line.critical] == [
        ("get_first_batch_data", "pre_train"),
        ("preproc_creation", "get_first_batch_data"),
    ]
    # From 6.0 s in the row of the batch (the seventh) to 6.5 s in that of pre_train (the fifth).
    assert lines["get_first_batch_data", "pre_train"].path == "M857 75H929V45"
    assert graph.rows == len(SEVEN) + 3


def test_the_sentence_says_what_the_best_order_would_give(golden: Golden) -> None:
    ledger = staged(SEVEN)
    golden("stages.txt", text_of(ledger, width=120) + page_of(ledger))


def test_the_main_thread_may_be_what_no_order_can_beat(golden: Golden) -> None:
    ledger = staged((("a", "main", [], 0, 2), ("b", "main", [], 2, 3), ("c", "thread", [], 0, 1)))
    golden("stages-main-thread.txt", text_of(ledger, width=120))


def test_own_names_have_the_colour_of_their_bucket() -> None:
    first, second = draw_stages(staged(SEVEN, SEVEN))
    for graph in (first, second):
        leaves = {bar.name: bar.bucket for lane in graph.lanes for bar in lane.bars}
        assert leaves["vocabulary"] == leaves["pre_train"] != leaves["device_init"]
    assert first.lanes[0].bars[0].bucket != second.lanes[0].bars[0].bucket  # of recover


def test_every_attempt_has_its_graph_and_the_page_stays_small(golden: Golden) -> None:
    text = page(staged(*[many(150, seed) for seed in range(8)]))
    assert len(text.encode()) < LIMIT
    assert text.count('class="graph"') == 5
    section = text.partition('id="stages"')[2].partition("</section>")[0]
    lines = [line for line in words_of(f"<p {section}").splitlines() if not line.startswith("[")]
    golden("stages-many.txt", "\n".join(line[:200] for line in lines) + "\n")
    dense = tuple((f"s{i}", "thread", [f"s{j}" for j in range(i)], i, i + 1) for i in range(60))
    assert len(draw_stages(staged(dense))[0].lines) == 500
    assert sum(line.critical for line in draw_stages(staged(dense))[0].lines) == 59


def test_no_stages_no_section_and_odd_ones_no_error() -> None:
    assert 'id="stages"' not in page(staged(()))
    (graph,) = draw_stages(staged((("a", "elsewhere", ["gone"], 0, 0), ("b", "main", ["a"], 0, 0))))
    assert [lane.name for lane in graph.lanes] == ["main thread", "elsewhere"]
    assert len(graph.lines) == 1


def test_a_stage_is_text_and_nothing_else() -> None:
    text = page(staged(((EVIL, EVIL, [EVIL], 0, 1), ("b", "main", [EVIL], 1, 2))))
    section = text.partition('id="stages"')[2].partition("</section>")[0]
    assert "<script" not in section
    tips = re.findall(r'data-tip="([^"]*)"', section)
    assert len(tips) == 2
