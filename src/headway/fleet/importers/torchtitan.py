"""Import torchtitan's structured logs: `outputs/structured_logs/*.jsonl`, all files of a run.

Each process of each attempt has a file. The lowest rank with a file represents the run.
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

# Buckets of its spans. A `step` is training except for the spans nested in it.
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
    """The log of one process."""

    rank: int
    source: str
    host: str
    begin: float
    end: float
    collected_at: float
    events: Sequence[Mapping[str, Any]]


def detect(source: Source) -> bool:
    """Whether its first line has the fields of torchtitan's formatter."""
    first = next(source.objects(), {}) if source.text.startswith("{") else {}
    return {"log_type_name", "time_us", "seq_id", "rank"} <= first.keys()


def read(sources: Sequence[Source]) -> Iterator[RunRecord]:
    """Yield one run: the files of one rank, in order of time, are its attempts."""
    logs = [log for source in sources if (log := _log(source)) is not None]
    if not logs:
        raise UsageError(f"no event of torchtitan in {source_names(sources)}", code="record-empty")
    by_rank: dict[int, list[RankLog]] = defaultdict(list)
    for log in sorted(logs, key=lambda log: log.begin):
        by_rank[log.rank].append(log)
    logs_of_rank = by_rank[min(by_rank)]
    attempts = [
        _attempt_record(
            log,
            [rank_logs[index] for rank_logs in by_rank.values() if len(rank_logs) > index],
            log is logs_of_rank[-1],
        )
        for index, log in enumerate(logs_of_rank)
    ]
    yield RunRecord(
        key=f"torchtitan {logs_of_rank[0].host} {logs_of_rank[0].begin:.6f}",
        run=f"torchtitan-{logs_of_rank[0].begin:.0f}",
        attempts=tuple(attempts),
        labels={"reader": "torchtitan"},
    )


def _log(source: Source) -> RankLog | None:
    events = [event for event in source.objects() if "time_us" in event]
    if not events:
        return None
    first = events[0]
    return RankLog(
        rank=int(first["rank"]),
        source=str(first["source"]),
        host=str(first["host_name"]),
        begin=first["time_us"] / 1e6,
        end=max(event["time_us"] for event in events) / 1e6,
        collected_at=source.collected_at,
        events=events,
    )


def _attempt_record(log: RankLog, rank_logs: Sequence[RankLog], last: bool) -> AttemptRecord:
    spans, is_complete, error = _spans(log)
    outcome: Outcome = "failed" if error or not last else "completed" if is_complete else "running"
    return AttemptRecord(
        start=log.begin,
        end=log.end,
        outcome=outcome,
        accelerators=len({rank_log.rank for rank_log in rank_logs}),
        spans=tuple(spans),
        hosts=tuple(
            dict.fromkeys(
                rank_log.host for rank_log in sorted(rank_logs, key=lambda rank_log: rank_log.rank)
            )
        ),
        evidence=error or "its log ends and a later one begins",
    )


def _spans(log: RankLog) -> tuple[list[Span], bool, str]:
    """An end closes the last start with the same name and task; open spans last until the end."""
    open_: dict[tuple[str, Any], list[tuple[float, int | None]]] = defaultdict(list)
    spans: list[Span] = []
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
            spans.append(_span(name, *open_[key].pop(), at))
    is_complete = not any(open_.values())
    for (name, _), starts in open_.items():
        spans += [_span(name, start, step, log.end) for start, step in starts]
    spans.sort(key=lambda span: span.start)
    return spans, is_complete, error


def _span(name: str, start: float, step: int | None, end: float) -> Span:
    return Span(start, end, SPAN_BUCKETS[name], step if name == "step" else None)
