"""The HTML report as a person meets it: opened from disk in a real browser."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.ledger.model import (
    AsyncSave,
    AutoRun,
    BoosterResult,
    CheckpointOutcome,
    CompileCacheLoad,
    Failure,
    Ledger,
    ProcessGroups,
    Publish,
    RecompileLimitHit,
)
from headway.report.html import page
from headway.units import NS
from tests.e2e import chromium
from tests.e2e.chromium import Chromium
from tests.unit.report.ledgers import killed, large, no_steps
from tests.unit.report.starts import SEVEN, many, staged
from tests.unit.report.test_html import evil

pytestmark = pytest.mark.skipif(chromium.PATH is None, reason="there is no chromium on PATH")

TIP = "document.getElementById('tip')"
SPAN = "headwayTimeline.inView()[1] - headwayTimeline.inView()[0]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as running:
        yield running


def opened(browser: Chromium, ledger: Ledger, folder: Path) -> Path:
    """The page in the browser, with nothing noted of earlier pages."""
    file = folder / "report.html"
    file.write_text(page(ledger), encoding="utf-8")
    browser.requests.clear()
    browser.complaints.clear()
    browser.size(1280, 900)
    browser.open(file)
    browser.frame()
    return file


def timeline(browser: Chromium) -> tuple[float, float, float, float]:
    """Where the timeline stands in the window: left, top, width, height."""
    browser.js("document.getElementById('timeline').scrollIntoView({block: 'center'})")
    browser.frame()
    left, top, width, height = browser.js(
        "(r => [r.left, r.top, r.width, r.height])"
        "(document.getElementById('timeline').getBoundingClientRect())"
    )
    return left, top, width, height


def tooltip(browser: Chromium, x: float, y: float) -> str:
    browser.mouse("mouseMoved", x, y)
    browser.frame()
    return str(browser.js(f"{TIP}.hidden ? '' : {TIP}.innerText"))


def test_opens_from_disk_without_network_or_complaint(browser: Chromium, tmp_path: Path) -> None:
    for ledger in (killed(), no_steps()):
        file = opened(browser, ledger, tmp_path)
        assert browser.requests == [file.as_uri()]
        assert browser.complaints == []
        colours = browser.js(
            "(c => new Set(new Uint32Array(c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data.buffer)).size)"
            "(document.querySelector('canvas'))"
        )
        assert colours > 4  # something was drawn


def test_hover_names_the_bucket_the_rank_and_the_failure(browser: Chromium, tmp_path: Path) -> None:
    opened(browser, killed(), tmp_path)
    left, top, width, _ = timeline(browser)
    plot = left + 64
    middle = plot + (width - 64) * 0.1875  # in the second stretch of training
    assert tooltip(browser, middle, top + 35).startswith("train.effective\ntraining on new data")
    assert "rank 1 on node-1, attempt 0" in tooltip(browser, middle, top + 58 + 30 + 10)
    died = plot + (width - 64) * killed().failures[0].at / killed().wall
    assert "ended by SIGKILL" in tooltip(browser, died, top + 15)
    assert tooltip(browser, left + 10, top - 40) == ""
    assert browser.complaints == []


def test_wheel_drag_keys_and_buttons_move_the_view(browser: Chromium, tmp_path: Path) -> None:
    opened(browser, killed(), tmp_path)
    left, top, width, _ = timeline(browser)
    x, y = left + width / 2, top + 40
    whole = browser.js(SPAN)
    for _ in range(5):
        browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-60)
    browser.frame()
    zoomed = browser.js(SPAN)
    assert zoomed < whole / 2

    start = browser.js("headwayTimeline.inView()[0]")
    button = {"button": "left", "buttons": 1, "clickCount": 1}
    browser.mouse("mousePressed", x, y, **button)
    browser.mouse("mouseMoved", x - 100, y, **button)
    browser.mouse("mouseReleased", x - 100, y, **button)
    assert browser.js("headwayTimeline.inView()[0]") > start
    assert browser.js(SPAN) == pytest.approx(zoomed)

    browser.js("document.getElementById('timeline').focus()")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="+", text="+")
    assert browser.js(SPAN) < zoomed
    browser.js("document.getElementById('reset').click()")
    browser.frame()
    assert browser.js("headwayTimeline.inView()") == [0, pytest.approx(whole)]
    assert browser.js("document.getElementById('reset').disabled") is True
    assert browser.complaints == []


def test_a_bucket_is_picked_out_and_let_go(browser: Chromium, tmp_path: Path) -> None:
    opened(browser, killed(), tmp_path)
    click = "document.querySelector('.groups li').click()"
    browser.js(click)
    assert browser.js("document.body.classList.contains('picking')") is True
    browser.js(click)
    assert browser.js("document.body.classList.contains('picking')") is False
    assert browser.complaints == []


def test_dark_and_light_differ_and_can_be_switched(browser: Chromium, tmp_path: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for dark in (False, True):
        browser.dark(dark)
        opened(browser, killed(), tmp_path)
        seen.append(browser.js(background))
    browser.js("document.getElementById('theme').click()")
    assert browser.js(background) == seen[0] != seen[1]
    browser.dark(False)


def test_nothing_sticks_out_on_a_phone(browser: Chromium, tmp_path: Path) -> None:
    opened(browser, killed(), tmp_path)
    browser.size(390, 800, scale=2)
    browser.frame()
    assert browser.js("document.documentElement.scrollWidth") <= 390


# What stands out of the card that it is in, unless it can be scrolled to: its text and its pixels.
OUTSIDE = """
[...document.querySelectorAll(".card *")].filter(e => {
  const card = e.closest(".card").getBoundingClientRect(), own = e.getBoundingClientRect();
  const hidden = e.closest(".scroll, svg, #timeline, .sr, .plot, details:not([open])");
  return !hidden && own.width && own.right > card.right + 1;
}).map(e => [e.outerHTML.slice(0, 80), e.getBoundingClientRect().right])
"""


def _everything() -> Ledger:
    """Every section, with texts as long as they come."""
    word = "s3://bucket/" + "very-long-folder-name/" * 12
    told = "a reason of many words that somebody has written down for others to read " * 4
    boosters = (
        BoosterResult(
            name="async_save", state="acted", what=told, why=told, time=NS, baseline=2 * NS
        ),
        BoosterResult(name="compile_cache", state="off", why=f"{told}{word}"),
        BoosterResult(name="warm", state="on", what=told),
    )
    failure = Failure(
        attempt=1, at=9 * NS, category="user_code", owner="user", retry="no", root_rank=0,
        evidence=f"{told}{word}", decision=told,
    )  # fmt: skip
    whole = killed()
    ended = dataclasses.replace(whole.attempts[1], outcome="failed")
    return dataclasses.replace(
        whole,
        command=("torchrun", word, *told.split()),
        attempts=(whole.attempts[0], ended),
        failures=(*whole.failures, failure),
        auto=AutoRun(job="j", comparison_key="k", boosters=boosters),
        published_by=Publish(run=word, folder=word, anchor=word, store=word, error=told + word),
        async_save=AsyncSave(
            saves=3, blocked=9, write=9, wait=0, failed=1, sync_fallbacks={told: 2, word: 1},
        ),
        outcomes=(
            CheckpointOutcome(
                attempt=0, step=5, at=9, level="disk", blocked=9, step_slowdown=9, durable=9,
                size=9,
            ),
            CheckpointOutcome(
                attempt=0, step=6, at=9, level="disk", blocked=9, step_slowdown=9, durable=9,
                size=9, error=told + word,
            ),
        ),
        archives=(
            CompileCacheLoad(
                attempt=0, level="miss", why=told, files=0, bytes=0, load=0, compile_cold=0,
                compile=NS,
            ),
        ),
        recompile_limit_hits=(
            RecompileLimitHit(
                attempt=0, rank=0, at=1, where=word, limit="limit", reason=told,
            ),
        ),
        process_groups=(
            ProcessGroups(
                where=word, what="new_group", desc=told, backend="nccl", size=8, ranks=8,
                calls=9, made=9, used=1, unused=8, duplicate=0, ns=9, avoidable=9, complete=True,
            ),
        ),
        notes=(told + word,),
    )  # fmt: skip


@pytest.mark.parametrize("width", [1400, 1000, 400])
def test_nothing_runs_out_of_its_card(browser: Chromium, tmp_path: Path, width: int) -> None:
    opened(browser, _everything(), tmp_path)
    browser.size(width, 900)
    browser.js("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.frame()
    assert browser.js(OUTSIDE) == []
    assert browser.js("document.documentElement.scrollWidth") <= width


# How far each line of a graph is from the bars that it joins, in CSS pixels, at most.
ASTRAY = """
Math.max(...[...document.querySelectorAll(".graph")].filter(g => g.offsetHeight).flatMap(graph => {
  const bar = stage => graph.querySelector(`[data-stage="${stage}"] .track i`);
  const box = stage => bar(stage).getBoundingClientRect();
  return [...graph.querySelectorAll("path")].flatMap(line => {
    const seen = line.getScreenCTM(), from = box(line.dataset.since), to = box(line.dataset.until);
    const at = t => line.getPointAtLength(t * line.getTotalLength()).matrixTransform(seen);
    const [start, end] = [at(0), at(1)], middle = r => (r.top + r.bottom) / 2;
    return [start.x - from.right, start.y - middle(from), end.x - to.left, end.y - middle(to)]
      .map(Math.abs);
  });
}))"""


def test_the_stages_of_a_start_are_joined_by_lines(browser: Chromium, tmp_path: Path) -> None:
    opened(browser, staged(SEVEN, many(30), many(30, seed=5)), tmp_path)
    assert browser.js("document.querySelectorAll('.graph').length") == 3
    for width in (1280, 700, 400):
        browser.size(width, 900)
        browser.js("document.querySelectorAll('details').forEach(one => one.open = true)")
        browser.frame()
        assert browser.js("document.documentElement.scrollWidth") <= width
        assert browser.js(ASTRAY) < 4  # the shortest bars are drawn a little wider
    assert browser.complaints == []


def test_a_stage_shows_what_it_needs_and_what_needs_it(browser: Chromium, tmp_path: Path) -> None:
    opened(browser, staged(SEVEN), tmp_path)
    row = "[...document.querySelectorAll('[data-stage]')].find(x => x.innerText.includes('train_'))"
    x, y = browser.js(
        f"(x => {{ x.scrollIntoView({{block: 'center'}}); const r = x.getBoundingClientRect();"
        f" return [r.left + 20, r.top + r.height / 2]; }})({row})"
    )
    browser.frame()  # scrolling hides the tooltip
    near = "[...document.querySelectorAll('.near .n')].map(x => x.textContent).sort()"
    neighbours = ["compile_ahead", "process_group_init", "train_module_creation", "vocabulary"]
    said = tooltip(browser, x, y)
    assert said.startswith("train_module_creation\n1.0 s, from 1.5 s to 2.5 s")
    assert "depends on process_group_init, vocabulary" in said
    assert browser.js(near) == neighbours
    assert browser.js("document.querySelectorAll('path.on').length") == 3
    tooltip(browser, 1, 1)
    assert browser.js(near) == []
    browser.js(f"{row}.focus()")  # the same by keyboard
    assert browser.js(near) == neighbours
    assert browser.complaints == []


def test_a_hostile_run_is_text_and_nothing_else(browser: Chromium, tmp_path: Path) -> None:
    browser.call("Page.addScriptToEvaluateOnNewDocument", source="window.alert = () => owned = 1")
    file = opened(browser, evil(), tmp_path)
    assert browser.js("typeof owned") == "undefined"
    assert browser.js("document.images.length") == 0
    assert browser.js("document.querySelector('h1').textContent").startswith("</script><script>")
    assert browser.requests == [file.as_uri()]
    assert browser.complaints == []


@pytest.mark.slow
def test_a_frame_of_64_ranks_and_10000_spans_each(
    browser: Chromium, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = opened(browser, large(ranks=64, spans=10_000), tmp_path)
    frames = sorted(browser.js("Array.from({length: 21}, () => headwayTimeline.draw())"))
    pieces = browser.js("headwayTimeline.pieces")
    with capsys.disabled():
        size = file.stat().st_size
        print(f"\n{pieces:,} pieces, {size:,} bytes: {frames[10]:.1f} ms a frame (median of 21)")
    assert pieces > 64 * 1_000
    assert file.stat().st_size < 1_000_000
    assert browser.complaints == []
