"""A regression scan with one finding of each kind."""

from __future__ import annotations

from dataclasses import replace

from headway.fleet.regressions.attribution import FieldShift
from headway.fleet.regressions.findings import Contribution, Finding
from headway.fleet.regressions.hosts import Lemon
from headway.fleet.regressions.running import Alarm
from headway.fleet.regressions.scan import ScanResult

DAY = 86400.0
NOW = 60 * DAY
SLICE = ("ads", "dlrm")
FINDING = Finding(
    slice=SLICE,
    at=NOW,
    since=NOW - 30 * DAY,
    until=NOW + 9 * DAY,
    bucket="waste.data_stall",
    points=2.05,
    ett_before=91.5,
    ett_after=89.1,
    mix=-0.4,
    within=-2.0,
    buckets={},
    parts=tuple(Contribution((name,), mix=0.1, within=-0.5) for name in "abcd"),
    hours=12_345.6,
    p=0.0005,
    level=0.004,
    fields=(
        FieldShift("image", "old", "new", moved=0.98, usual=0.1, explains=0.9),
        FieldShift("torch", "2.12", "2.13", moved=0.5, usual=0.05, explains=None),
    ),
)
SCAN_RESULT = ScanResult(
    findings=[FINDING, replace(FINDING, slice=("feed", "t5"), points=-1.0)],
    lemons=[Lemon("node-7", failures=6, hours=1234.5, expected=0.8, p=1e-6, level=0.0001)],
    alarms=[
        Alarm("slow", SLICE, "pace", 31, expected=0.95, lately=0.5),
        Alarm("fell", SLICE, "share", 40, expected=0.9, lately=0.45),
        Alarm("late", SLICE, "slice", 12, expected=0.8, lately=0.6),
    ],
    slices=50,
    jobs=12_000,
    now=NOW,
    notes=("a note",),
)
