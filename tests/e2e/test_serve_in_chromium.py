"""The pages of `headway serve` in a real browser, from a real server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.fleet.store.parquet import Store
from headway.serve.pages import PAGES
from tests.e2e import chromium
from tests.e2e.chromium import Chromium
from tests.unit.fleet.store_rows import START, run_rows
from tests.unit.serve import fleet

pytestmark = [
    pytest.mark.skipif(chromium.PATH is None, reason="there is no chromium on PATH"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("chromium"),
]

HEADWAY = str(Path(sys.executable).parent / "headway")
TOKEN = "a-token-that-is-long-enough"
LIVE = "running00001"
READY = """[...document.querySelectorAll('[data-panel]')].every((panel) => {
  const room = panel.querySelector('[role=img]');
  if (panel.getAttribute('aria-busy') !== 'false') return false;
  return !room || room.dataset.drawn || panel.querySelector('.status').textContent;
})"""
SHIFTS = """window.shifted = 0; new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) window.shifted += one.value;
}).observe({type: 'layout-shift', buffered: true});"""


@contextmanager
def served(store: Store, *words: str, **env: str) -> Iterator[str]:
    """Start a server and yield its address."""
    with subprocess.Popen(
        [HEADWAY, "serve", store.url, "--listen", "127.0.0.1:0", *words],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            match = re.search(r"http://\S+", server.stdout.readline())
            assert match is not None
            yield match[0].rstrip("/")
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fleet.make(tmp_path_factory.mktemp("fleet") / "store")


@pytest.fixture(scope="module")
def site(store: Store) -> Iterator[str]:
    with served(store) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as running:
        running.call("Page.addScriptToEvaluateOnNewDocument", source=SHIFTS)
        yield running


def until(browser: Chromium, expression: str, seconds: float = 120) -> None:
    """Wait until an expression is true in the page, also across navigation."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            if browser.js(f"Boolean({expression})"):
                return
        except AssertionError as error:
            if "context" not in str(error) and "navigated" not in str(error):
                raise  # anything but a page that is being left
        time.sleep(0.1)
    pytest.fail(f"never true: {expression}")


def visit(browser: Chromium, address: str, *, width: int = 1280) -> None:
    """Open a page with all its data, and clear what was recorded of earlier pages."""
    browser.requests.clear()
    browser.complaints.clear()
    browser.size(width, 900)
    browser.call("Page.navigate", url=address)
    arrived(browser, address.partition("#")[0].partition("?")[0])


def arrived(browser: Chromium, address: str) -> None:
    until(browser, f"location.href.startsWith({address!r}) && document.readyState === 'complete'")
    until(browser, READY)
    browser.frame()


def middle(browser: Chromium, element: str) -> tuple[float, float]:
    """The point in the window at which an element can be clicked."""
    browser.js(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    browser.frame()
    x, y = browser.js(
        f"(r => [r.left + r.width / 2, r.top + r.height / 2])({element}.getBoundingClientRect())"
    )
    return x, y


def click(browser: Chromium, element: str) -> None:
    x, y = middle(browser, element)
    browser.mouse("mouseMoved", x, y)
    browser.frame()
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, x, y, button="left", clickCount=1)


def key(browser: Chromium, name: str, code: int) -> None:
    for kind in ("rawKeyDown", "char", "keyUp"):
        text = {"text": "\r"} if kind == "char" and name == "Enter" else {}
        if kind != "char" or text:
            browser.call(
                "Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code, **text
            )


@pytest.mark.parametrize("path", [*(page.path for page in PAGES), "/runs/run000000003"])
def test_every_page_is_drawn_from_this_server_alone(
    browser: Chromium, site: str, path: str
) -> None:
    for width in (1280, 390):
        visit(browser, site + path, width=width)
        assert browser.complaints == []
        assert {url for url in browser.requests if not url.startswith((site, "data:"))} == set()
        assert browser.js("document.querySelectorAll('script:not([src])').length") == 0
        assert browser.js("document.documentElement.scrollWidth <= innerWidth")
        assert browser.js("window.shifted") < 0.1  # what Chromium itself calls good
        charts = browser.js("document.querySelectorAll('.room .main-svg').length > 0")
        assert charts == (path not in ("/runs", "/alerts"))


