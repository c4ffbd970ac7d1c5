"""Advice for all runs of a store: the rules of each run, summed by rule and job."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headway import redact
from headway.advise.gather import MAX_OTHER_RUNS
from headway.advise.gather import advise as advise_run
from headway.advise.model import CONFIDENCES, Advice, AdviceReport, Evidence, OtherRun
from headway.advise.replay import accelerator_ns, lost_time
from headway.advise.show import HOUR, SCHEMA, command_lines, format_accelerator_hours, run_command
from headway.fleet import stored_ledgers
from headway.format import count, duration, one_line, percent
from headway.ledger.model import Ledger
from headway.units import NS

if TYPE_CHECKING:
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.postgres import Database


MAX_ROWS_SHOWN = 15  # in a terminal


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetAdviceRow:
    """What one rule would have gained in the runs of one job."""

    rule: str
    job: str
    runs: int
    gain: int
    accelerator_ns: int
    points: float  # of the store's ETT by accelerator-hours, in addition to earlier rows
    by_confidence: Mapping[str, int]  # accelerator-ns
    largest: Advice  # of the run with the largest gain
    report: AdviceReport  # of that run

    @property
    def confidence(self) -> str:
        """The confidence of most of the gain."""
        return max(CONFIDENCES, key=lambda name: self.by_confidence.get(name, 0))

    def to_dict(self) -> dict[str, Any]:
        proposal = self.largest.proposal
        return {
            "rule": self.rule,
            "job": self.job,
            "runs": self.runs,
            "seconds": self.gain / NS,
            "accelerator_hours": self.accelerator_ns / HOUR,
            "points": self.points,
            "confidence": self.confidence,
            "accelerator_hours_by_confidence": {
                name: ns / HOUR for name, ns in self.by_confidence.items()
            },
            "most_in_run": self.report.ledger.run,
            "title": proposal.title,
            "why": proposal.why,
            "command": run_command(self.report, [proposal]),
            "code": list(proposal.code),
            "see": proposal.see,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetAdvice:
    """All advice for a store."""

    store: str
    runs: int
    accelerator_ns: int  # of all runs
    effective: int
    rows: tuple[FleetAdviceRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def ett_percent(self) -> float:
        """Weighted by accelerator-hours."""
        return 100.0 * self.effective / self.accelerator_ns if self.accelerator_ns else 0.0

    @property
    def gained_ns(self) -> int:
        """Gain of all rows, in accelerator-ns."""
        return sum(row.accelerator_ns for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The output of `headway advise STORE --json`."""
        rest = self.accelerator_ns - self.gained_ns
        return {
            "schema": SCHEMA,
            "store": self.store,
            "runs": self.runs,
            "accelerator_hours": self.accelerator_ns / HOUR,
            "lost_accelerator_hours": (self.accelerator_ns - self.effective) / HOUR,
            "ett_percent": self.ett_percent,
            "with_all": {
                "ett_percent": 100.0 * self.effective / rest if rest else 0.0,
                "accelerator_hours": self.gained_ns / HOUR,
            },
            "advice": [row.to_dict() for row in self.rows],
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """The output in a terminal."""
        hours = format_accelerator_hours(self.accelerator_ns)
        summary = f"{count(self.runs, 'run')}, {hours}, ETT {percent(self.ett_percent)}"
        yield f"headway: {self.store}: {summary}"
        if not self.rows:
            yield "  no rule finds time to gain in these runs"
        for number, row in enumerate(self.rows[:MAX_ROWS_SHOWN], 1):
            proposal = row.largest.proposal
            yield ""
            yield f"  {number}. {row.job}: {one_line(proposal.title, 200)}"
            gain = f"+{row.points:.2f} points, {format_accelerator_hours(row.accelerator_ns)}"
            yield f"     {gain} in {count(row.runs, 'run')}; {row.confidence} confidence"
            run = one_line(row.report.ledger.run, 60)
            most = f"most in {run}, {duration(row.largest.marginal)}"
            yield f"     {most}: {one_line(proposal.why, 600)}"
            yield from command_lines(row.rule, proposal)
        if len(self.rows) > MAX_ROWS_SHOWN:
            yield f"  and {len(self.rows) - MAX_ROWS_SHOWN} more; see --json"


def advise_fleet(store: Store | Database, since: datetime | None = None) -> FleetAdvice:
    """Advise each run, compared with the newest other runs of the same job and command."""
    runs, tables, notes = _read(store, since)
    lemons = _lemons(store, since)
    ledgers = [
        (run["job"] or "-", stored_ledgers.ledger_from_rows(run, tables[run["run_id"]]))
        for run in runs
    ]
    by_command: dict[tuple[str, tuple[str, ...]], list[Ledger]] = defaultdict(list)
    for job, ledger in ledgers:
        by_command[job, ledger.command].append(ledger)
    reports = []
    for job, ledger in ledgers:
        others = [
            other
            for other in by_command[job, ledger.command][-MAX_OTHER_RUNS - 1 :]
            if other is not ledger
        ]
        evidence = Evidence(
            ledger=ledger,
            where=ledger.run,
            others=tuple(OtherRun(ledger=other) for other in others[-MAX_OTHER_RUNS:]),
            lemons=lemons,
        )
        reports.append((job, advise_run(evidence)))
    return collect(store.url, reports, notes)


def collect(
    store: str, reports: Sequence[tuple[str, AdviceReport]], notes: Sequence[str] = ()
) -> FleetAdvice:
    """Sum the advice of many runs by rule and job, most accelerator-hours first."""
    accelerator_time = sum(
        accelerator_ns(report.ledger, ((0, report.ledger.wall),)) for _, report in reports
    )
    idle = sum(accelerator_ns(report.ledger, lost_time(report.ledger)) for _, report in reports)
    by_rule: dict[tuple[str, str], list[tuple[AdviceReport, Advice]]] = defaultdict(list)
    for job, report in reports:
        for advice in report.advice:
            by_rule[advice.rule, job].append((report, advice))
    ordered = sorted(by_rule.items(), key=lambda item: (-_accelerator_ns(item[1]), item[0]))
    rows = []
    rest, effective = accelerator_time, accelerator_time - idle
    for (rule, job), members in ordered:
        before, rest = rest, rest - _accelerator_ns(members)
        points = 100.0 * effective / rest - 100.0 * effective / before if rest else 0.0
        rows.append(_row(rule, job, members, points))
    all_notes = dict.fromkeys([*notes, *(note for _, report in reports for note in report.notes)])
    return FleetAdvice(
        store=redact.text(store),
        runs=len(reports),
        accelerator_ns=accelerator_time,
        effective=effective,
        rows=tuple(rows),
        notes=tuple(all_notes),
    )


def _accelerator_ns(members: Sequence[tuple[AdviceReport, Advice]]) -> int:
    return sum(advice.accelerator_ns for _, advice in members)


def _row(
    rule: str, job: str, members: Sequence[tuple[AdviceReport, Advice]], points: float
) -> FleetAdviceRow:
    by_confidence: dict[str, int] = defaultdict(int)
    for _, advice in members:
        by_confidence[advice.proposal.confidence] += advice.accelerator_ns
    report, largest = max(members, key=lambda pair: pair[1].accelerator_ns)
    return FleetAdviceRow(
        rule=rule,
        job=job,
        runs=len({id(report) for report, _ in members}),
        gain=sum(advice.marginal for _, advice in members),
        accelerator_ns=_accelerator_ns(members),
        points=points,
        by_confidence=dict(by_confidence),
        largest=largest,
        report=report,
    )


def _read(
    store: Store | Database, since: datetime | None
) -> tuple[
    list[stored_ledgers.StoreRow], dict[str, dict[str, list[stored_ledgers.StoreRow]]], list[str]
]:
    """The runs that began since `since`, and their rows of each table."""
    answers = {name: _query(store, name, since) for name in stored_ledgers.LEDGER_TABLES}
    runs = sorted(answers["runs"][0], key=lambda row: row["started_at"])
    runs = [row for row in runs if since is None or row["started_at"] >= since]
    tables: dict[str, dict[str, list[stored_ledgers.StoreRow]]] = {
        run["run_id"]: {name: [] for name in stored_ledgers.LEDGER_TABLES} for run in runs
    }
    for name, (rows, _) in answers.items():
        for row in rows:
            if row["run_id"] in tables:
                tables[row["run_id"]][name].append(row)
    notes = [note for _, messages in answers.values() for note in messages]
    return runs, tables, list(dict.fromkeys(notes))


def _query(
    store: Store | Database, name: str, since: datetime | None
) -> tuple[list[stored_ledgers.StoreRow], tuple[str, ...]]:
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.reader import run_query

    if isinstance(store, Store):
        answer = run_query(store, lambda tables: tables[name], since=since)
    else:
        answer = store.query(lambda tables: tables[name])
    return answer.rows.to_pylist(), answer.notes


def _lemons(store: Store | Database, since: datetime | None) -> dict[str, float]:
    """Hosts that fail significantly more often than expected, and that share of their failures."""
    from headway.fleet.queries.dimensions import Filter
    from headway.fleet.regressions.hosts import find_lemons
    from headway.fleet.regressions.load import read_hosts
    from headway.fleet.store.parquet import Store

    if not isinstance(store, Store):
        return {}
    hosts = read_hosts(store, Filter((), since))
    lemons = find_lemons(hosts.names, hosts.failures, hosts.hours)
    return {lemon.host: 1 - lemon.expected / lemon.failures for lemon in lemons}
