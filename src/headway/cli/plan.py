"""Estimate the ETT% of a job before it runs, and its best checkpoint interval.

examples:
  headway plan --failures-a-day 3 --block 15s
  headway plan --nodes 8,64,512 --mtbf 60d --block 15s --durable 2min --tts 10min --ttr 5min
  headway plan --from headway/night-1 --nodes 128 --compile 0s
  headway plan --from ./store --where team=ads --nodes 16,256 --html plan.html

Durations are like 90s, 5min, 2h or 7d; a plain number is in seconds. The result shows a closed form
and a simulation of the job with random failures. `--from` uses the measurements of a run or a
store; other options override them.
"""

from __future__ import annotations

import argparse
import math
import re
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.plan.measured import Measured
    from headway.plan.plan import Plan

BEST = "best"
# A flag, the field of JobSpec that it sets, and its help.
TIMES = (
    ("block", "block", "time that a save blocks training"),
    ("durable", "durable", "time from then until the save is durable"),
    ("tts", "start", "Time to Start, without compilation"),
    ("ttr", "recover", "Time to Recover, without compilation and the wait for machines"),
    ("requeue", "requeue", "wait for machines after each failure"),
    ("compile", "compile", "compilation in the first start"),
    ("compile-again", "compile_again", "compilation in each start after a failure (as --compile)"),
)
_FAILURES = re.compile(r"(\d+(?:\.\d+)?)(?:@(\d+))?")