def test_every_chart_has_a_table(browser: Chromium, site: str) -> None:
    for path in ("/", "/start", "/recover", "/checkpoints", "/failures", "/preemptions"):
        visit(browser, site + path)
        counts = browser.js(
            "[...document.querySelectorAll('[data-drawn]')].map(room => "
            "room.parentElement.querySelectorAll('.data tbody tr').length)"
        )
        assert counts and all(counts), path
        headings = "[...document.querySelectorAll('.data th')]"
        assert browser.js(f"{headings}.every(cell => cell.scope === 'col')")


def test_filters_go_into_the_address_and_along(browser: Chromium, site: str) -> None:
    visit(browser, f"{site}/runs")
    assert browser.js("document.querySelectorAll('.rows tbody tr').length") == fleet.RUNS
    until(browser, "document.querySelector('select[name=team]').options.length === 3")
    browser.js("document.querySelector('select[name=team]').value = 'ads'")
    browser.js("document.querySelector('input[name=q]').value = 'night'")
    click(browser, "document.querySelector('.filters button')")
    until(browser, "location.search.includes('team=ads')")
    arrived(browser, f"{site}/runs?")
    assert browser.js("document.querySelectorAll('.rows tbody tr').length") == 5
    assert browser.js("document.querySelector('select[name=team]').value") == "ads"
    click(browser, "document.querySelector('nav a[href^=\"/start\"]')")
    arrived(browser, f"{site}/start?")
    assert browser.js("location.search") == "?team=ads"


def test_a_bar_opens_its_runs_and_a_run_opens(browser: Chromium, site: str) -> None:
    visit(browser, f"{site}/")
    bar = "document.querySelector('[data-panel=lost-by-cause] .bars .point path')"
    click(browser, bar)
    until(browser, "location.pathname === '/runs'")
    arrived(browser, f"{site}/runs?")
    assert browser.js("location.search") == "?category=preemption"
    assert browser.js("document.querySelectorAll('.rows tbody tr').length") == 3
    click(browser, "document.querySelector('.rows tbody a')")
    until(browser, "location.pathname.startsWith('/runs/run')")
    arrived(browser, f"{site}/runs/run")
    assert browser.js("document.querySelector('h1').textContent") == "night-9"


def test_a_cell_of_the_heat_map_opens_its_runs(browser: Chromium, site: str) -> None:
    visit(browser, f"{site}/failures?team=ads")
    x, y, width = browser.js(
        "(r => [r.left, r.top, r.width])(document.querySelector("
        "'[data-panel=failures-nodes] .hm image, [data-panel=failures-nodes] .hm path')"
        ".getBoundingClientRect())"
    )
    browser.mouse("mouseMoved", x + width / 2, y + 5)
    browser.frame()  # the hover is drawn; a wait after the click would race with the new page
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, x + width / 2, y + 5, button="left", clickCount=1)
    until(browser, "location.pathname === '/runs'")
    assert "host=node-" in browser.js("location.search")


def test_zoom_narrows_the_chart_then_the_page(browser: Chromium, site: str) -> None:
    visit(browser, f"{site}/")
    plot = "document.querySelector('[data-panel=ett] .nsewdrag')"
    x, y = middle(browser, plot)
    span = (
        "(r => new Date(r[1]) - new Date(r[0]))"
        "(document.querySelector('[data-panel=ett] .room')._fullLayout.xaxis.range)"
    )
    before = browser.js(span)
    browser.mouse("mouseMoved", x - 150, y)
    browser.mouse("mousePressed", x - 150, y, button="left", clickCount=1)
    for step in range(-100, 200, 50):
        browser.mouse("mouseMoved", x + step, y, button="left", buttons=1)
        browser.frame()
    browser.mouse("mouseReleased", x + 150, y, button="left", clickCount=1)
    until(browser, f"{span} < {before / 2}")
    link = "document.querySelector('[data-panel=ett] .zoomed')"
    until(browser, f"!{link}.hidden")
    click(browser, link)
    until(browser, "location.search.includes('since=2026-11-')")
    arrived(browser, f"{site}/?")
    assert browser.js("document.querySelector('.cards dd:not(.dim)').textContent") != "-"


