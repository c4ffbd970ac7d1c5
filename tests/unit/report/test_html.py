from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from headway.ledger.buckets import BUCKETS
from headway.ledger.model import Attempt, Checkpoint, Failure, Gap, Ledger, Publish
from headway.ledger.segments import Segment
from headway.report.html import LIMIT, fragment, page
from headway.report.timeline import encode
from headway.units import NS
from headway.web.page import script_json
from headway.web.theme import bucket_color
from tests.support import Golden
from tests.unit.report.ledgers import Line, killed, large, ledger_of, no_steps, still_running
from tests.unit.report.rendering import page_of, words_of

EVIL = "</script><script>alert(1)</script>\u2028<img src=x onerror=alert(2)>\"'&\x1b[31m{{ 7*7 }}"


class Page(HTMLParser):
    """The tags, attributes and text that a browser would find."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def data_of(text: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    parsed: dict[str, Any] = json.loads(found)
    return parsed


def data_letters() -> str:
    return str(data_of(page(still_running()))["letters"])


def decoded(track: str, tick: int) -> dict[str, int]:
    """Time by leaf, read back as the page's script does."""
    letters = dict(
        zip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", BUCKETS, strict=False)
    )
    sums: dict[str, int] = {}
    for letter, length in re.findall(r"([A-Za-z_])(\d+)", track):
        leaf = letters.get(letter, "hole")
        sums[leaf] = sums.get(leaf, 0) + int(length) * tick
    return sums


def evil() -> Ledger:
    line = Line().add("train.effective", 60).add("waste.checkpoint_block", 1).add("unknown", 9)
    rich = killed()
    return ledger_of(
        line,
        run=EVIL,
        steps=1,
        command=(EVIL,),
        notes=(EVIL,),
        failures=(
            Failure(attempt=0, at=NS, category=EVIL, owner=EVIL, retry=EVIL, root_rank=0,
                    evidence=f"{EVIL}\n{EVIL}"),
        ),
        checkpoints=tuple(dataclasses.replace(c, path=EVIL) for c in rich.checkpoints[:1]),
        saves=1,
        compiles=tuple(
            dataclasses.replace(c, location=EVIL, reason=EVIL, recompile=True)
            for c in rich.compiles[:1]
        ),
        gaps=(Gap(0, 0, 61 * NS, 70 * NS, EVIL, EVIL),),
        ranks=tuple(dataclasses.replace(r, hosts=(EVIL,)) for r in rich.ranks[:1]),
    )  # fmt: skip


def test_nothing_from_a_journal_becomes_markup() -> None:
    text = page(evil())
    found = Page(text)
    assert [tag for tag, _ in found.tags].count("script") == 2  # the data and the code
    assert "img" not in [tag for tag, _ in found.tags]
    assert not [a for _, attrs in found.tags for a in attrs if a.startswith("on")]
    assert "\u2028" not in data_text(text)
    assert "{{ 7*7 }}" in "".join(found.text)  # shown as it is, not evaluated
    assert data_of(text)["failures"][0][3].startswith("</script><script>")


def data_text(text: str) -> str:
    return text.partition('id="data">')[2].partition("</script>")[0]


def test_a_notebook_fragment_is_harmless_too() -> None:
    tags = [tag for tag, _ in Page(fragment(evil())).tags]
    assert "script" not in tags
    assert "img" not in tags
    assert "85.7 %" in fragment(evil())


def test_json_in_a_script_element_cannot_end_it() -> None:
    text = script_json({"x": "</script>\u2028\u2029<!--&\ud800"})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"x": "</script>\u2028\u2029<!--&?"}


def test_only_the_page_s_own_script_may_run() -> None:
    (policy,) = (
        attrs["content"]
        for tag, attrs in Page(page(killed())).tags
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]{43}='(;|$)", policy)


def test_the_page_loads_nothing() -> None:
    found = Page(page(killed()))
    links = [v for _, attrs in found.tags for k, v in attrs.items() if k in ("src", "href")]
    assert [link for link in links if link and not link.startswith("data:")] == []
    assert "@import" not in page(killed())


@pytest.mark.parametrize("make", [killed, no_steps, still_running])
def test_golden(make: Callable[[], Ledger], golden: Golden) -> None:
    golden(f"{make.__name__}-html.txt", page_of(make()))


def test_the_stacked_bar_is_full() -> None:
    stack = page(killed()).partition('class="stack"')[2].partition("</div>")[0]
    widths = [float(w) for w in re.findall(r"width:([\d.]+)%", stack)]
    assert sum(widths) == pytest.approx(100, abs=0.01)


def test_the_waterfall_ends_at_the_ett() -> None:
    rows = page(killed()).partition('class="fall"')[2].partition("</ol>")[0]
    lefts = [float(left) for left in re.findall(r"left:([\d.]+)%", rows)]
    assert lefts == sorted(lefts, reverse=True)
    assert lefts[-1] == pytest.approx(killed().ett_percent, abs=0.01)


def test_an_empty_ledger_has_a_page(golden: Golden) -> None:
    golden("empty-html.txt", page_of(ledger_of(Line(), ranks=(), attempts=(), command=())))


def test_tracks_keep_every_second() -> None:
    data = data_of(page(killed()))
    assert data["floor"] == 0
    assert data["labels"] == ["run", "rank 0", "rank 1"]
    for track, buckets in zip(data["tracks"], (killed().buckets, killed().ranks[0].buckets),
                              strict=False):  # fmt: skip
        sums = decoded(track, data["tick"])
        assert sums.keys() == buckets.keys()
        for leaf, ns in buckets.items():
            assert sums[leaf] == pytest.approx(ns, abs=20 * data["tick"])


