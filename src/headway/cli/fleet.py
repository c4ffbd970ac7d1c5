"""Ask a store about all runs in it, or look after it.

  headway fleet ett --store ./store --by team,week      ETT% and what the rest went to
  headway fleet tts --store ./store --since 30d         Time to Start
  headway fleet ttr --store ./store --by model          Time to Recover
  headway fleet failures --store ./store --by owner     what failed, and what it cost
  headway fleet checkpoints --store ./store             what saves block
  headway fleet compile --store ./store --by torch      what compiling costs
  headway fleet nodes --store ./store --limit 10        hosts and their failures
  headway fleet top --store ./store                     where accelerator-hours are lost most
  headway fleet regressions --store ./store             what got worse, when, and what changed there
  headway fleet alerts --store ./store --rules a.toml   tell whom it concerns, by rules
  headway fleet simulate --store ./sim --jobs 100000    a fleet that never ran, to try things on
  headway fleet metrics --store ./store                 a page for Prometheus to scrape
  headway fleet compact --store ./store                 many small files into few

Every mean is given twice: by accelerator-hours, and by jobs. Runs come into a store by
`headway run --store` or `headway ingest`.
"""

from __future__ import annotations

import argparse
import importlib

# Each has `prepare(parser)` and `run(args)`; the name stands in `args.action`.
ASK = "headway.cli.fleet_ask"
ACTIONS = {
    "ett": (ASK, "ETT%, idleness% and failure%"),
    "tts": (ASK, "Time to Start"),
    "ttr": (ASK, "Time to Recover"),
    "failures": (ASK, "failures by category, and what they cost"),
    "checkpoints": (ASK, "how long saves block the training"),
    "compile": (ASK, "what compiling costs, and how much came from a cache"),
    "nodes": (ASK, "hosts: what ran there, and what failed there first"),
    "top": (ASK, "where accelerator-hours are lost most"),
    "regressions": ("headway.cli.fleet_regressions", "what got worse, when, and what changed"),
    "alerts": ("headway.cli.fleet_alerts", "rules, and whom to tell"),
    "simulate": ("headway.cli.fleet_simulate", "a fleet that never ran, to try things on"),
    "metrics": ("headway.cli.fleet_metrics", "a page for Prometheus to scrape"),
    "compact": ("headway.cli.fleet_compact", "many small files into few"),
}


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `headway fleet`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (module, text) in ACTIONS.items():
        # argparse formats `help` with %, and prints `description` as it is.
        part = actions.add_parser(name, help=text.replace("%", "%%"), description=text)
        importlib.import_module(module).prepare(part)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    code: int = importlib.import_module(ACTIONS[args.action][0]).run(args)
    return code
