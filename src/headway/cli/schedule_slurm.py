"""Choose whom a waiting job of Slurm evicts, by what that would waste; each one saves first.

Runs beside slurmctld, as root, SlurmUser or an Operator. Whoever may evict whom, and quotas, are
Slurm's own: `Preempt` of a QOS, and its limits. See docs: Scheduling, On a real Slurm.

examples:
  headway schedule slurm --dry-run --once
  headway schedule slurm --grace 60 --interval 10
  headway schedule slurm --policy least-cost:phase=on:cap=3 --runs /shared/runs
"""

from __future__ import annotations

import argparse
import math
import signal
import threading
import time
from pathlib import Path

from headway.errors import UsageError

DEFAULT_POLICY = "least-cost:phase=on"


def prepare_slurm(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headway schedule slurm`."""
    add = parser.add_argument
    add("--interval", type=float, default=10.0, metavar="S", help="between two looks (10)")
    add("--grace", type=float, default=60.0, metavar="S", help="from the signal to the end (60)")
    add(
        "--policy",
        default=DEFAULT_POLICY,
        metavar="NAME",
        help=f"who goes first ({DEFAULT_POLICY})",
    )
    add("--qos", action="append", default=[], metavar="NAME", help="only waiters of this QOS")
    add("--quota", metavar="FILE", help="account,gpus a line: below that nobody of it is evicted")
    add("--runs", action="append", default=[], metavar="DIR", help="runs lie below it too")
    add("--dry-run", action="store_true", help="say who would go, and do nothing")
    add("--once", action="store_true", help="look once, see that through, and end")


def run_slurm(args: argparse.Namespace) -> int:
    """Watch, until it is stopped."""
    for name in ("interval", "grace"):
        if not 0 < getattr(args, name) < math.inf:
            raise UsageError(
                f"--{name} is {getattr(args, name)}; give seconds above 0",
                code="value-out-of-range",
                option=f"--{name}",
            )
    from headway.schedule.policies import parse_policy
    from headway.schedule.simulate import quotas
    from headway.schedule.slurm import calls, exempt
    from headway.schedule.slurm.runs import RunIndex
    from headway.schedule.slurm.watch import PreemptionController

    policy = parse_policy(args.policy)
    quota = quotas.read_quotas(Path(args.quota)) if args.quota else {}
    if args.quota and quotas.read_quota_changes(Path(args.quota)):
        raise UsageError(
            f"{args.quota} has quotas of later days; only those of today count here",
            code="quota-of-later-day",
        )
    calls.check_programs()
    config = calls.run_command("scontrol", "show", "config")
    if not args.dry_run:
        calls.check_rights(calls.run_command, config)
    if quota:
        calls.check_accounts(calls.run_command, quota)
    watch = PreemptionController(
        ask=calls.run_command,
        tell=_log,
        policy=policy,
        runs=RunIndex([Path(place) for place in args.runs]),
        grace=args.grace,
        quotas=quota,
        only=frozenset(args.qos),
        dry=args.dry_run,
    )
    for line in exempt.exemption_warnings(calls.run_command, config):
        _log(line)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    watch.loop(args.interval, once=args.once, stopped=lambda s: _wait(stop, s))
    return 0


def _wait(stop: threading.Event, seconds: float) -> bool:
    """Wait; once it is told to stop, no longer than a second for what is under way."""
    if stop.is_set():
        time.sleep(min(seconds, 1.0))
    return stop.wait(seconds)


def _log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}", flush=True)