def test_hostile_names_are_harmless(browser: Chromium, site: str) -> None:
    visit(browser, f"{site}/runs")
    names = browser.js("[...document.querySelectorAll('.rows td.run')].map(c => c.textContent)")
    assert fleet.EVIL in names
    visit(browser, f"{site}/runs/run000000001")
    assert browser.js("document.querySelector('h1').textContent") == fleet.EVIL
    assert browser.js("document.title") == f"{fleet.EVIL} - Headway"
    visit(browser, f"{site}/failures")
    axis = "[...document.querySelectorAll('[data-panel=failures-nodes] .xtick text')]"
    assert fleet.EVIL in browser.js(f"{axis}.map(tick => tick.textContent)")
    visit(browser, f"{site}/runs/run000000000")
    evidence = "[...document.querySelectorAll('[data-panel=run-failures] td.long')]"
    assert browser.js(f"{evidence}.map(c => c.textContent)") == ["<img src=x onerror=alert(2)>"]
    visit(browser, f"{site}/?by=team")
    legend = "[...document.querySelectorAll('.legendtext')].map(t => t.textContent)"
    assert "<b>search</b>" in browser.js(legend)
    assert browser.complaints == []


def test_light_and_dark(browser: Chromium, site: str) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    line = "document.querySelector('[data-panel=ett] .js-line').style.stroke"
    visit(browser, f"{site}/")
    light = (browser.js(paper), browser.js(line))
    browser.dark(True)
    try:
        browser.frame()
        until(browser, f"{paper} !== {light[0]!r} && {line} !== {light[1]!r}")
        click(browser, "document.getElementById('theme')")
        until(browser, f"{paper} === {light[0]!r} && {line} === {light[1]!r}")
        visit(browser, f"{site}/runs")
        assert browser.js(paper) == light[0]  # the choice is kept
    finally:
        browser.dark(False)
        browser.js("localStorage.clear()")


def test_the_keyboard_reaches_everything(browser: Chromium, site: str) -> None:
    visit(browser, f"{site}/")
    key(browser, "Tab", 9)
    assert browser.js("document.activeElement.className") == "skip"
    assert browser.js("document.activeElement.getBoundingClientRect().top") >= 0
    assert browser.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    key(browser, "Enter", 13)
    until(browser, "document.activeElement.id === 'main'")
    reached = set()
    for _ in range(30):
        key(browser, "Tab", 9)
        reached.add(browser.js("document.activeElement.tagName"))
    assert {"SELECT", "BUTTON", "SUMMARY"} <= reached


def test_the_report_of_a_run_stands_in_its_page(browser: Chromium, tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "import headway, time\nfor _ in range(20):\n    time.sleep(.01); headway.step()\n"
    )
    store = Store(str(tmp_path / "store"))
    command = [HEADWAY, "run", "-o", tmp_path / "runs" / "night", "--store", store.url, "--"]
    subprocess.run([*command, sys.executable, job], check=True, timeout=120, capture_output=True)
    with served(store, "--runs", str(tmp_path / "runs")) as site:
        visit(browser, f"{site}/runs")
        click(browser, "document.querySelector('.rows tbody a')")
        until(browser, "location.pathname.startsWith('/runs/')")
        frame = "document.querySelector('#report iframe')"
        until(browser, f"{frame} && {frame}.contentDocument.querySelector('#timeline canvas')")
        until(browser, f"{frame}.getBoundingClientRect().height > 950")  # it fits the report
        assert browser.js(f"{frame}.contentDocument.querySelectorAll('h2').length") > 0
        assert browser.complaints == []


def test_a_run_page_is_live(browser: Chromium, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.write(run_rows(LIVE, running=True, outcome="running"), as_of=START.timestamp())
    with served(store) as site:
        visit(browser, f"{site}/runs/{LIVE}")
        state = "document.querySelector('#lead .chip').textContent"
        assert browser.js(state) == "running"
        store.write(run_rows(LIVE, hours=2, outcome="completed"), as_of=START.timestamp() + 9)
        until(browser, f"{state} === 'completed'")
        cards = "[...document.querySelectorAll('.cards dd')].map(c => c.textContent)"
        assert "2 h 00 m" in browser.js(cards)


def test_the_token_opens_the_pages(browser: Chromium, store: Store) -> None:
    with served(store, HEADWAY_TOKEN=TOKEN) as site:
        browser.complaints.clear()
        browser.call("Page.navigate", url=f"{site}/runs?team=ads")
        until(browser, "location.pathname === '/login' && document.readyState === 'complete'")
        token = "document.getElementById('token')"
        browser.js(f"{token}.value = 'wrong'")
        click(browser, "document.querySelector('.login button')")
        until(browser, "document.querySelector('[role=alert]')")
        browser.js(f"{token}.value = {TOKEN!r}")
        click(browser, "document.querySelector('.login button')")
        until(browser, "location.pathname === '/runs'")
        arrived(browser, f"{site}/runs?")
        assert browser.js("document.querySelectorAll('.rows tbody tr').length") == 6
        assert browser.js("document.cookie") == ""  # no script can read it
