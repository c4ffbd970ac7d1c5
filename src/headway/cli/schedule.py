"""Tell schedulers what an eviction would waste, or choose who is evicted.

  headway schedule slurm --grace 60              beside slurmctld: the cheapest go, having saved
  headway schedule publish-cost DIR --to slurm   tell a scheduler what each run would lose

`headway simulate cluster` plays the same policies on a trace.
"""

from __future__ import annotations

import argparse
import math
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli import function
from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.schedule.publishers.base import PriorityAdjustment, Publisher, RunCost

SLURM_HELP = """\
Choose whom a waiting job of Slurm evicts, by what that would waste; each one saves first.

Runs beside slurmctld, as root, SlurmUser or an Operator. Whoever may evict whom, and quotas, are
Slurm's own: `Preempt` of a QOS, and its limits. See docs: Scheduling, On a real Slurm.

examples:
  headway schedule slurm --dry-run --once
  headway schedule slurm --grace 60 --interval 10
  headway schedule slurm --policy least-cost:phase=on:cap=3 --runs /shared/runs
"""

PUBLISH_COST_HELP = """\
Tell a scheduler what evicting each run would waste, while the runs go on.

  headway schedule publish-cost headway/ --to slurm
  headway schedule publish-cost headway/my-run --to slurm --nudge-min 0 --nudge-max 100
  headway schedule publish-cost /runs --to kubernetes --namespace train
  headway schedule publish-cost headway/my-run --to kubernetes --object job/my-run --nudge-max 10
  headway schedule publish-cost headway/my-run --to ray --job raysubmit_x --file /metrics/a.prom
  headway schedule publish-cost headway/ --to file --file costs.json --once

A run that is over is taken back, and so is everything when this is stopped. Priorities are left
alone unless --nudge-max is given.
"""


RAY_DASHBOARD = "http://127.0.0.1:8265"  # Ray's dashboard, where nothing else was set
DESTINATIONS = ("slurm", "kubernetes", "ray", "file")
# Which options belong to which place: another one is a mistake that nobody would notice.
DESTINATIONS_OF_OPTION = {
    "job": ("slurm", "ray"),
    "object": ("kubernetes",),
    "workload": ("kubernetes",),
    "namespace": ("kubernetes",),
    "api": ("kubernetes", "ray"),
    "token_file": ("kubernetes", "ray"),
    "ca_file": ("kubernetes", "ray"),
    "file": ("ray", "file"),
    "nudge_min": ("slurm", "kubernetes"),
    "nudge_max": ("slurm", "kubernetes"),
    "nudge_full": ("slurm", "kubernetes"),
}


