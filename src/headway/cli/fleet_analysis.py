"""`headway fleet regressions` and `headway fleet alerts`."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import UsageError, with_code

if TYPE_CHECKING:
    from headway.fleet.alerts.rules import Rules
    from headway.fleet.regressions.findings import Finding
    from headway.fleet.regressions.scan import ScanResult
    from headway.fleet.store.parquet import Store


DEFAULT_SLICES = "team,model"
MAX_PARTS = 3  # of a slice, in the output
ALERT_COLUMNS = ("id", "state", "severity", "rule", "slice", "since", "until", "by", "text")


def prepare_regressions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument(
        "--by",
        metavar="NAMES",
        default=DEFAULT_SLICES,
        help=f"fields of the slices ({DEFAULT_SLICES})",
    )
    parser.add_argument("--where", metavar="NAME=VALUE", action="append", help="only these runs")
    parser.add_argument("--since", metavar="WHEN", help="since 30d, 12h or 2w ago, or a date")
    parser.add_argument("--until", metavar="WHEN", help="until then; now by default")
    parser.add_argument(
        "--level",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="accepted share of false findings among the reported slices (0.05)",
    )
    parser.add_argument(
        "--points",
        type=float,
        default=0.5,
        metavar="N",
        help="minimum change in percentage points (0.5)",
    )
    parser.add_argument(
        "--dependent",
        action="store_true",
        help="control the level under any dependence between slices",
    )
    parser.add_argument("--gains", action="store_true", help="also show improvements")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_regressions(args: argparse.Namespace) -> int:
    from headway.cli.common import open_store, parse_conditions, split_names
    from headway.units import parse_time

    if not 0 < args.level < 1:
        raise UsageError(
            f"--level is {args.level}, but it must be between 0 and 1",
            code="value-out-of-range",
            option="--level",
        )
    if not args.points >= 0:
        raise UsageError(
            f"--points is {args.points}, but it must be 0 or more",
            code="value-out-of-range",
            option="--points",
        )
    by = split_names(args.by)
    if not by:
        raise UsageError(
            f"--by names no field; give fields such as {DEFAULT_SLICES}", code="split-empty"
        )
    now = datetime.now(UTC).replace(tzinfo=None)
    since, until = parse_time(args.since, now), parse_time(args.until, now)
    store = open_store(args.store)
    from headway.fleet.queries.dimensions import Filter
    from headway.fleet.regressions.findings import ScanOptions
    from headway.fleet.regressions.scan import scan

    filters = Filter(by, since, until, parse_conditions(args.where))
    options = ScanOptions(fdr=args.level, min_change=args.points, dependent=args.dependent)
    result = scan(
        store, filters, options, _print_progress if sys.stderr.isatty() else lambda done, of: None
    )
    for note in result.notes:
        print(f"headway: {note}", file=sys.stderr)
    findings = [finding for finding in result.findings if args.gains or finding.regression]
    if args.json:
        print(json.dumps(_regressions_to_dict(result, findings), indent=1))
    else:
        _print_regressions(result, findings)
    return 0


def _print_progress(count: int, total: int) -> None:
    print(
        f"\r{count} of {total} slices",
        end="\n" if count == total else "",
        file=sys.stderr,
        flush=True,
    )


def _print_regressions(result: ScanResult, findings: list[Finding]) -> None:
    if not findings:
        print(f"no change of this size in {result.slices} slices with {result.jobs:,} jobs")
    for finding in findings:
        change = finding.ett_after - finding.ett_before
        print(
            f"{_format_minute(finding.at)}  {'/'.join(finding.slice)}: "
            f"{finding.bucket} {finding.points:+.1f} points\n"
            f"    ETT {finding.ett_before:.1f} -> {finding.ett_after:.1f} ({change:+.1f}: "
            f"within jobs {finding.within:+.1f}, mix of jobs {finding.mix:+.1f}); "
            f"{finding.hours:,.0f} accelerator-hours since; p {finding.p:.4f}, "
            f"false discovery rate {finding.level:.2%}"
        )
        for part in finding.parts[:MAX_PARTS]:
            print(
                f"    {'/'.join(part.name)}: {part.mix + part.within:+.2f} of it "
                f"(within {part.within:+.2f}, share {part.mix:+.2f})"
            )
        for field in finding.fields:
            explained = "" if field.explains is None else f", explains {field.explains:.0%}"
            print(
                f"    {field.field}: {field.before} -> {field.after} "
                f"(changed for {field.moved:.0%} of the hours; "
                f"{field.usual:.0%} is usual{explained})"
            )
    for host in result.lemons:
        print(
            f"{host.host}: {host.failures} failed runs in {host.hours:,.0f} hours, "
            f"{host.expected:.1f} expected by chance; false discovery rate {host.level:.2%}"
        )
    for alarm in result.alarms:
        print(
            f"{alarm.run_id} ({'/'.join(alarm.slice)}) is running and {alarm.words}; "
            f"detected in hour {alarm.hour} of the run"
        )


def _format_minute(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M")


def _regressions_to_dict(result: ScanResult, findings: list[Finding]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "slices": result.slices,
        "jobs": result.jobs,
        "as_of": result.now,
        "regressions": [asdict(one) | {"regression": one.regression} for one in findings],
        "lemons": [asdict(one) for one in result.lemons],
        "running": [asdict(one) | {"words": one.words} for one in result.alarms],
    }


def prepare_alerts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument("--rules", metavar="FILE", help="TOML file with the rules")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--once", action="store_true", help="evaluate once (the default)")
    action.add_argument("--watch", action="store_true", help="evaluate repeatedly")
    action.add_argument("--list", action="store_true", help="list the alerts")
    action.add_argument("--ack", metavar="ID", help="acknowledge an alert: no more reminders")
    action.add_argument("--check", action="store_true", help="only check the rules")
    parser.add_argument(
        "--every", type=float, metavar="S", help="seconds between evaluations of --watch (60)"
    )
    parser.add_argument("--by", metavar="NAME", help="who acknowledges it (you)")
    parser.add_argument("--json", action="store_true", help="print --list as JSON")


def run_alerts(args: argparse.Namespace) -> int:
    if args.every is not None and not (args.watch and args.every >= 1):
        raise UsageError(
            "--every works only with --watch, and must be 1 second or more",
            code="option-not-allowed",
        )
    if args.by is not None and args.ack is None:
        raise UsageError("--by works only with --ack", code="option-not-allowed")
    if args.json and not args.list:
        raise UsageError("--json works only with --list", code="option-not-allowed")
    if args.check:
        return _print_rules(_read_rules(args.rules))
    from headway.cli.common import open_store, store_errors

    rules = None if args.list or args.ack is not None else _read_rules(args.rules)
    store = open_store(args.store)
    with store_errors(store):
        store.check()
        if args.list:
            return _print_alerts(store, args.json)
        if args.ack is not None:
            return _acknowledge(store, args.ack, args.by)
        assert rules is not None
        return _evaluate(store, rules, args)


def _read_rules(path: str | None) -> Rules:
    from headway.fleet.alerts.rules import read_rules

    if path is None:
        raise UsageError("no rules are given; give a file with --rules", code="rules-not-named")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--rules {path} cannot be read: {error.strerror}", code="file-unreadable"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"--rules {path} is not UTF-8 text", code="file-unreadable") from None
    return read_rules(text, path)


def _print_rules(rules: Rules) -> int:
    for rule in rules.rules:
        print(rule.describe())
    return 0


def _log(text: str) -> None:
    from headway import redact

    print(redact.text(f"headway: {text}"), file=sys.stderr)


def _evaluate(store: Store, rules: Rules, args: argparse.Namespace) -> int:
    from headway.fleet.alerts.watcher import AlertWatcher

    every = 60.0 if args.every is None else args.every
    watcher = AlertWatcher(store, rules, every, _log)
    if args.watch:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            watcher.forever()
        return 0
    unsent, notes = watcher.once()
    if unsent:
        names = ", ".join(dict.fromkeys(notification.receiver for notification in unsent))
        print(
            with_code(
                f"headway: {len(unsent)} notifications could not be delivered to {names}; "
                "the next call tries again",
                code="notifications-left",
            ),
            file=sys.stderr,
        )
    return 1 if unsent or notes else 0


def _print_alerts(store: Store, as_json: bool) -> int:
    from headway.cli.common import print_rows
    from headway.fleet.alerts.evaluate import acknowledge
    from headway.fleet.alerts.state import AlertStateStore, to_json

    states = AlertStateStore(store)
    state, _ = states.load()
    contents = to_json(acknowledge(state, states.acks()))
    if as_json:
        print(json.dumps(contents, indent=1))
        return 0
    rows = sorted(contents["alerts"], key=lambda row: str(row["since"]), reverse=True)
    if rows:
        short = [{**row, **{at: _to_minute(row[at]) for at in ("since", "until")}} for row in rows]
        print_rows(ALERT_COLUMNS, short, as_json=False, as_csv=False)
    else:
        print("headway: there are no alerts")
    for notification in contents["outbox"]:
        reason = notification["why"] or "not tried yet"
        text = (
            f"headway: {notification['id']} has not been delivered "
            f"to {notification['to']}: {reason}"
        )
        print(with_code(text, code="notification-unsent"), file=sys.stderr)
    return 0


def _to_minute(text: str | None) -> str | None:
    return text and text[:16].replace("T", " ")


def _acknowledge(store: Store, name: str, by: str | None) -> int:
    from headway.fleet.alerts.state import ACKNOWLEDGED, PENDING, RESOLVED, AlertStateStore

    states = AlertStateStore(store)
    state, _ = states.load()
    alert = next(
        (alert for alert in state.alerts if alert.id == name and alert.state != PENDING), None
    )
    if alert is None:
        raise UsageError(
            f"there is no alert {name!r}; see `headway fleet alerts --list`", code="alert-not-found"
        )
    if alert.state == RESOLVED:
        raise UsageError(
            f"the alert {name} is resolved and cannot be acknowledged", code="alert-resolved"
        )
    if alert.state == ACKNOWLEDGED:
        raise UsageError(
            f"the alert {name} is already acknowledged by {alert.acknowledged_by}",
            code="alert-acknowledged",
            by=alert.acknowledged_by,
        )
    who = by or getpass.getuser()
    states.acknowledge(name, who)
    print(f"headway: {who} acknowledged {name}: {alert.text}")
    return 0