def test_a_large_run_fits_and_says_what_it_cost() -> None:
    ledger = large(ranks=64, spans=6_000)
    text = page(ledger)
    assert 500_000 < len(text.encode()) < LIMIT
    data = data_of(text)
    assert data["floor"] > 0
    assert len(data["tracks"]) == 65
    sums = decoded(data["tracks"][1], data["tick"])
    for leaf, ns in ledger.ranks[0].buckets.items():  # coarser, but no bucket gains or loses
        assert sums[leaf] == pytest.approx(ns, rel=0.01, abs=NS // 10)


def test_a_run_of_ten_thousand_spans_is_drawn_exactly() -> None:
    assert data_of(page(large(ranks=64, spans=10_000 // 64)))["floor"] == 0


@pytest.mark.slow
def test_a_page_of_endless_evidence_stays_small() -> None:
    failure = Failure(
        attempt=0, at=0, category="user_error", owner="user", retry="no", root_rank=0,
        evidence="Traceback " * 10_000,
    )  # fmt: skip
    life = Attempt(index=0, start=0, end=NS, outcome="failed", ranks=(0,))
    ledger = ledger_of(
        Line().add("unknown", 1),
        failures=(failure,) * 3_000,
        attempts=(life,) * 3_000,
        notes=("note " * 10_000,) * 3_000,
        gaps=(Gap(0, 0, 0, NS, "x" * 10_000, "y" * 10_000),) * 3_000,
    )
    text = page(ledger)
    assert len(text.encode()) < LIMIT
    assert words_of(text).count("user_error") == 100 + 1  # and once as the end of the run


def test_more_ranks_than_fit_leave_out_those_that_trained_most() -> None:
    good, bad = Line().add("train.effective", 10), Line().add("waste.blocked", 10)
    rank = killed().ranks[0]
    ranks = tuple(
        dataclasses.replace(
            rank, rank=i, segments=tuple(line.segments), buckets={line.segments[0].bucket: line.now}
        )
        for i, line in enumerate([good] * 1500 + [bad] * 500)
    )
    text = page(ledger_of(good, ranks=ranks))
    labels = data_of(text)["labels"]
    assert len(labels) == 1025
    assert {f"rank {i}" for i in range(1500, 2000)} <= set(labels)
    assert re.search(r"\b976 ranks", words_of(text))


def test_neighbours_merge_and_holes_stay() -> None:
    line = [Segment(0, 10, BUCKETS[0]), Segment(10, 30, BUCKETS[0]), Segment(50, 60, BUCKETS[1])]
    assert encode(line, 10) == "A3_2B1"


def test_short_pieces_are_gathered_by_leaf() -> None:
    first, second, third = BUCKETS[:3]
    line = [Segment(i, i + 1, (first, second)[i % 2]) for i in range(8)]
    line.append(Segment(8, 20, third))
    assert encode(line, 1) == "A1B1A1B1A1B1A1B1C12"
    assert encode(line, 1, floor=8) == "A4B4C12"
    assert encode(line, 1, floor=4) == "A2B2A2B2C12"


def test_of_very_many_saves_the_longest_is_drawn() -> None:
    saves = tuple(
        Checkpoint(attempt=0, rank=0, start=n * NS, end=n * NS + NS // 100, step=n, path=None)
        for n in range(5_000)
    )
    long = dataclasses.replace(saves[3_333], end=saves[3_333].start + NS // 2)
    line = Line().add("train.effective", 5_000)
    saves = (*saves[:3_333], long, *saves[3_334:])
    text = page(ledger_of(line, steps=9, saves=5_000, checkpoints=saves))
    assert "at most 500 ms" in text and "step 3,333: 500 ms blocked" in text


def test_a_failure_shows_its_own_recovery_only() -> None:
    """Of two failures only the second was recovered from."""
    line = Line().add("train.effective", 9)
    lives = tuple(
        Attempt(index=i, start=3 * i, end=3 * i + 3, outcome="failed", ranks=(0,)) for i in range(2)
    )
    found = tuple(
        Failure(attempt=i, at=i, category=f"cause{i}", owner="infra", retry="yes", root_rank=0,
                evidence="")
        for i in range(2)
    )  # fmt: skip
    ledger = ledger_of(
        line, attempts=lives, failures=found, time_to_recover=(20 * NS,),
        recovered=((1, 2),),
    )  # fmt: skip
    articles = re.findall(r'<article class="fail">(.*?)</article>', page(ledger), re.S)
    assert ["training again after 20.0 s" in article for article in articles] == [False, True]
    assert ["training again" in article for article in articles] == [False, True]


def test_saves_are_drawn_in_the_color_of_their_bucket() -> None:
    text = page(killed())
    for dark in (False, True):
        assert f"--save:{bucket_color('waste.checkpoint_block', dark=dark)};" in text
    assert "var(--save)" in text and not re.search(r"--l\d+\)", text.partition("</style>")[0])


def test_a_job_that_publishes_shows_no_training_time() -> None:
    line = Line().add("stop.publish", 12)
    told = Publish(run="t", folder="/r/t", anchor="/a", store="/s")
    words = words_of(page(ledger_of(line, publishes_run=told)))
    assert "% ETT" not in words and "Effective Training Time" not in words
    assert "headway.step()" not in words
