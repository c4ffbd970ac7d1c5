"""Import `cycle_info.JOB.ATTEMPT.CYCLE` files of the launcher of NVIDIA's resiliency extension.

Each cycle, from one rendezvous to the next, is an attempt. The files contain neither the number of
accelerators of a node, so a node counts as one, nor the reason why a cycle ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.errors import UsageError
from headway.fleet.importers.record import AttemptRecord, RunRecord
from headway.fleet.importers.source import Source, parse_iso8601
from headway.ledger.model import Outcome
from headway.slurm import expand_hosts

FIELDS = {"job_id", "attempt_index", "cycle_number", "cycle_start_time", "active_nodes"}


def detect(source: Source) -> bool:
    """Whether its first object has the fields of NVRxCycleInfo."""
    return '"cycle_number"' in source.text and next(source.objects(), {}).keys() >= FIELDS


def read(sources: Sequence[Source]) -> Iterator[RunRecord]:
    """Yield a run per job; its cycles over all scheduler attempts are its attempts."""
    jobs: dict[str, dict[tuple[int, int], tuple[Mapping[str, Any], float]]] = defaultdict(dict)
    for source in sources:
        for cycle in source.objects():
            if not cycle.keys() >= FIELDS:
                raise UsageError(
                    f"{source.name} is not a cycle of NVRx: {FIELDS - cycle.keys()} is missing",
                    code="record-invalid",
                    reader="nvrx",
                )
            number = (int(cycle["attempt_index"]), int(cycle["cycle_number"]))
            jobs[str(cycle["job_id"])][number] = (cycle, source.collected_at)
    for job, cycles in jobs.items():
        ordered = [cycles[number] for number in sorted(cycles)]
        yield RunRecord(
            key=f"nvrx {job} {ordered[0][0]['cycle_start_time']}",
            run=job or "nvrx",
            attempts=tuple(
                _attempt_record(cycle, collected_at, last=index == len(ordered) - 1)
                for index, (cycle, collected_at) in enumerate(ordered)
            ),
            labels={"reader": "nvrx"},
        )


def _attempt_record(cycle: Mapping[str, Any], collected_at: float, *, last: bool) -> AttemptRecord:
    start = parse_iso8601(cycle["cycle_start_time"])
    end_time = cycle.get("cycle_end_time") or ""
    nodes = tuple(expand_hosts(cycle["active_nodes"]))
    outcome: Outcome = "failed" if not last else "stopped" if end_time else "running"
    return AttemptRecord(
        start=start,
        end=max(parse_iso8601(end_time) if end_time else collected_at, start),
        outcome=outcome,
        accelerators=max(len(nodes), 1),
        hosts=nodes,
        evidence="another cycle followed",
    )