def prepare_publish_cost(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headway schedule publish-cost`."""
    parser.description = PUBLISH_COST_HELP
    add = parser.add_argument
    add("path", metavar="RUN|DIR", help="a run, or a folder of runs")
    add("--to", required=True, choices=DESTINATIONS, help="whom to tell")
    add("--interval", type=float, default=30.0, metavar="S", help="between two looks (30)")
    add("--once", action="store_true", help="tell it once and exit")
    add("--dry-run", action="store_true", help="say what would be changed, and change nothing")
    add("--grace", type=float, default=0.0, metavar="S", help="notice that victims get (0)")
    add("--repeat", type=float, default=0.0, metavar="S", help="for each earlier preemption (0)")
    add("--job", metavar="ID", help="slurm: if its launcher saw none; ray: the submission")
    add("--object", metavar="KIND/NAME", help="kubernetes: else the pod of the launcher")
    add("--workload", metavar="NAME", help="kubernetes: Kueue's, else found by its owner")
    add("--namespace", metavar="NAME", help="kubernetes: else that of this pod, or default")
    add("--api", metavar="URL", help="kubernetes: else that of this pod; ray: its dashboard")
    add("--token-file", metavar="FILE", help="kubernetes: else that of the service account")
    add("--ca-file", metavar="FILE", help="certificates to trust, else the service account's")
    add("--file", metavar="FILE", help="JSON, or metrics for Prometheus if it ends in .prom")
    add("--nudge-min", type=int, metavar="N", help="on a priority, for what costs nothing (0)")
    add("--nudge-max", type=int, metavar="N", help="and for what costs most")
    add("--nudge-full", type=float, metavar="S", help="seconds of each accelerator for that (3600)")


def run_publish_cost(args: argparse.Namespace) -> int:
    """Tell it once, or until the run is over or this is stopped."""
    from headway.schedule.publishers.base import PublishLoop

    _check_options(args)
    loop = PublishLoop(
        Path(args.path),
        _destination(args),
        grace=args.grace,
        repeat_penalty_s=args.repeat,
        clock=time.time,
        log=lambda text: print(text, flush=True),
    )
    if args.once:
        loop.publish_once()
        return 0
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    loop.run(args.interval, stopped.wait)
    return 0


def _check_options(args: argparse.Namespace) -> None:
    for name, places in DESTINATIONS_OF_OPTION.items():
        if getattr(args, name) is not None and args.to not in places:
            flag = name.replace("_", "-")
            raise UsageError(
                f"--{flag} is for --to {' and '.join(places)}, not for {args.to}",
                code="option-not-allowed",
                option=f"--{flag}",
            )
    if not 0.1 <= args.interval <= 86400:
        raise UsageError(
            f"--interval is {args.interval:g}; give seconds from 0.1 to 86400",
            code="value-out-of-range",
            option="--interval",
        )
    for name in ("grace", "repeat"):
        if not 0 <= getattr(args, name) < float("inf"):
            raise UsageError(
                f"--{name} is {getattr(args, name):g}; give 0 s or more",
                code="value-out-of-range",
                option=f"--{name}",
            )
    if args.nudge_max is None and (args.nudge_min, args.nudge_full) != (None, None):
        raise UsageError(
            "a nudge has no end without --nudge-max; give it as well",
            code="option-missing",
            option="--nudge-max",
        )
    if args.to in ("ray", "file") and args.file is None:
        raise UsageError(
            f"--to {args.to} writes a file; name it by --file",
            code="option-missing",
            option="--file",
        )
    if args.to == "ray" and args.job is None:
        raise UsageError(
            "--to ray needs the job; give what `ray job list` shows by --job",
            code="option-missing",
            option="--job",
        )


def _destination(args: argparse.Namespace) -> Publisher:
    if args.to == "slurm":
        from headway.schedule.publishers.slurm import SlurmPublisher

        return SlurmPublisher(args.job, _nudge(args), dry_run=args.dry_run)
    if args.to == "kubernetes":
        from headway.schedule.publishers.api import connect_api, own_namespace
        from headway.schedule.publishers.kubernetes import KubernetesPublisher

        return KubernetesPublisher(
            connect_api(args.api, args.token_file, args.ca_file),
            args.namespace or own_namespace(),
            args.object,
            args.workload,
            _nudge(args),
            dry_run=args.dry_run,
        )
    from headway.schedule.publishers.file import FilePublisher

    file = FilePublisher(Path(args.file), cost_metrics, dry_run=args.dry_run)
    if args.to == "file":
        return file
    from headway.schedule.publishers.api import connect_api
    from headway.schedule.publishers.file import RayPublisher

    api = connect_api(args.api or RAY_DASHBOARD, args.token_file, args.ca_file)
    return RayPublisher(api, args.job, file)


def _nudge(args: argparse.Namespace) -> PriorityAdjustment | None:
    from headway.schedule.publishers.base import PriorityAdjustment

    if args.nudge_max is None:
        return None
    full = {} if args.nudge_full is None else {"full_loss_s": args.nudge_full}
    return PriorityAdjustment(minimum=args.nudge_min or 0, maximum=args.nudge_max, **full)


def cost_metrics(costs: Sequence[RunCost]) -> str:
    """The prices as a scraper reads them."""
    from headway.export.openmetrics import Family, format_families
    from headway.schedule.publishers.file import metric_families

    prices = [(cost.labels, cost.price) for cost in costs if cost.price is not None]
    return "".join(format_families((Family(*cost) for cost in metric_families(prices)), {}))


DEFAULT_POLICY = "least-cost:phase=on"


def prepare_slurm(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headway schedule slurm`."""
    parser.description = SLURM_HELP
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
    from headway import slurm
    from headway.schedule import quotas
    from headway.schedule.policies import parse_policy
    from headway.schedule.slurm import cluster
    from headway.schedule.slurm.controller import PreemptionController, RunIndex

    policy = parse_policy(args.policy)
    quota = quotas.read_quotas(Path(args.quota)) if args.quota else {}
    if args.quota and quotas.read_quota_changes(Path(args.quota)):
        raise UsageError(
            f"{args.quota} has quotas of later days; only those of today count here",
            code="quota-of-later-day",
        )
    cluster.check_programs()
    config = slurm.run_command("scontrol", "show", "config")
    if not args.dry_run:
        cluster.check_rights(slurm.run_command, config)
    if quota:
        cluster.check_accounts(slurm.run_command, quota)
    controller = PreemptionController(
        run_command=slurm.run_command,
        log=_log,
        policy=policy,
        runs=RunIndex([Path(folder) for folder in args.runs]),
        grace=args.grace,
        quotas=quota,
        only_qos=frozenset(args.qos),
        dry_run=args.dry_run,
    )
    for line in cluster.exemption_warnings(slurm.run_command, config):
        _log(line)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    controller.loop(args.interval, once=args.once, stopped=lambda s: _wait(stop, s))
    return 0


def _wait(stop: threading.Event, seconds: float) -> bool:
    """Wait; once it is told to stop, no longer than a second for what is under way."""
    if stop.is_set():
        time.sleep(min(seconds, 1.0))
    return stop.wait(seconds)


def _log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}", flush=True)


# Each is `module:name` with `prepare_name(parser)` and `run_name(args)`, see headway.cli.function.
ACTIONS = {
    "slurm": ("headway.cli.schedule:slurm", "choose whom a waiting job of Slurm evicts"),
    "publish-cost": (
        "headway.cli.schedule:publish_cost",
        "tell Slurm, Kubernetes or Prometheus what evicting each run would waste",
    ),
}


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `headway schedule`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (place, text) in ACTIONS.items():
        part = actions.add_parser(
            name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        function(place, "prepare")(part)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    code: int = function(ACTIONS[args.action][0], "run")(args)
    return code
