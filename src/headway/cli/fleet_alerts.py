"""`headway fleet alerts`: rules over a store, and whom to tell."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import UsageError, with_code

if TYPE_CHECKING:
    from headway.fleet.alerts.rules import Rules
    from headway.fleet.store import Store

ALERT_COLUMNS = ("id", "state", "severity", "rule", "slice", "since", "until", "by", "text")


def prepare_alerts(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument("--rules", metavar="FILE", help="the rules, a TOML file")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--once", action="store_true", help="look once; what is done by default")
    what.add_argument("--watch", action="store_true", help="look again and again")
    what.add_argument("--list", action="store_true", help="show the alerts")
    what.add_argument("--ack", metavar="ID", help="take an alert on: no more reminders")
    what.add_argument("--check", action="store_true", help="read the rules, and nothing else")
    parser.add_argument("--every", type=float, metavar="S", help="--watch looks so often; 60")
    parser.add_argument("--by", metavar="NAME", help="who takes it on; you")
    parser.add_argument("--json", action="store_true", help="--list as JSON")


def run_alerts(args: argparse.Namespace) -> int:
    """Do what is asked."""
    if args.every is not None and not (args.watch and args.every >= 1):
        raise UsageError(
            "--every is for --watch, and must be 1 second or more", code="option-not-allowed"
        )
    if args.by is not None and args.ack is None:
        raise UsageError("--by goes with --ack", code="option-not-allowed")
    if args.json and not args.list:
        raise UsageError("--json goes with --list", code="option-not-allowed")
    if args.check:
        return _print_rules(_read_rules(args.rules))
    from headway.cli.fleet_ask import open_store, store_errors

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
    from headway.fleet.alerts.read import read_rules

    if path is None:
        raise UsageError("no rules are named; give the file with --rules", code="rules-not-named")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--rules {path} cannot be read: {error.strerror}", code="file-unreadable"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"--rules {path} is no text in UTF-8", code="file-unreadable") from None
    return read_rules(text, path)


def _print_rules(rules: Rules) -> int:
    for rule in rules.rules:
        print(rule.words())
    return 0


def _log(text: str) -> None:
    from headway import redact

    print(redact.text(f"headway: {text}"), file=sys.stderr)


def _evaluate(store: Store, rules: Rules, args: argparse.Namespace) -> int:
    from headway.fleet.alerts.watch import AlertWatcher

    every = 60.0 if args.every is None else args.every
    watch = AlertWatcher(store, rules, every, _log)
    if args.watch:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            watch.forever()
        return 0
    left, notes = watch.once()
    if left:
        names = ", ".join(dict.fromkeys(one.to for one in left))
        print(
            with_code(
                f"headway: {len(left)} notifications were not taken by {names}; "
                "they are tried again at the next call",
                code="notifications-left",
            ),
            file=sys.stderr,
        )
    return 1 if left or notes else 0


def _print_alerts(store: Store, as_json: bool) -> int:
    from headway.cli.fleet_ask import print_rows
    from headway.fleet.alerts.evaluate import acknowledge
    from headway.fleet.alerts.kept import AlertStateStore
    from headway.fleet.alerts.model import to_json

    kept = AlertStateStore(store)
    state, _ = kept.load()
    found = to_json(acknowledge(state, kept.acks()))
    if as_json:
        print(json.dumps(found, indent=1))
        return 0
    rows = sorted(found["alerts"], key=lambda row: str(row["since"]), reverse=True)
    if rows:
        short = [{**row, **{at: _to_minute(row[at]) for at in ("since", "until")}} for row in rows]
        print_rows(ALERT_COLUMNS, short, as_json=False, as_csv=False)
    else:
        print("headway: no rule has raised an alert")
    for one in found["outbox"]:
        why = one["why"] or "not tried yet"
        text = f"headway: {one['id']} is still to be sent to {one['to']}: {why}"
        print(with_code(text, code="notification-unsent"), file=sys.stderr)
    return 0


def _to_minute(text: str | None) -> str | None:
    return text and text[:16].replace("T", " ")


def _acknowledge(store: Store, name: str, by: str | None) -> int:
    from headway.fleet.alerts.kept import AlertStateStore
    from headway.fleet.alerts.model import ACKNOWLEDGED, PENDING, RESOLVED

    kept = AlertStateStore(store)
    state, _ = kept.load()
    alert = next((one for one in state.alerts if one.id == name and one.state != PENDING), None)
    if alert is None:
        raise UsageError(
            f"there is no alert {name!r}; see `headway fleet alerts --list`", code="alert-not-found"
        )
    if alert.state == RESOLVED:
        raise UsageError(
            f"the alert {name} is over; there is nothing to acknowledge", code="alert-resolved"
        )
    if alert.state == ACKNOWLEDGED:
        raise UsageError(
            f"the alert {name} was acknowledged by {alert.by}",
            code="alert-acknowledged",
            by=alert.by,
        )
    who = by or getpass.getuser()
    kept.acknowledge(name, who)
    print(f"headway: {who} has taken on {name}: {alert.text}")
    return 0
