"""Compiles in the reports, and what was compiled ahead in vain."""

from __future__ import annotations

import pytest

from headway.ledger.model import Compile, CompileCacheLoad, Ledger, RankCompiles, RecompileLimitHit
from headway.report import compiles, html
from headway.report.compiles import precompile_misses
from headway.units import NS
from tests.support import Golden
from tests.unit.report.ledgers import Line, ledger_of
from tests.unit.report.rendering import page_of, summary_of, text_of, words_of
from tests.unit.report.starts import compiled_ahead

EVIL = "<script>alert(1)</script>"


def compiled(**more: object) -> Ledger:
    line = Line().start("start", launcher_init=2, pt2_compile=10).add("train.effective", 90)
    parts = {"import": NS, "inductor": 6 * NS, "triton": 3 * NS}
    fields = {
        "compiles": (
            Compile(
                attempt=0, rank=0, start=2 * NS, end=9 * NS, location="a.py:1 f",
                reason="", recompile=False, cached=False, backward=2 * NS,
            ),
        ),
        "compile_parts": parts,
        "rank_compiles": (
            RankCompiles(rank=0, parts=parts, fx=(4, 0), aot=(2, 0)),
            RankCompiles(rank=1, parts=parts, fx=(1, 3), aot=(0, 2), bypassed={EVIL: 2}),
        ),
        "recompile_limit_hits": tuple(
            RecompileLimitHit(
                attempt=0, rank=rank, at=50 * NS, where=f"/job/{EVIL}.py:10 forward",
                limit="recompile_limit", reason="len(xs) == 8",
            )
            for rank in (0, 1)
        ),
    }  # fmt: skip
    return ledger_of(line, steps=10, **{**fields, **more})


def test_the_terminal_splits_the_time_of_the_compiler(golden: Golden) -> None:
    golden("compiles.txt", text_of(compiled(), width=120))


def test_a_storm_is_in_the_summary_too(golden: Golden) -> None:
    golden("compiles-summary.txt", summary_of(compiled()))
    golden("compiles-summary-calm.txt", summary_of(compiled(recompile_limit_hits=())))


def test_one_place_is_one_warning() -> None:
    ((_, limit, ranks),) = compiles.limit_hits_by_place(compiled())
    assert (limit, ranks) == ("recompile_limit", [0, 1])


def test_the_page_shows_the_same_and_trusts_nothing(golden: Golden) -> None:
    page = html.page(compiled())
    golden("compiles-html.txt", words_of(page))
    assert "width:60.0000%" in page
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.py:10 forward" in page
    bare = html.page(ledger_of(Line().add("train.effective", 10)))
    assert "slim" not in bare.partition("</style>")[2]


def test_without_caches_or_parts(golden: Golden) -> None:
    ledger = compiled(compile_parts={}, rank_compiles=(), recompile_limit_hits=())
    golden("compiles-bare.txt", text_of(ledger, width=120))


def test_even_misses_name_no_rank(golden: Golden) -> None:
    ranks = tuple(RankCompiles(rank=rank, fx=(1, 2)) for rank in range(4))
    (line,) = compiles.describe_torch_caches(compiled(rank_compiles=ranks))
    golden("compiles-even-misses.txt", f"{line}\n")


def test_a_job_that_compiles_nothing_has_no_section() -> None:
    """Under `--auto` each job asks for an archive."""
    miss = CompileCacheLoad(
        attempt=0, level="miss", why="", files=0, bytes=0, load=0, compile_cold=0, compile=0
    )
    line = Line().add("train.effective", 10)
    eager = ledger_of(line, steps=10, archives=(miss,))
    assert compiles.describe_cache_loads(eager) == []
    assert "Compiles (" not in text_of(eager)
    assert "<h2>Compiles" not in html.page(eager)
    stored = ledger_of(line, steps=10, archives=(miss,), archives_saved=1)
    assert compiles.describe_cache_loads(stored) and "Compiles (" in text_of(stored)


SIZE = "0/0: tensor 'ids' size mismatch at index 0. expected 256, actual 300"


def test_a_hit_is_not_reported(golden: Golden) -> None:
    ledger = compiled_ahead()
    assert not precompile_misses(ledger)
    golden("ahead-hit.txt", text_of(ledger) + page_of(ledger))


def test_which_source_differed_and_what_cures_it(golden: Golden) -> None:
    ledger = compiled_ahead(SIZE, caller="/job/train.py:40 step")
    (miss,) = precompile_misses(ledger)
    assert miss.where == "/job/train.py:7 forward"
    golden("ahead-miss.txt", text_of(ledger) + page_of(ledger))
    (told,) = ledger.to_dict()["compile"]["recompiles"]
    assert told["missed_ahead"] is True


@pytest.mark.parametrize(
    ("name", "reason", "seen"),
    [
        ("integer", "0/0: L['n'] == 3", {"L['n']": 5}),
        ("dtype", "0/0: tensor 'x' dtype mismatch. expected Float, actual Double", {}),
        ("stride", "0/0: tensor 'x' stride mismatch at index 0. expected 4, actual 1", {}),
        ("range", "0/0: 2 <= x.size()[1]", {"x": [4, 1]}),
        ("state", "0/0: GLOBAL_STATE changed: grad_mode", {}),
        ("unknown", "something new in torch", {}),
    ],
)
def test_other_differences(name: str, reason: str, seen: dict[str, object], golden: Golden) -> None:
    (miss,) = precompile_misses(compiled_ahead(reason, seen=seen))
    assert miss.text and miss.cure
    golden(f"ahead-{name}.txt", f"{miss.text}\n{miss.cure}\n")


def test_ranks_are_merged_and_attempts_are_not(golden: Golden) -> None:
    lines = [miss.text for miss in precompile_misses(compiled_ahead(SIZE, attempts=2, ranks=2))]
    assert len(lines) == 2
    golden("ahead-attempts.txt", "\n".join(lines) + "\n")


def test_a_journal_is_text_and_nothing_else() -> None:
    evil = "<img src=x>\x1b[31m"
    ledger = compiled_ahead(f"0/0: tensor '{evil}' size mismatch at index 0. expected 2, actual 3")
    assert "<img" not in html.page(ledger)
    assert "\x1b[31m" not in text_of(ledger)
