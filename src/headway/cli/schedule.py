"""Tell schedulers what an eviction would waste, or choose who is evicted.

  headway schedule slurm --grace 60              beside slurmctld: the cheapest go, having saved
  headway schedule publish-cost DIR --to slurm   tell a scheduler what each run would lose

`headway simulate cluster` plays the same policies on a trace.
"""

from __future__ import annotations

import argparse
import importlib

# Each has `prepare(parser)` and `run(args)`.
ACTIONS = {
    "slurm": ("headway.cli.schedule_slurm", "choose whom a waiting job of Slurm evicts"),
    "publish-cost": (
        "headway.cli.schedule_publish",
        "tell Slurm, Kubernetes or Prometheus what evicting each run would waste",
    ),
}


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `headway schedule`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (module, text) in ACTIONS.items():
        action = importlib.import_module(module)
        part = actions.add_parser(
            name,
            help=text,
            description=action.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        action.prepare(part)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    code: int = importlib.import_module(ACTIONS[args.action][0]).run(args)
    return code
