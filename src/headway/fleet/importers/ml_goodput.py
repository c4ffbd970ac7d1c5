"""Import logs of ml-goodput-measurement: JSON lines, or the output of `gcloud logging read`.

    gcloud logging read 'jsonPayload.job_name="JOB"' --format json --order asc > goodput.json

The log contains starts of steps, not their ends: the last step of an attempt is as long as the
median one, or ends with the job. It does not contain the number of accelerators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from headway.fleet.importers.record import AttemptRecord, RunRecord, Span
from headway.fleet.importers.source import Source
from headway.ledger.buckets import EFFECTIVE
from headway.ledger.model import Outcome

Entry = Mapping[str, Any]
STAGES = {
    "tpu_init": "device_init",
    "training_prep": "train_module_creation",
    "data_loading": "get_first_batch_data",
}
BEGINS, ENDS = "job_start_time", "job_end_time"


def detect(source: Source) -> bool:
    """Whether its first entry has a job name and a time of this library."""
    first = next(_entries(source), {}) if '"job_name"' in source.text else {}
    times = (BEGINS, "step_start_time", *(f"{name}_start_time" for name in STAGES))
    return "job_name" in first and any(name in first for name in times)


def read(sources: Sequence[Source]) -> Iterator[RunRecord]:
    """Yield a run per job; each job start begins an attempt."""
    jobs: dict[str, list[Entry]] = defaultdict(list)
    for source in sources:
        for entry in _entries(source):
            if "job_name" in entry and any(name.endswith("_time") for name in entry):
                jobs[str(entry["job_name"])].append(entry)
    for job, entries in jobs.items():
        entries.sort(key=_time)  # stable: simultaneous entries keep their order
        starts = [index for index, entry in enumerate(entries) if BEGINS in entry] or [0]
        parts = [entries[a:b] for a, b in pairwise([*starts, len(entries)])]
        yield RunRecord(
            key=f"ml_goodput {job} {_time(entries[starts[0]]):.6f}",
            run=job,
            attempts=tuple(_attempt_record(part, last=part is parts[-1]) for part in parts),
            job=job,
            labels={"reader": "ml_goodput"},
        )


def _entries(source: Source) -> Iterator[Entry]:
    opening = source.text.lstrip()[:1]
    for entry in source.objects() if opening in ("{", "[") else ():
        yield entry.get("jsonPayload", entry)


def _time(entry: Entry) -> float:
    return float(next(value for name, value in entry.items() if name.endswith("_time")))


def _attempt_record(entries: Sequence[Entry], *, last: bool) -> AttemptRecord:
    ends = [_time(entry) for entry in entries if ENDS in entry]
    begins = [
        (_time(entry), int(entry["step_count"])) for entry in entries if "step_count" in entry
    ]
    usual = median([later - at for (at, _), (later, _) in pairwise(begins)] or [0.0])
    until = max(_time(entry) for entry in entries)
    end = ends[-1] if ends else max(until, begins[-1][0] + usual if begins else until)
    stops = [*(at for at, _ in begins[1:]), end]
    if usual and begins:
        stops[-1] = min(end, begins[-1][0] + usual)
    spans = [
        Span(at, stop, EFFECTIVE, step) for (at, step), stop in zip(begins, stops, strict=False)
    ]
    first = begins[0][0] if begins else end
    for name, stage in STAGES.items():
        bucket = stage
        for at, stop in _pairs(entries, f"{name}_start_time", f"{name}_end_time"):
            if name == "data_loading" and at >= first:
                bucket = "waste.data_stall"
            spans.append(Span(at, stop, bucket))
    for at, stop in _pairs(
        entries, "custom_badput_event_start_time", "custom_badput_event_end_time"
    ):
        spans.append(Span(at, stop, "waste.blocked"))
    spans.sort(key=lambda span: span.start)
    outcome: Outcome = "completed" if ends else "running" if last else "failed"
    return AttemptRecord(
        start=_time(entries[0]),
        end=end,
        outcome=outcome,
        accelerators=1,
        spans=tuple(spans),
        evidence="the job was restarted",
    )


def _pairs(entries: Sequence[Entry], begin: str, end: str) -> Iterator[tuple[float, float]]:
    opened: float | None = None
    for entry in entries:
        if begin in entry:
            opened = float(entry[begin])
        elif end in entry and opened is not None:
            yield opened, float(entry[end])
            opened = None
