"""Simulate eviction policies on a cluster.

  headway simulate cluster --trace philly --gpus 600 --policy newest,least-cost --seeds 5

`headway fleet simulate` generates a store of simulated jobs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.sim.cluster.compare import Case
    from headway.sim.cluster.scenario import JobTimings

CLUSTER_HELP = """\
Replay a trace of jobs on a cluster with quotas, once for each eviction policy.

examples:
  headway simulate cluster --trace philly --gpus 600 --policy newest,least-lost,least-cost --seeds 5
  headway simulate cluster --trace philly --from 2017-10-10 --days 30 --html out.html
  headway simulate cluster --trace sacct:year.psv --gpus 2048 --quota quota.csv --json
  headway simulate cluster --trace synthetic:100000 --policy least-cost,least-cost:notice=off
"""


DEFAULT_POLICIES = "newest,newest-2h,largest,least-lost,least-cost"
ACTIONS = {"cluster": "compare eviction policies on a trace"}


def prepare_cluster(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--trace",
        default="philly",
        help="philly, philly:PATH, sacct:PATH or synthetic:JOBS (philly)",
    )
    add("--from", dest="begin", default="", metavar="DATE", help="philly: first day")
    add("--days", type=float, default=0.0, metavar="N", help="philly: number of days")
    add("--load", type=float, default=0.9, metavar="X", help="synthetic: mean load (0.9)")
    add("--gpus", type=int, default=600, metavar="N", help="total accelerators (600)")
    add("--per-node", type=int, default=8, metavar="N", help="accelerators per node (8)")
    add(
        "--quota",
        metavar="FILE",
        help="file with lines tenant,gpus[,day] (shares by accelerator-hours)",
    )
    add(
        "--policy",
        default=DEFAULT_POLICIES,
        metavar="A,B",
        help=f"policies; the first is the baseline ({DEFAULT_POLICIES})",
    )
    add("--interval", type=float, default=3600.0, metavar="S", help="seconds between saves (3600)")
    add(
        "--save",
        type=float,
        default=15.0,
        metavar="S",
        help="seconds that a save blocks training (15)",
    )
    add(
        "--start",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds from the first start to training (0)",
    )
    add(
        "--recover",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds from a later start to training (300)",
    )
    add("--grace", type=float, default=60.0, metavar="S", help="seconds from notice to kill (60)")
    add(
        "--habits",
        nargs="+",
        metavar="RUN",
        help="draw --save, --start and --recover from measured runs",
    )
    add(
        "--silent",
        type=float,
        default=0.0,
        metavar="X",
        help="share of jobs that do not publish their eviction cost",
    )
    add(
        "--shift", action="store_true", help="shift the jobs of each tenant by whole days, per seed"
    )
    add("--faults", default="", metavar="TRACE", help="trace of node failures: stepfun, or a path")
    add(
        "--spot",
        default="",
        metavar="TRACE",
        help="trace of spot interruptions: p3, g4dn, or a path",
    )
    add("--spot-nodes", type=int, default=0, metavar="N", help="number of spot nodes")
    add(
        "--spot-notice",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds of notice before an interruption (120)",
    )
    add("--seeds", type=int, default=1, metavar="N", help="number of repetitions (1)")
    add("--workers", type=int, default=1, metavar="N", help="number of processes (1)")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print all figures as JSON")
    shape.add_argument("--html", metavar="FILE", help="write one HTML file")
    add("--force", action="store_true", help="overwrite the HTML file")


def run_cluster(args: argparse.Namespace) -> int:
    from headway.storage import output_file

    if args.html:
        output_file.check_output(Path(args.html), force=args.force)
    for name in ("seeds", "workers"):
        if getattr(args, name) < 1:
            raise UsageError(
                f"--{name} is {getattr(args, name)}; give 1 or more",
                code="value-out-of-range",
                option=f"--{name}",
            )
    from headway.sim.cluster.compare import compare

    names = [name for name in args.policy.split(",") if name]
    if not names:
        raise UsageError(
            f"--policy is empty; give for example {DEFAULT_POLICIES}",
            code="list-empty",
            option="--policy",
        )
    compared = compare(_case(args), names, range(args.seeds), args.workers)
    if args.json:
        print(json.dumps(compared.to_dict(), indent=1))
    elif args.html:
        from headway.sim.show import render_page

        output_file.write_output(Path(args.html), render_page(compared).encode(), force=args.force)
        print(f"headway: wrote {args.html}")
    else:
        from headway.report.screen import console
        from headway.sim.show import TABLE_WIDTH, render_table

        screen = console()
        screen.width = max(screen.width, TABLE_WIDTH)
        screen.print(render_table(compared), soft_wrap=True)
    return 0


def _case(args: argparse.Namespace) -> Case:
    from headway.schedule import quotas
    from headway.sim import traces
    from headway.sim.cluster.compare import Case
    from headway.sim.cluster.scenario import Setting

    if bool(args.spot) != bool(args.spot_nodes):
        raise UsageError(
            "--spot and --spot-nodes must be used together; give both", code="option-missing"
        )
    setting = Setting(
        gpus=args.gpus,
        per_node=args.per_node,
        interval=args.interval,
        grace=args.grace,
        habits=_habits(args),
        silent=args.silent,
        quota=quotas.read_quotas(Path(args.quota)) if args.quota else None,
        quota_changes=quotas.read_quota_changes(Path(args.quota)) if args.quota else (),
        shift=args.shift,
    )
    trace = traces.read_trace(
        args.trace, gpus=args.gpus, begin=args.begin, days=args.days, load=args.load
    )
    return Case(
        trace=trace,
        setting=setting,
        faults=args.faults,
        spot=args.spot,
        spot_nodes=args.spot_nodes,
        spot_notice=args.spot_notice,
    )


def _habits(args: argparse.Namespace) -> tuple[JobTimings, ...]:
    from headway.sim.cluster.scenario import JobTimings

    if args.habits:
        from headway.sim.cluster.scenario import timings_from_runs

        return timings_from_runs(args.habits)
    return (JobTimings(start=args.start, recover=args.recover, save=args.save),)


def prepare_fleet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument(
        "--jobs", type=int, default=10_000, metavar="N", help="number of jobs (10000)"
    )
    parser.add_argument("--days", type=int, default=90, metavar="N", help="number of days (90)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="random seed (1)")
    parser.add_argument(
        "--scale",
        type=int,
        default=1,
        metavar="N",
        help="factor for the accelerators of each job (1)",
    )
    parser.add_argument(
        "--regressions",
        type=int,
        default=8,
        metavar="N",
        help="number of regressions of 2 points of ETT (8)",
    )
    parser.add_argument(
        "--lemons", type=int, default=5, metavar="N", help="number of bad hosts (5)"
    )


def run_fleet(args: argparse.Namespace) -> int:
    from headway.cli.common import open_store

    store = open_store(args.store)
    from headway import redact
    from headway.sim.fleet.scenario import make_scenario
    from headway.sim.fleet.simulation import TRUTH_FILE, simulate

    scenario = make_scenario(
        args.seed, args.jobs, args.days, args.scale, args.regressions, args.lemons
    )
    began = time.monotonic()

    def print_progress(days: int, rows: int) -> None:
        seconds = time.monotonic() - began
        print(f"{days} of {args.days} days, {rows:,} rows, {seconds:.0f} s", file=sys.stderr)

    counts = simulate(store, scenario, print_progress)
    print(
        f"headway: {counts['runs']:,} runs and {counts['buckets']:,} rows of buckets are in "
        f"{redact.text(store.url)}; the planted causes are in {TRUTH_FILE} there"
    )
    return 0


def prepare(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in ACTIONS.items():
        part = actions.add_parser(
            name,
            help=text,
            description=CLUSTER_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        prepare_cluster(part)


def run(args: argparse.Namespace) -> int:
    return run_cluster(args)
