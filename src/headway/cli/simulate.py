"""Try on a cluster that never ran what a real one would pay for.

  headway simulate cluster --trace philly --gpus 600 --policy newest,least-cost --seeds 5

Other fleets: `headway fleet simulate` makes a store of jobs that never ran.
"""

from __future__ import annotations

import argparse

from headway.cli import simulate_cluster

ACTIONS = {"cluster": "who is evicted, and what it costs"}


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `headway simulate`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in ACTIONS.items():
        part = actions.add_parser(
            name,
            help=text,
            description=simulate_cluster.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        simulate_cluster.prepare_cluster(part)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    return simulate_cluster.run_cluster(args)
