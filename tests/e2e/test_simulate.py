"""`headway simulate cluster` as a person types it."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support import Golden

pytestmark = pytest.mark.timeout(120)
SMALL = ("--trace", "synthetic:1200", "--gpus", "64", "--load", "1.1")


def headway(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headway", "simulate", "cluster", *args],
        capture_output=True,
        text=True,
        timeout=100,
    )


def figures(*args: str) -> Any:
    done = headway(*args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_table(golden: Golden) -> None:
    done = headway(*SMALL, "--policy", "newest,least-cost", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    golden("simulate_cluster.txt", done.stdout)


def test_json_is_the_same_by_any_number_of_workers() -> None:
    args = (*SMALL, "--policy", "newest,least-cost", "--seeds", "2", "--shift")
    alone = figures(*args)
    assert alone == figures(*args, "--workers", "2")
    newest, ours = alone["policies"]
    assert newest["figures"]["preemptions"]["mean"] > 20
    assert ours["figures"]["lost_h"]["mean"] < newest["figures"]["lost_h"]["mean"]
    assert ours["change"]["lost_h"]["mean"] < 0 and ours["change"]["lost_h"]["half"] >= 0
    assert set(alone["pareto"]) <= {"newest", "least-cost"}
    assert "rho" in ours["figures"] and "queue_min_p95[2-8]" in ours["figures"]


def test_faults_spot_and_silence() -> None:
    args = ("--trace", "synthetic:3000", "--gpus", "64", "--policy", "least-cost")
    calm, rough = (
        figures(*args),
        figures(
            *args, "--faults", "stepfun", "--spot", "p3", "--spot-nodes", "4", "--silent", "0.5"
        ),
    )
    before, after = (report["policies"][0]["figures"] for report in (calm, rough))
    assert before["faults"]["mean"] == 0 < after["faults"]["mean"]
    assert after["lost_h"]["mean"] > before["lost_h"]["mean"]


class Page(HTMLParser):
    """Its tags, and every address in it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_a_page(tmp_path: Path) -> None:
    target = tmp_path / "out.html"
    args = (*SMALL, "--policy", "newest,largest,least-cost", "--html", str(target))
    assert headway(*args).returncode == 0
    page = Page()
    page.feed(target.read_text())
    assert page.tags.count("svg") == page.tags.count("polyline") == 2
    assert page.tags.count("circle") == 6
    assert "script" not in page.tags and not page.addresses
    first = target.read_text()
    assert headway(*args).returncode == 2 and target.read_text() == first
    assert headway(*args, "--force").returncode == 0


def test_quotas_and_a_site_of_its_own(tmp_path: Path) -> None:
    trace, quota = tmp_path / "year.psv", tmp_path / "quota.csv"
    rows = [
        f"{n}|{'ab'[n % 2]}|2026-01-01T00:{n:02d}:00|600|gres/gpu={1 + n % 4}" for n in range(40)
    ]
    head = "JobID|Account|Submit|ElapsedRaw|AllocTRES"
    trace.write_text("\n".join([head, *rows]) + "\n")
    quota.write_text("a,4\nb,4\n")
    args = ("--trace", f"sacct:{trace}", "--gpus", "8", "--quota", str(quota))
    values = figures(*args, "--policy", "newest")
    assert values["jobs"] == 40 and values["setting"]["quota"] == {"a": 4, "b": 4}