def prepare(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--nodes", metavar="N,...", help="number of nodes; several for a sweep (1)")
    add("--mtbf", metavar="TIME", help="mean time between failures of one node")
    add("--failures-a-day", metavar="X[@N]", help="failures per day, measured on N nodes (1)")
    add("--interval", metavar="TIME,...", default=BEST, help="time between saves, or best (best)")
    add("--length", metavar="TIME", default="14d", help="training time that the job needs (14d)")
    for flag, _, text in TIMES:
        add(f"--{flag}", metavar="TIME", help=text)
    add(
        "--from",
        dest="source",
        metavar="RUN|STORE",
        help="use the measurements of a run or a store",
    )
    add("--where", metavar="NAME=VALUE", action="append", help="store: only these runs")
    add("--since", metavar="WHEN", help="store: since 30d, 12h or 2w ago, or a date")
    add("--trials", type=int, default=2000, metavar="N", help="number of simulations (2000)")
    add("--seed", type=int, default=1, metavar="N", help="random seed (1)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print all figures as JSON")
    how.add_argument("--csv", action="store_true", help="print the curves as CSV")
    how.add_argument("--html", metavar="FILE", help="write one HTML file")
    add("--force", action="store_true", help="overwrite the HTML file")


def run(args: argparse.Namespace) -> int:
    from headway.storage import output_file

    if args.html:
        output_file.check_output(Path(args.html), force=args.force)
    plan = _plan(args)
    if args.json:
        import json

        print(json.dumps(plan.to_dict(), indent=1))
    elif args.csv:
        from headway.plan import view

        print(view.csv_text(plan), end="")
    elif args.html:
        from headway.plan.html import html_page

        output_file.write_output(Path(args.html), html_page(plan).encode(), force=args.force)
        print(f"headway: wrote {args.html}")
    else:
        from headway.plan.view import terminal_text

        print(terminal_text(plan))
    return 0


def _plan(args: argparse.Namespace) -> Plan:
    from headway.plan.job import JobSpec
    from headway.plan.plan import plan

    measured = _measured(args) if args.source else None
    values: dict[str, Any] = {**(measured.values if measured else {}), **_typed(args)}
    if "mtbf" not in values:
        raise UsageError(
            "the failure rate of nodes is not known; give --mtbf, --failures-a-day or --from",
            code="mtbf-unknown",
        )
    nodes = _nodes(args.nodes, measured)
    job = JobSpec(nodes=nodes[0], length=_time(args.length, "--length"), **values)
    intervals = [_interval(text) for text in _split(args.interval, "--interval")]
    try:
        return plan(job, nodes, intervals, trials=args.trials, seed=args.seed, measured=measured)
    except UsageError as error:
        if (
            error.code == "too-many-failures"
            and measured is not None
            and job.mtbf == measured.mtbf_s
        ):
            raise _too_short(measured, args.length) from None
        raise


def _too_short(measured: Measured, length: str) -> UsageError:
    """The failure rate of a short run is high because it is uncertain."""
    from headway.format import count

    return UsageError(
        f"{measured.source} has {count(measured.failures, 'failure')} in "
        f"{measured.node_hours:.3g} node-hours, too few for a failure rate (at most "
        f"{measured.failures_high or 0.0:.3g} a node and day); give --mtbf or --failures-a-day, "
        f"or a shorter --length than {length}",
        code="rate-unknown",
    )


def _typed(args: argparse.Namespace) -> dict[str, float]:
    """Fields of a JobSpec that were given as options."""
    fields = {}
    if args.mtbf is not None and args.failures_a_day is not None:
        raise UsageError(
            "--mtbf and --failures-a-day mean the same; give one of them", code="options-conflict"
        )
    if args.mtbf is not None:
        fields["mtbf"] = _time(args.mtbf, "--mtbf")
    if args.failures_a_day is not None:
        fields["mtbf"] = _parse_failure_rate(args.failures_a_day)
    for flag, field, _ in TIMES:
        value = getattr(args, flag.replace("-", "_"))
        if value is not None:
            fields[field] = _time(value, f"--{flag}")
    if "compile" in fields:
        fields.setdefault("compile_again", fields["compile"])
    return fields


def _time(text: str, flag: str) -> float:
    from headway.units import parse_duration

    seconds = parse_duration(f"{text}s" if re.fullmatch(r"[\d.]+", text) else text)
    if seconds is None:
        raise UsageError(
            f"{flag} is {text!r}, which is not a duration; give one such as 90s, 5min or 2h",
            code="time-invalid",
            option=flag,
        )
    return seconds


def _interval(text: str) -> float | None:
    return None if text == BEST else _time(text, "--interval")


def _parse_failure_rate(text: str) -> float:
    """Seconds between failures of one node, from `3@64`: 3 failures a day on 64 nodes."""
    from headway.plan.job import DAY

    match = _FAILURES.fullmatch(text)
    nodes = int(match[2] or 1) if match else 0
    if not match or not nodes:
        raise UsageError(
            f"--failures-a-day is {text!r}; give a number such as 3, or 3@64 for 3 on 64 nodes",
            code="rate-invalid",
        )
    return nodes * DAY / float(match[1]) if float(match[1]) else math.inf


def _nodes(text: str | None, measured: Measured | None) -> list[int]:
    if text is None:
        if measured is not None and measured.nodes is None:
            raise UsageError(
                "a store has jobs of many sizes; give the number of --nodes of this job",
                code="nodes-unknown",
            )
        return [1 if measured is None or measured.nodes is None else measured.nodes]
    counts = _split(text, "--nodes")
    if not all(part.isascii() and part.isdecimal() and int(part) for part in counts):
        raise UsageError(
            f"--nodes is {text!r}; give numbers of 1 or more, such as 8,64,512",
            code="nodes-invalid",
        )
    return [int(part) for part in counts]


def _split(text: str, flag: str) -> list[str]:
    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise UsageError(
            f"{flag} is {text!r}, which is an empty list", code="list-empty", option=flag
        )
    return parts


def _measured(args: argparse.Namespace) -> Measured:
    """Measurements of a run or a store."""
    if _is_store(args.source):
        return _from_store(args)
    from headway.plan.measured import measured_by_run
    from headway.run import load

    if args.where or args.since:
        raise UsageError(
            f"{args.source} is not a store; --where and --since work only on a store",
            code="option-not-allowed",
        )
    run = load(args.source)
    return measured_by_run(run.ledger, run.name)


def _is_store(source: str) -> bool:
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.postgres import SCHEMES
    from headway.journal.run_files import JOURNAL

    if source.startswith(SCHEMES):
        return True
    if "://" in source:
        return Store(source).exists()
    return Path(source).is_dir() and not (Path(source) / JOURNAL).is_dir()


def _from_store(args: argparse.Namespace) -> Measured:
    from datetime import datetime

    from headway.cli.common import open_any, parse_conditions, store_errors
    from headway.fleet.queries.dimensions import Filter
    from headway.fleet.queries.planning import measured_in_store
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.reader import QueryFn, run_query
    from headway.units import parse_time

    store = open_any(args.source)
    if isinstance(store, Store):
        store.check()
    now = datetime.now(UTC).replace(tzinfo=None)
    filter_ = Filter(since=parse_time(args.since, now), where=parse_conditions(args.where))

    def first_row(query: QueryFn) -> dict[str, Any]:
        answer = (
            run_query(store, query, since=filter_.since)
            if isinstance(store, Store)
            else store.query(query)
        )
        row: dict[str, Any] = answer.rows.to_pylist()[0]
        return row

    with store_errors(store):
        return measured_in_store(first_row, filter_, store.url)
