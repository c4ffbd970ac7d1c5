"""Runs in the peer's own environment: timelines as JSON in, what ml-goodput-measurement says out.

Its `cloud_logger=` seam takes any object that keeps entries, so that recorder and calculator work
without an account; timestamps are given, and its clock is set to the moment of the question.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
import tempfile
import types
from importlib.metadata import version
from typing import Any

from ml_goodput_measurement.src import goodput

EPOCH = 1_790_000_000
# Our stages and the recorder's calls for the same.
STAGES = {
    "device_init": "tpu_init",
    "train_module_creation": "training_preparation",
    "get_first_batch_data": "data_loading",
    "data_wait": "data_loading",
}


class Log:
    """All that the library asks of Cloud Logging."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)

    def flush(self) -> None:
        pass

    def read_cloud_logging_entries(self, *_: Any, **__: Any) -> tuple[list[dict[str, Any]], Any]:
        return list(self.entries), (Clock.now(), str(len(self.entries)))


class Clock(datetime.datetime):
    """A clock that stands where the scenario says."""

    at = 0.0

    @classmethod
    def now(cls, tz: Any = None) -> datetime.datetime:  # type: ignore[override]
        return _time(cls.at)


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(EPOCH + seconds, tz=datetime.UTC)


def record(recorder: Any, life: dict[str, Any], every: int, last: bool) -> None:
    """One life, as a training script calls the recorder, by the clock of its host."""
    behind = life["host"]["wall"]
    calls: list[tuple[float, str, tuple[Any, ...]]] = [(life["start"], "job_start", ())]
    spans = [(n, life["start"] + s, life["start"] + e) for n, s, e in life["init"]]
    spans += [(p["name"], p["start"], p["end"]) for p in life["pauses"]]
    for name, start, end in spans:
        if name in STAGES:  # it has no call for a compile or for publishing
            calls += [(start, f"{STAGES[name]}_start", ()), (end, f"{STAGES[name]}_end", ())]
    number = life["resumed"]
    for steps in life["steps"]:
        for index in range(steps["count"]):
            if number % every == 0:
                calls.append((steps["start"] + index * steps["each"], "step_start", (number,)))
            number += 1
    if last:
        calls.append((life["end"], "job_end", ()))
    for at, call, arguments in sorted(calls, key=lambda c: (c[0], c[1] == "step_start")):
        getattr(recorder, f"record_{call}_time")(*arguments, _time(at + behind))


def ask(job: str, log: Log, folder: str, at: float) -> tuple[float, dict[str, float]]:
    """A new calculator's answer at one moment: goodput and badput, in percent."""
    Clock.at = at
    calculator = goodput.GoodputCalculator(job, "log", cloud_logger=log, cache_dir=folder)
    percent, badput, _ = calculator.get_job_goodput(include_badput_breakdown=True)
    buckets = {}
    for kind, value in badput.items():
        total = sum(value.values()) if isinstance(value, dict) else value
        if total:
            buckets[kind.name] = total
    return percent, buckets


def run(number: int, timeline: dict[str, Any], folder: str) -> dict[str, Any]:
    """Write one timeline and ask for its result, after its end."""
    job, log = f"job-{number}", Log()
    recorder = goodput.GoodputRecorder(job, "log", True, cloud_logger=log)
    lives = timeline["lives"]
    for index, life in enumerate(lives):
        record(recorder, life, timeline["log_every"], last=index == len(lives) - 1)
        if timeline["stale_cache"] and index == 0:
            ask(job, log, folder, life["end"])
    end = lives[-1]["end"] + lives[-1]["host"]["wall"]
    percent, buckets = ask(job, log, folder, end)
    # By its own words, loads called ASYNC overlap with training and are no badput.
    counted = sum(v for kind, v in buckets.items() if kind != "DATA_LOADING_ASYNC")
    return {"ett": percent, "sum": percent + counted, "buckets": buckets}


def main() -> None:
    logging.disable(logging.CRITICAL)
    goodput.datetime = types.SimpleNamespace(
        datetime=Clock, timezone=datetime.timezone, timedelta=datetime.timedelta
    )
    timelines = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        results = [run(number, timeline, folder) for number, timeline in enumerate(timelines)]
    print(json.dumps({"version": version("ml-goodput-measurement"), "results": results}))


if __name__ == "__main__":
    main()
