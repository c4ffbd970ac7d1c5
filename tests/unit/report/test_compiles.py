"""The compiler's part of the reports: what its time went to, its caches, and where it gave up."""

from __future__ import annotations

import io

from rich.console import Console

from headway.ledger.model import NS, Compile, GaveUp, Ledger, RankCompiles
from headway.report import findings, html, terminal
from headway.report.words import HINTS

from .ledgers import Line, ledger_of

EVIL = "<script>alert(1)</script>"


def compiled(**more: object) -> Ledger:
    line = Line().start("start", launcher_init=2, pt2_compile=10).add("train.effective", 90)
    parts = {"import": NS, "inductor": 6 * NS, "triton": 3 * NS}
    fields = {
        "compiles": (
            Compile(
                attempt=0, rank=0, start=2 * NS, end=9 * NS, where="a.py:1 f", trigger="DYNAMO",
                reason="", recompile=False, cached=False, later=2 * NS,
            ),
        ),
        "compile_parts": parts,
        "rank_compiles": (
            RankCompiles(rank=0, parts=parts, fx=(4, 0), aot=(2, 0)),
            RankCompiles(rank=1, parts=parts, fx=(1, 3), aot=(0, 2), bypassed={EVIL: 2}),
        ),
        "gave_up": tuple(
            GaveUp(
                attempt=0, rank=rank, at=50 * NS, where=f"/job/{EVIL}.py:10 forward",
                limit="recompile_limit", reason="len(xs) == 8",
            )
            for rank in (0, 1)
        ),
    }  # fmt: skip
    return ledger_of(line, steps=10, **{**fields, **more})


def shown(ledger: Ledger, full: bool = True) -> str:
    out = io.StringIO()
    (terminal.full if full else terminal.summary)(ledger, "headway/a", Console(file=out, width=120))
    return out.getvalue()


def test_the_terminal_splits_the_time_of_the_compiler() -> None:
    text = shown(compiled())
    assert "pt2_compile         inductor 6.0 s, triton 3.0 s, import 1.0 s" in text
    assert (
        "AOTAutograd: 2 of 4 found, rank 1 missed 2; graphs: 5 of 8 found, rank 1 missed 3" in text
    )
    assert f"not asked         2 x: {EVIL}" in text
    assert "Warning: torch gave up compiling" in text and "headway recompiles RUN" in text


def test_a_storm_is_said_in_the_summary_too() -> None:
    assert "Warning: torch gave up compiling" in shown(compiled(), full=False)
    assert "Warning" not in shown(compiled(gave_up=()), full=False)


def test_one_place_is_one_warning() -> None:
    ((_, limit, ranks),) = findings.gave_up(compiled())
    assert (limit, ranks) == ("recompile_limit", [0, 1])


def test_the_page_shows_the_same_and_trusts_nothing() -> None:
    page = html.page(compiled())
    assert 'data-tip="inductor|6.0 s|making kernels from the graphs"' in page
    assert "width:60.0000%" in page
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.py:10 forward" in page
    assert "not asked 2 x" in page
    bare = html.page(ledger_of(Line().add("train.effective", 10)))
    assert "slim" not in bare.partition("</style>")[2] and "gave up" not in bare


def test_without_caches_or_parts_nothing_is_said() -> None:
    text = shown(compiled(compile_parts={}, rank_compiles=(), gave_up=()))
    assert "torch's caches" not in text and "inductor" not in text
    assert "first compiles      1 cold, 0 from the cache" in text


def test_even_misses_name_no_rank() -> None:
    ranks = tuple(RankCompiles(rank=rank, fx=(1, 2)) for rank in range(4))
    assert findings.caches(compiled(rank_compiles=ranks)) == ["graphs: 4 of 12 found"]


def test_the_hint_names_the_verb() -> None:
    assert "headway recompiles" in HINTS["recompile"]
