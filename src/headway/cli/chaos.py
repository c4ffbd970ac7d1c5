"""Rehearse failures: run a command with planned faults, and see what was made of them.

  headway chaos --plan faults.toml --restarts 3 -- torchrun --nproc-per-node 2 train.py
  headway chaos --plan 'kill rank=1 step=30; stop rank=0 step=80' --restarts 3 -- torchrun ...
  headway chaos --plan faults.toml --dry-run

It is `headway run --chaos`, with the same flags. A plan names faults by step, by time or by rate;
the same plan and seed give the same faults. The report shows each beside what was detected.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli import run as run_verb
from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.launch.chaos import FaultPlan


def prepare(parser: argparse.ArgumentParser) -> None:
    """The flags of `headway run`, and the plan."""
    run_verb.prepare(parser, plan="--plan")
    parser.usage = "headway chaos --plan PLAN [--dry-run] [options of run] -- COMMAND..."
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be done and when, and do nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Run it with the faults of the plan, or print them."""
    if args.chaos is None:
        raise UsageError(
            "no plan is given; type: headway chaos --plan 'kill rank=1 step=30' -- ...",
            code="plan-missing",
        )
    if not args.dry_run:
        return run_verb.run_session(args)
    from headway.launch.chaos import schedule

    plan = read_plan(args.chaos)
    print(f"seed {plan.seed}, {len(plan.faults)} fault(s)")
    for line in schedule.describe_schedule(plan):
        print(line)
    return 0


def read_plan(text: str) -> FaultPlan:
    """The plan in a TOML or JSON file of that name, or written out in one line."""
    from headway.launch.chaos import parse_inline_plan, parse_plan

    path = Path(text)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a name
        is_file = False
    if is_file:
        return parse_plan(_read_file(path), text)
    if path.suffix in (".toml", ".json") and "=" not in text:
        raise UsageError(f"there is no plan {text}; check its name", code="plan-not-found")
    return parse_inline_plan(text, "the plan")


def _read_file(path: Path) -> dict[str, Any]:
    if path.suffix != ".json":
        from headway.settings import read_toml

        return read_toml(path)
    import json

    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}", code="json-invalid") from None
    if not isinstance(found, dict):
        raise UsageError(
            f"{path} holds no table; a plan is {{'seed': 7, 'fault': [...]}}",
            code="plan-not-a-table",
        )
    return found
