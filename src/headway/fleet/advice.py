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


MAX_ROWS_SHOWN = 15  # rows in a terminal


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetAdviceRow:
    """What one rule would have won in the runs of one job."""

    rule: str
    job: str
    runs: int
    worth: int
    accelerator_ns: int
    points: float  # of the store's ETT by accelerator-hours, on top of the rows before it
    by_confidence: Mapping[str, int]  # accelerator-ns
    most: Advice  # that of the run in which it is worth most
    plan: AdviceReport  # of that run

    @property
    def confidence(self) -> str:
        """That most of it has."""
        return max(CONFIDENCES, key=lambda name: self.by_confidence.get(name, 0))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        proposal = self.most.proposal
        return {
            "rule": self.rule,
            "job": self.job,
            "runs": self.runs,
            "seconds": self.worth / NS,
            "accelerator_hours": self.accelerator_ns / HOUR,
            "points": self.points,
            "confidence": self.confidence,
            "accelerator_hours_by_confidence": {
                name: ns / HOUR for name, ns in self.by_confidence.items()
            },
            "most_in_run": self.plan.ledger.run,
            "title": proposal.title,
            "why": proposal.why,
            "command": run_command(self.plan, [proposal]),
            "code": list(proposal.code),
            "see": proposal.see,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetAdvice:
    """All advice for a store."""

    store: str
    runs: int
    held: int  # accelerator-ns of all runs
    effective: int
    rows: tuple[FleetAdviceRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def ett_percent(self) -> float:
        """By accelerator-hours."""
        return 100.0 * self.effective / self.held if self.held else 0.0

    @property
    def won(self) -> int:
        """Accelerator-ns of all rows."""
        return sum(row.accelerator_ns for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """What `headway advise STORE --json` prints."""
        rest = self.held - self.won
        return {
            "schema": SCHEMA,
            "store": self.store,
            "runs": self.runs,
            "accelerator_hours": self.held / HOUR,
            "lost_accelerator_hours": (self.held - self.effective) / HOUR,
            "ett_percent": self.ett_percent,
            "with_all": {
                "ett_percent": 100.0 * self.effective / rest if rest else 0.0,
                "accelerator_hours": self.won / HOUR,
            },
            "advice": [row.to_dict() for row in self.rows],
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        hours = format_accelerator_hours(self.held)
        told = f"{count(self.runs, 'run')}, {hours}, ETT {percent(self.ett_percent)}"
        yield f"headway: {self.store}: {told}"
        if not self.rows:
            yield "  no rule finds time in these runs that it knows how to win"
        for number, row in enumerate(self.rows[:MAX_ROWS_SHOWN], 1):
            proposal = row.most.proposal
            yield ""
            yield f"  {number}. {row.job}: {one_line(proposal.title, 200)}"
            worth = f"+{row.points:.2f} points, {format_accelerator_hours(row.accelerator_ns)}"
            yield f"     {worth} in {count(row.runs, 'run')}; {row.confidence} confidence"
            run = one_line(row.plan.ledger.run, 60)
            yield f"     most in {run}, {duration(row.most.worth)}: {one_line(proposal.why, 600)}"
            yield from command_lines(row.rule, proposal)
        if len(self.rows) > MAX_ROWS_SHOWN:
            yield f"  and {len(self.rows) - MAX_ROWS_SHOWN} more; see --json"


def advise_fleet(store: Store | Database, since: datetime | None = None) -> FleetAdvice:
    """Every run of a store by itself, with the newest others of the same job and command."""
    runs, tables, notes = _read(store, since)
    lemons = _lemons(store, since)
    ledgers = [
        (run["job"] or "-", stored_ledgers.ledger_from_rows(run, tables[run["run_id"]]))
        for run in runs
    ]
    alike: dict[tuple[str, tuple[str, ...]], list[Ledger]] = defaultdict(list)
    for job, ledger in ledgers:
        alike[job, ledger.command].append(ledger)
    plans = []
    for job, ledger in ledgers:
        others = [
            one for one in alike[job, ledger.command][-MAX_OTHER_RUNS - 1 :] if one is not ledger
        ]
        evidence = Evidence(
            ledger=ledger,
            where=ledger.run,
            others=tuple(OtherRun(ledger=one) for one in others[-MAX_OTHER_RUNS:]),
            lemons=lemons,
        )
        plans.append((job, advise_run(evidence)))
    return collect(store.url, plans, notes)


def collect(
    store: str, plans: Sequence[tuple[str, AdviceReport]], notes: Sequence[str] = ()
) -> FleetAdvice:
    """Plans of many runs by rule and job, the most accelerator-hours first."""
    held = sum(accelerator_ns(plan.ledger, ((0, plan.ledger.wall),)) for _, plan in plans)
    idle = sum(accelerator_ns(plan.ledger, lost_time(plan.ledger)) for _, plan in plans)
    found: dict[tuple[str, str], list[tuple[AdviceReport, Advice]]] = defaultdict(list)
    for job, plan in plans:
        for one in plan.advice:
            found[one.rule, job].append((plan, one))
    ordered = sorted(found.items(), key=lambda item: (-_accelerator_ns(item[1]), item[0]))
    told = []
    rest, effective = held, held - idle
    for (rule, job), members in ordered:
        before, rest = rest, rest - _accelerator_ns(members)
        points = 100.0 * effective / rest - 100.0 * effective / before if rest else 0.0
        told.append(_row(rule, job, members, points))
    said = dict.fromkeys([*notes, *(note for _, plan in plans for note in plan.notes)])
    return FleetAdvice(
        store=redact.text(store),
        runs=len(plans),
        held=held,
        effective=effective,
        rows=tuple(told),
        notes=tuple(said),
    )


def _accelerator_ns(members: Sequence[tuple[AdviceReport, Advice]]) -> int:
    return sum(one.accelerator_ns for _, one in members)


def _row(
    rule: str, job: str, members: Sequence[tuple[AdviceReport, Advice]], points: float
) -> FleetAdviceRow:
    sure: dict[str, int] = defaultdict(int)
    for _, one in members:
        sure[one.proposal.confidence] += one.accelerator_ns
    plan, most = max(members, key=lambda pair: pair[1].accelerator_ns)
    return FleetAdviceRow(
        rule=rule,
        job=job,
        runs=len({id(plan) for plan, _ in members}),
        worth=sum(one.worth for _, one in members),
        accelerator_ns=_accelerator_ns(members),
        points=points,
        by_confidence=dict(sure),
        most=most,
        plan=plan,
    )


def _read(
    store: Store | Database, since: datetime | None
) -> tuple[
    list[stored_ledgers.StoreRow], dict[str, dict[str, list[stored_ledgers.StoreRow]]], list[str]
]:
    """The runs that began since then, and their rows of each table."""
    answers = {name: _query(store, name, since) for name in stored_ledgers.LEDGER_TABLES}
    runs = sorted(answers["runs"][0], key=lambda row: row["started_at"])
    runs = [row for row in runs if since is None or row["started_at"] >= since]
    tables: dict[str, dict[str, list[stored_ledgers.StoreRow]]] = {
        run["run_id"]: {name: [] for name in stored_ledgers.LEDGER_TABLES} for run in runs
    }
    for name, (found, _) in answers.items():
        for row in found:
            if row["run_id"] in tables:
                tables[row["run_id"]][name].append(row)
    notes = [note for _, told in answers.values() for note in told]
    return runs, tables, list(dict.fromkeys(notes))


def _query(
    store: Store | Database, name: str, since: datetime | None
) -> tuple[list[stored_ledgers.StoreRow], tuple[str, ...]]:
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.reader import run_query

    if isinstance(store, Store):
        answer = run_query(store, lambda tables: tables[name], since=since)
    else:
        answer = store.ask(lambda tables: tables[name])
    return answer.rows.to_pylist(), answer.notes


def _lemons(store: Store | Database, since: datetime | None) -> dict[str, float]:
    """Hosts that fail beyond chance, and what share of their failures that is."""
    from headway.fleet.queries.dimensions import Filter
    from headway.fleet.regressions.hosts import find_lemons
    from headway.fleet.regressions.load import read_hosts
    from headway.fleet.store.parquet import Store

    if not isinstance(store, Store):
        return {}
    hosts = read_hosts(store, Filter((), since))
    found = find_lemons(hosts.names, hosts.failures, hosts.hours)
    return {one.host: 1 - one.expected / one.failures for one in found}
