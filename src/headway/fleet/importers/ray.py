"""Import Ray's state: the output of `ray list jobs`, optionally with `ray list tasks`.

    TZ=UTC ray list jobs --detail --format json > jobs.json
    TZ=UTC ray list tasks --detail --format json --limit 10000 > tasks.json

Tasks show which accelerators a job had, and how long its actors waited for a node and a process.
Actors of one placement group, or actors that run at the same time, are one attempt; a group that
starts after they have ended is the next attempt.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headway.errors import UsageError
from headway.fleet.importers.record import AttemptRecord, RunRecord, Span
from headway.fleet.importers.source import Source, parse_iso8601, source_names
from headway.ledger.model import Outcome

Object = Mapping[str, Any]
ENDED: dict[str, Outcome] = {"SUCCEEDED": "completed", "FAILED": "failed", "STOPPED": "stopped"}
TOGETHER_S = 60.0  # actors without a placement group are requested within this time of each other
ERROR_CATEGORIES = {
    "OUT_OF_MEMORY": "host_oom",
    "NODE_DIED": "node_failure",
    "RUNTIME_ENV_SETUP_FAILED": "platform_start",
    "TASK_EXECUTION_EXCEPTION": "user_code",
}


def detect(source: Source) -> bool:
    """Whether it is a list of jobs or of tasks."""
    first = next(source.objects(), {}) if source.text.lstrip()[:1] in "[{" else {}
    return {"entrypoint", "submission_id"} <= first.keys() or {
        "task_id",
        "func_or_class_name",
    } <= first.keys()


def read(sources: Sequence[Source]) -> Iterator[RunRecord]:
    """Yield a run per job that has started."""
    jobs: list[tuple[Object, float]] = []
    tasks: dict[str, list[Object]] = defaultdict(list)
    for source in sources:
        for item in source.objects():
            if "entrypoint" in item:
                jobs.append((item, source.collected_at))
            elif "task_id" in item:
                tasks[item["job_id"]].append(item)
    if not jobs:
        raise UsageError(
            f"no jobs in {source_names(sources)}; "
            "add the output of `ray list jobs --detail --format json`",
            code="record-empty",
        )
    for job, collected_at in jobs:
        if job.get("start_time") is not None:
            name = job.get("submission_id") or job["job_id"]
            yield RunRecord(
                key=f"ray {name} {job['start_time']}",
                run=str((job.get("metadata") or {}).get("job_name") or name),
                attempts=tuple(
                    _attempt_records(job, tasks.get(job.get("job_id") or "", ()), collected_at)
                ),
                labels={"reader": "ray"},
                command=tuple(_words(job["entrypoint"])),
                exit_code=job.get("driver_exit_code"),
            )


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


class _Group(NamedTuple):
    """Actors with accelerators that were requested together."""

    actors: list[Object]
    begin: float
    end: float  # last known time of any of them


def _attempt_records(
    job: Object, tasks: Sequence[Object], collected_at: float
) -> Iterator[AttemptRecord]:
    """An attempt ends when its last actor has ended, or when the next attempt begins."""
    start = job["start_time"] / 1000
    outcome = ENDED.get(job["status"], "running")
    end = (job.get("end_time") or 0) / 1000 if outcome != "running" else collected_at
    attempts = _attempts(tasks)
    errors = _errors(tasks, attempts)
    for number, groups in enumerate(attempts):
        last = number == len(attempts) - 1
        begin = end if last else min(group.begin for group in attempts[number + 1])
        until = end if last else min(max(group.end for group in groups), begin)
        yield AttemptRecord(
            start=start,
            end=max(until, start),
            outcome=outcome if last else "failed",
            accelerators=_at_once(groups),
            spans=tuple(_waits([actor for group in groups for actor in group.actors])),
            category=errors.get(number, "unknown"),
            evidence=str(job.get("message") or "") if last else "its actors were replaced",
        )
        start = begin


def _attempts(tasks: Sequence[Object]) -> list[list[_Group]]:
    """Groups of actors that run at the same time; at least one attempt, possibly without actors."""
    last_seen: dict[str, float] = {}  # last known time of each actor
    for task in tasks:
        name = str(task.get("actor_id") or task["task_id"])
        last_seen[name] = max(last_seen.get(name, 0.0), _end(task))
    groups: dict[str, _Group] = {}
    for task in tasks:
        if (task.get("required_resources") or {}).get("GPU") and not task.get("attempt_number"):
            begin = _at(task, "PENDING_NODE_ASSIGNMENT") or 0.0
            end = last_seen[str(task.get("actor_id") or task["task_id"])]
            if not task.get("placement_group_id") and end <= _end(task):
                end += TOGETHER_S  # the end of the actor is unknown
            name = str(task.get("placement_group_id") or task["task_id"])
            old = groups.get(name, _Group([], begin, end))
            groups[name] = _Group([*old.actors, task], min(old.begin, begin), max(old.end, end))
    attempts: list[list[_Group]] = []
    for group in sorted(groups.values(), key=lambda group: group.begin):
        if attempts and group.begin <= max(other.end for other in attempts[-1]):
            attempts[-1].append(group)
        else:
            attempts.append([group])
    return attempts or [[]]


def _at_once(groups: Sequence[_Group]) -> int:
    """The maximum number of accelerators at any time."""
    return max(
        (
            round(
                sum(
                    actor["required_resources"]["GPU"]
                    for other in groups
                    if other.begin <= group.begin <= other.end
                    for actor in other.actors
                )
            )
            for group in groups
        ),
        default=0,
    )


def _errors(tasks: Sequence[Object], attempts: Sequence[Sequence[_Group]]) -> dict[int, str]:
    """The category of the first known error of each attempt; errors outside actors belong to the
    last.
    """
    attempt_of = {
        actor.get(key): number
        for number, groups in enumerate(attempts)
        for group in groups
        for actor in group.actors
        for key in ("actor_id", "task_id")
    }
    categories: dict[int, str] = {}
    for task in tasks:
        if task.get("error_type") in ERROR_CATEGORIES:
            name = task.get("actor_id") or task["task_id"]
            categories.setdefault(
                attempt_of.get(name, len(attempts) - 1), ERROR_CATEGORIES[task["error_type"]]
            )
    return categories


def _waits(actors: Sequence[Object]) -> Iterator[Span]:
    """The gang waits for its last actor: for a node, then for a process on it."""
    requested = [
        at for actor in actors if (at := _at(actor, "PENDING_NODE_ASSIGNMENT")) is not None
    ]
    assigned = [at for actor in actors if (at := _at(actor, "SUBMITTED_TO_WORKER")) is not None]
    running = [at for actor in actors if (at := _at(actor, "RUNNING")) is not None]
    if len(requested) == len(assigned) == len(actors) and actors:
        yield Span(min(requested), max(assigned), "scheduling")
        if len(running) == len(actors):
            yield Span(max(assigned), max(running), "hardware_setup")


def _end(task: Object) -> float:
    """The last known time of a task."""
    times = [_seconds(event["created_ms"]) for event in task.get("events") or ()]
    end_time = task.get("end_time_ms")
    return max([*times, *([_seconds(end_time)] if end_time else [])], default=0.0)


def _at(task: Object, state: str) -> float | None:
    for event in task.get("events") or ():
        if event["state"] == state:
            return _seconds(event["created_ms"])
    return None


def _seconds(at: Any) -> float:
    """The CLI writes times as ISO 8601, the API in milliseconds."""
    return parse_iso8601(at) if isinstance(at, str) else float(at) / 1000
