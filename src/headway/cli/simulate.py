"""Try on a cluster that never ran what a real one would pay for.

  headway simulate cluster --trace philly --gpus 600 --policy newest,least-cost --seeds 5

Other fleets: `headway fleet simulate` makes a store of jobs that never ran.
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
Play a trace of jobs through a cluster with quotas, once for each policy of eviction.

examples:
  headway simulate cluster --trace philly --gpus 600 --policy newest,least-lost,least-cost --seeds 5
  headway simulate cluster --trace philly --from 2017-10-10 --days 30 --html out.html
  headway simulate cluster --trace sacct:year.psv --gpus 2048 --quota quota.csv --json
  headway simulate cluster --trace synthetic:100000 --policy least-cost,least-cost:notice=off
"""


DEFAULT_POLICIES = "newest,newest-2h,largest,least-lost,least-cost"


def prepare_cluster(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add = parser.add_argument
    add("--trace", default="philly", help="philly, philly:PATH, sacct:PATH or synthetic:JOBS")
    add("--from", dest="begin", default="", metavar="DATE", help="of philly: from this day on")
    add("--days", type=float, default=0.0, metavar="N", help="of philly: so many days of it")
    add("--load", type=float, default=0.9, metavar="X", help="of synthetic: mean load (0.9)")
    add("--gpus", type=int, default=600, metavar="N", help="accelerators in all (600)")
    add("--per-node", type=int, default=8, metavar="N", help="accelerators of a node (8)")
    add("--quota", metavar="FILE", help="tenant,gpus[,day] a line; else by their hours")
    add(
        "--policy",
        default=DEFAULT_POLICIES,
        metavar="A,B",
        help=f"the first is the base ({DEFAULT_POLICIES})",
    )
    add("--interval", type=float, default=3600.0, metavar="S", help="between two saves (3600)")
    add("--save", type=float, default=15.0, metavar="S", help="training waits for a save (15)")
    add("--start", type=float, default=0.0, metavar="S", help="first start to training (0)")
    add("--recover", type=float, default=300.0, metavar="S", help="later start to training (300)")
    add("--grace", type=float, default=60.0, metavar="S", help="from notice to kill (60)")
    add("--habits", nargs="+", metavar="RUN", help="draw these three times from measured runs")
    add("--silent", type=float, default=0.0, metavar="X", help="share of jobs that tell nothing")
    add("--shift", action="store_true", help="each seed moves tenants' jobs by whole days")
    add("--faults", default="", metavar="TRACE", help="stepfun, or a path: nodes fail")
    add("--spot", default="", metavar="TRACE", help="p3, g4dn, or a path: nodes are taken back")
    add("--spot-nodes", type=int, default=0, metavar="N", help="how many nodes are spot ones")
    add("--spot-notice", type=float, default=120.0, metavar="S", help="before they go (120)")
    add("--seeds", type=int, default=1, metavar="N", help="repetitions (1)")
    add("--workers", type=int, default=1, metavar="N", help="processes (1)")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print all figures as JSON")
    shape.add_argument("--html", metavar="FILE", help="write one HTML file")
    add("--force", action="store_true", help="overwrite the HTML file")


def run_cluster(args: argparse.Namespace) -> int:
    """Simulate, then show."""
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
            f"--policy names none; give for example {DEFAULT_POLICIES}",
            code="list-empty",
            option="--policy",
        )
    compared = compare(_case(args), names, range(args.seeds), args.workers)
    if args.json:
        print(json.dumps(compared.to_dict(), indent=1))
    elif args.html:
        from headway.sim.show import render_page

        output_file.write_output(Path(args.html), render_page(compared).encode(), force=args.force)
        print(f"headway: the policies are compared in {args.html}")
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
        raise UsageError("--spot and --spot-nodes go together; give both", code="option-missing")
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
    """Add its arguments."""
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument("--jobs", type=int, default=10_000, metavar="N", help="how many; 10000")
    parser.add_argument("--days", type=int, default=90, metavar="N", help="over so many; 90")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="another one: other jobs")
    parser.add_argument(
        "--scale", type=int, default=1, metavar="N", help="accelerators of each job, times this; 1"
    )
    parser.add_argument(
        "--regressions", type=int, default=8, metavar="N", help="to plant, 2 points of ETT each; 8"
    )
    parser.add_argument("--lemons", type=int, default=5, metavar="N", help="bad hosts to plant; 5")


def run_fleet(args: argparse.Namespace) -> int:
    """Draw and write it."""
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
        f"{redact.text(store.url)}; what was planted stands in {TRUTH_FILE} there"
    )
    return 0


ACTIONS = {"cluster": "who is evicted, and what it costs"}


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `headway simulate`."""
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
    """Do it."""
    return run_cluster(args)
