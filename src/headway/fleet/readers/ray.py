"""Ray's state: `ray list jobs --detail --format json`, with the tasks beside it where they are.

    TZ=UTC ray list jobs --detail --format json > jobs.json
    TZ=UTC ray list tasks --detail --format json --limit 10000 > tasks.json

Tasks tell which accelerators a job had, and how long its actors waited for a node and a process.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.errors import UsageError
from headway.fleet.readers.record import Life, Record, Span
from headway.fleet.readers.source import Source, instant
from headway.ledger.model import Outcome

Object = Mapping[str, Any]
ENDED: dict[str, Outcome] = {"SUCCEEDED": "completed", "FAILED": "failed", "STOPPED": "stopped"}
DIED = {
    "OUT_OF_MEMORY": "host_oom",
    "NODE_DIED": "node_failure",
    "RUNTIME_ENV_SETUP_FAILED": "platform_start",
    "TASK_EXECUTION_EXCEPTION": "user_code",
}


def recognises(source: Source) -> bool:
    """A list of jobs, or of tasks."""
    first = next(source.objects(), {}) if source.text.lstrip()[:1] in "[{" else {}
    return {"entrypoint", "submission_id"} <= first.keys() or {
        "task_id",
        "func_or_class_name",
    } <= first.keys()


def read(sources: Sequence[Source]) -> Iterator[Record]:
    """One run for each job that has started."""
    jobs: list[tuple[Object, float]] = []
    tasks: dict[str, list[Object]] = defaultdict(list)
    for source in sources:
        for one in source.objects():
            if "entrypoint" in one:
                jobs.append((one, source.taken))
            elif "task_id" in one:
                tasks[one["job_id"]].append(one)
    if not jobs:
        raise UsageError("there are no jobs in it; add `ray list jobs --detail --format json`")
    for job, taken in jobs:
        if job.get("start_time") is not None:
            name = job.get("submission_id") or job["job_id"]
            yield Record(
                key=f"ray {name} {job['start_time']}",
                run=str((job.get("metadata") or {}).get("job_name") or name),
                lives=(_life(job, tasks.get(job.get("job_id") or "", ()), taken),),
                labels={"reader": "ray"},
                command=tuple(_words(job["entrypoint"])),
                exit_code=job.get("driver_exit_code"),
            )


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


def _life(job: Object, tasks: Sequence[Object], taken: float) -> Life:
    start = job["start_time"] / 1000
    outcome = ENDED.get(job["status"], "running")
    end = (job.get("end_time") or 0) / 1000 if outcome != "running" else taken
    actors = [one for one in tasks if (one.get("required_resources") or {}).get("GPU")]
    first = [one for one in actors if not one.get("attempt_number")]
    asked = round(sum(one["required_resources"]["GPU"] for one in first))
    faults = [one["error_type"] for one in tasks if one.get("error_type") in DIED]
    return Life(
        start=start,
        end=max(end, start),
        outcome=outcome,
        accelerators=asked,
        spans=tuple(_waits(first)),
        category=DIED[faults[0]] if faults else "unknown",
        evidence=str(job.get("message") or ""),
    )


def _waits(actors: Sequence[Object]) -> Iterator[Span]:
    """The gang waits for its last actor: first for a node, then for a process on it."""
    asked = [at for one in actors if (at := _at(one, "PENDING_NODE_ASSIGNMENT")) is not None]
    given = [at for one in actors if (at := _at(one, "SUBMITTED_TO_WORKER")) is not None]
    runs = [at for one in actors if (at := _at(one, "RUNNING")) is not None]
    if len(asked) == len(given) == len(actors) and actors:
        yield Span(min(asked), max(given), "scheduling")
        if len(runs) == len(actors):
            yield Span(max(given), max(runs), "hardware_setup")


def _at(task: Object, state: str) -> float | None:
    for event in task.get("events") or ():
        if event["state"] == state:
            at = event["created_ms"]
            return instant(at) if isinstance(at, str) else float(at) / 1000
    return None
