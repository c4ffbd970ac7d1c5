"""torchtitan's structured logs: `outputs/structured_logs/*.jsonl`, all files of a run together.

Each process of each attempt has a file. The lowest rank that is there stands for the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headway.errors import UsageError
from headway.fleet.importers.record import AttemptRecord, RunRecord, Span
from headway.fleet.importers.source import Source, source_names
from headway.ledger.buckets import EFFECTIVE
from headway.ledger.model import Outcome

# Its spans, and what the time in them is. `step` is training, but for what is nested in it.
SPAN_BUCKETS = {
    "torch_distributed_init": "process_group_init",
    "model_parallelism_init": "train_module_creation",
    "checkpoint_load": "checkpoint_load",
    "step": EFFECTIVE,
    "fetching_batch": "waste.data_stall",
    "checkpoint_save": "waste.checkpoint_block",
    "eval": "waste.evaluation",
}


class RankLog(NamedTuple):
    """What one process has written."""

    rank: int
    source: str
    host: str
    begin: float
    end: float
    taken: float
    events: Sequence[Mapping[str, Any]]


def recognises(source: Source) -> bool:
    """Its first line has the fields of torchtitan's formatter."""
    first = next(source.objects(), {}) if source.text.startswith("{") else {}
    return {"log_type_name", "time_us", "seq_id", "rank"} <= first.keys()


def read(sources: Sequence[Source]) -> Iterator[RunRecord]:
    """One run out of all files: files of one rank follow each other, and are its lives."""
    logs = [log for source in sources if (log := _log(source)) is not None]
    if not logs:
        raise UsageError(f"{source_names(sources)}: no event of torchtitan", code="record-empty")
    by_rank: dict[int, list[RankLog]] = defaultdict(list)
    for log in sorted(logs, key=lambda log: log.begin):
        by_rank[log.rank].append(log)
    told = by_rank[min(by_rank)]
    lives = [
        _attempt_record(
            log, [each[index] for each in by_rank.values() if len(each) > index], log is told[-1]
        )
        for index, log in enumerate(told)
    ]
    yield RunRecord(
        key=f"torchtitan {told[0].host} {told[0].begin:.6f}",
        run=f"torchtitan-{told[0].begin:.0f}",
        lives=tuple(lives),
        labels={"reader": "torchtitan"},
    )


def _log(source: Source) -> RankLog | None:
    events = [one for one in source.objects() if "time_us" in one]
    if not events:
        return None
    first = events[0]
    return RankLog(
        rank=int(first["rank"]),
        source=str(first["source"]),
        host=str(first["host_name"]),
        begin=first["time_us"] / 1e6,
        end=max(one["time_us"] for one in events) / 1e6,
        taken=source.taken,
        events=events,
    )


def _attempt_record(log: RankLog, beside: Sequence[RankLog], last: bool) -> AttemptRecord:
    spans, whole, error = _spans(log)
    outcome: Outcome = "failed" if error or not last else "completed" if whole else "running"
    return AttemptRecord(
        start=log.begin,
        end=log.end,
        outcome=outcome,
        accelerators=len({one.rank for one in beside}),
        spans=tuple(spans),
        hosts=tuple(dict.fromkeys(one.host for one in sorted(beside, key=lambda one: one.rank))),
        evidence=error or "its log ends, and a later one begins",
    )


def _spans(log: RankLog) -> tuple[list[Span], bool, str]:
    """An end belongs to the last start of its name and task; what never ends lasts to the end."""
    open_: dict[tuple[str, Any], list[tuple[float, int | None]]] = defaultdict(list)
    found: list[Span] = []
    error = ""
    for event in log.events:
        name, _, edge = str(event["log_type_name"]).rpartition("_")
        if event.get("log_type") != "event" or name not in SPAN_BUCKETS:
            continue
        key, at = (name, event.get("task_name")), event["time_us"] / 1e6
        if edge == "start":
            open_[key].append((at, event.get("step")))
        elif edge == "error":
            error = str(event.get("message"))
        elif edge == "end" and open_[key]:
            found.append(_span(name, *open_[key].pop(), at))
    whole = not any(open_.values())
    for (name, _), starts in open_.items():
        found += [_span(name, start, step, log.end) for start, step in starts]
    found.sort(key=lambda span: span.start)
    return found, whole, error


def _span(name: str, start: float, step: int | None, end: float) -> Span:
    return Span(start, end, SPAN_BUCKETS[name], step if name == "step" else None)
