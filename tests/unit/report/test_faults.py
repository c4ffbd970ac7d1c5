"""Planned faults in the reports: each beside what was detected of it."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from headway.ledger.model import NS, Fault, Ledger
from headway.report.html import page
from headway.report.terminal import full, summary
from tests.unit.report.ledgers import killed


def rehearsed() -> Ledger:
    ledger = killed()
    failure = replace(ledger.failures[0], decision="restart: restart 1 of 3")
    hit = Fault(
        attempt=0,
        at=failure.at - 2 * NS,
        kind="kill",
        who="rank 1",
        planned="kill rank 1 at step 30",
        step=1030,
        failure=0,
        detected=failure.category,
        detected_after=2 * NS,
    )
    soft = replace(hit, kind="data", planned="delay <each> batch", failure=None, detected=None)
    missed = replace(soft, who="nobody", missed="its moment did not come", step=None)
    return replace(ledger, failures=(failure, *ledger.failures[1:]), faults=(hit, soft, missed))


def shown(show: object) -> list[str]:
    out = io.StringIO()
    show(rehearsed(), "run", Console(file=out, width=100, _environ={}))  # type: ignore[operator]
    return out.getvalue().splitlines()


def test_in_the_full_report() -> None:
    ledger, lines = rehearsed(), shown(full)
    begin = lines.index("Planned faults (3)")
    category = ledger.failures[0].category
    assert "after its step 1,030: kill rank 1 at step 30" in lines[begin + 1]
    assert [line.split() for line in lines[begin + 2 : begin + 5]] == [
        ["hit", "rank", "1"],
        ["detected", category, "after", "2.0", "s"],
        ["decision", "restart:", "restart", "1", "of", "3"],
    ]
    assert "no failure: attempt 0 went on" in "\n".join(lines)
    assert "it hit nothing: its moment did not come" in "\n".join(lines)


def test_in_the_summary() -> None:
    lines = [line for line in shown(summary) if line.startswith("  Planned:")]
    category = rehearsed().failures[0].category
    assert lines[0] == (
        f"  Planned:  kill rank 1 at step 30 -> {category} after 2.0 s, restart: restart 1 of 3"
    )
    assert len(lines) == 3


def test_in_the_page() -> None:
    text = page(rehearsed())
    section = text.partition("<h2>Planned faults")[2].partition("</section>")[0]
    assert '<td class="why">kill rank 1 at step 30<td>rank 1' in section
    assert 'after 2.0 s<td class="why">restart: restart 1 of 3' in section
    assert "delay &lt;each&gt; batch" in section
    assert "Planned faults" not in page(killed())
