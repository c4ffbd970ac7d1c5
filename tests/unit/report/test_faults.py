"""Planned faults in the reports: each beside what was detected of it."""

from __future__ import annotations

from dataclasses import replace

from headway.ledger.model import NS, Fault, Ledger
from headway.report.html import page
from tests.support import Golden
from tests.unit.report.ledgers import killed
from tests.unit.report.shown import page_of, summary_of, text_of


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


def test_in_the_reports(golden: Golden) -> None:
    ledger = rehearsed()
    golden("faults.txt", text_of(ledger))
    golden("faults-summary.txt", summary_of(ledger))
    golden("faults-html.txt", page_of(ledger))
    assert "delay &lt;each&gt; batch" in page(ledger)
