from __future__ import annotations

import csv
import io

from headway.export import csv as csv_report
from tests.unit.report.ledgers import killed


def test_csv_has_one_row_per_segment_and_attempt() -> None:
    rows = list(csv.DictReader(io.StringIO("".join(csv_report.csv_lines(killed())))))
    assert list(rows[0]) == ["rank", "attempt", "start_s", "end_s", "leaf"]
    assert [row["rank"] for row in rows if row["start_s"] == "0.000000000"] == ["run", "0", "1"]
    assert len(rows) == 3 * len(killed().segments)
    assert rows[0]["end_s"] == "31.000000000"
    assert {row["attempt"] for row in rows if row["leaf"] == "recover.pt2_compile"} == {"1"}
    assert {row["attempt"] for row in rows if row["leaf"] == "recover.downtime"} == {"1"}
