"""Evict Slurm jobs by eviction cost, or publish eviction costs to a scheduler.

  headway schedule slurm --grace 60              evict the cheapest Slurm jobs, after a save
  headway schedule publish-cost DIR --to slurm   publish the eviction cost of each run

`headway simulate cluster` simulates the same policies on a trace.
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
Evict Slurm jobs for a pending job, cheapest first; each victim saves a checkpoint before.

Run it on the host of slurmctld as root, SlurmUser or an Operator. Slurm defines which jobs may be
preempted, and quotas: `Preempt` of a QOS, and its limits. See docs: Scheduling, On a real Slurm.

examples:
  headway schedule slurm --dry-run --once
  headway schedule slurm --grace 60 --interval 10
  headway schedule slurm --policy least-cost:phase=on:cap=3 --runs /shared/runs
"""

PUBLISH_COST_HELP = """\
Publish the eviction cost of each run to a scheduler while the runs are in progress.

  headway schedule publish-cost headway/ --to slurm
  headway schedule publish-cost headway/my-run --to slurm --nudge-min 0 --nudge-max 100
  headway schedule publish-cost /runs --to kubernetes --namespace train
  headway schedule publish-cost headway/my-run --to kubernetes --object job/my-run --nudge-max 10
  headway schedule publish-cost headway/my-run --to ray --job raysubmit_x --file /metrics/a.prom
  headway schedule publish-cost headway/ --to file --file costs.json --once

The published cost of a run is removed when the run ends, and all costs when this command stops.
Priorities are changed only if --nudge-max is given.
"""


RAY_DASHBOARD = "http://127.0.0.1:8265"  # default address of Ray's dashboard
DESTINATIONS = ("slurm", "kubernetes", "ray", "file")
# An option of another destination is rejected: it would have no effect.
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
DEFAULT_POLICY = "least-cost:phase=on"
# Each is `module:name` with `prepare_name(parser)` and `run_name(args)`, see headway.cli.function.
ACTIONS = {
    "slurm": ("headway.cli.schedule:slurm", "evict Slurm jobs for pending jobs, cheapest first"),
    "publish-cost": (
        "headway.cli.schedule:publish_cost",
        "publish eviction costs to Slurm, Kubernetes, Ray or a file",
    ),
}


def prepare_publish_cost(parser: argparse.ArgumentParser) -> None:
    parser.description = PUBLISH_COST_HELP
    add = parser.add_argument
    add("path", metavar="RUN|DIR", help="a run, or a folder of runs")
    add("--to", required=True, choices=DESTINATIONS, help="where to publish")
    add("--interval", type=float, default=30.0, metavar="S", help="seconds between updates (30)")
    add("--once", action="store_true", help="publish once and exit")
    add("--dry-run", action="store_true", help="print the changes without making them")
    add(
        "--grace",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds of notice before an eviction (0)",
    )
    add(
        "--repeat",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds added per earlier preemption (0)",
    )
    add("--job", metavar="ID", help="slurm: job ID if the launcher saw none; ray: submission ID")
    add(
        "--object",
        metavar="KIND/NAME",
        help="kubernetes: object to update (the pod of the launcher)",
    )
    add("--workload", metavar="NAME", help="kubernetes: Kueue workload (found by its owner)")
    add("--namespace", metavar="NAME", help="kubernetes: namespace (that of this pod, or default)")
    add(
        "--api", metavar="URL", help="kubernetes: API server (that of this pod); ray: its dashboard"
    )
    add("--token-file", metavar="FILE", help="kubernetes: token (that of the service account)")
    add("--ca-file", metavar="FILE", help="trusted certificates (those of the service account)")
    add(
        "--file",
        metavar="FILE",
        help="file to write: JSON, or Prometheus metrics if it ends in .prom",
    )
    add(
        "--nudge-min",
        type=int,
        metavar="N",
        help="priority adjustment of a run without eviction cost (0)",
    )
    add("--nudge-max", type=int, metavar="N", help="priority adjustment of the most expensive runs")
    add(
        "--nudge-full",
        type=float,
        metavar="S",
        help="cost per accelerator, in seconds, of --nudge-max (3600)",
    )


def run_publish_cost(args: argparse.Namespace) -> int:
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
                f"--{flag} works only with --to {' or '.join(places)}, not {args.to}",
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
            "--nudge-min and --nudge-full need --nudge-max; give it as well",
            code="option-missing",
            option="--nudge-max",
        )
    if args.to in ("ray", "file") and args.file is None:
        raise UsageError(
            f"--to {args.to} writes a file; give it with --file",
            code="option-missing",
            option="--file",
        )
    if args.to == "ray" and args.job is None:
        raise UsageError(
            "--to ray needs --job; give the submission ID shown by `ray job list`",
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
    """Eviction costs in the OpenMetrics text format."""
    from headway.export.openmetrics import Family, format_families
    from headway.schedule.publishers.file import metric_families

    prices = [(cost.labels, cost.price) for cost in costs if cost.price is not None]
    return "".join(format_families((Family(*cost) for cost in metric_families(prices)), {}))


def prepare_slurm(parser: argparse.ArgumentParser) -> None:
    parser.description = SLURM_HELP
    add = parser.add_argument
    add("--interval", type=float, default=10.0, metavar="S", help="seconds between checks (10)")
    add(
        "--grace",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds from the signal to the eviction (60)",
    )
    add(
        "--policy",
        default=DEFAULT_POLICY,
        metavar="NAME",
        help=f"eviction policy ({DEFAULT_POLICY})",
    )
    add(
        "--qos",
        action="append",
        default=[],
        metavar="NAME",
        help="only for pending jobs of this QOS",
    )
    add(
        "--quota",
        metavar="FILE",
        help="file with lines account,gpus; no job of an account is evicted below its quota",
    )
    add(
        "--runs",
        action="append",
        default=[],
        metavar="DIR",
        help="also look for runs in this folder",
    )
    add("--dry-run", action="store_true", help="print the evictions without making them")
    add("--once", action="store_true", help="check once, complete the evictions, and exit")


def run_slurm(args: argparse.Namespace) -> int:
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
            f"{args.quota} has quotas for later days, which are not supported here",
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
    """Wait; after the stop signal, sleep at most one second for evictions in progress."""
    if stop.is_set():
        time.sleep(min(seconds, 1.0))
    return stop.wait(seconds)


def _log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}", flush=True)


def prepare(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (place, text) in ACTIONS.items():
        part = actions.add_parser(
            name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        function(place, "prepare")(part)


def run(args: argparse.Namespace) -> int:
    code: int = function(ACTIONS[args.action][0], "run")(args)
    return code
