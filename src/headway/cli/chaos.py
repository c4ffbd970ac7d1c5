"""Run a command with planned faults and report what was detected.

  headway chaos --plan faults.toml --restarts 3 -- torchrun --nproc-per-node 2 train.py
  headway chaos --plan 'kill rank=1 step=30; stop rank=0 step=80' --restarts 3 -- torchrun ...
  headway chaos --plan faults.toml --dry-run

Same as `headway run --chaos`, with the same flags. A plan lists faults by step, by time or by rate;
the same plan and seed give the same faults. The report shows each fault and what was detected.
"""

from __future__ import annotations

import argparse

from headway.chaos.plan import read_plan
from headway.cli import run as run_verb
from headway.errors import UsageError


def prepare(parser: argparse.ArgumentParser) -> None:
    run_verb.prepare(parser, plan="--plan")
    parser.usage = "headway chaos --plan PLAN [--dry-run] [options of run] -- COMMAND..."
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the schedule of faults without running the command",
    )


def run(args: argparse.Namespace) -> int:
    if args.chaos is None:
        raise UsageError(
            "no plan is given; type: headway chaos --plan 'kill rank=1 step=30' -- ...",
            code="plan-missing",
        )
    if not args.dry_run:
        return run_verb.run(args)
    from headway.chaos import schedule

    plan = read_plan(args.chaos)
    print(f"seed {plan.seed}, {len(plan.faults)} fault(s)")
    for line in schedule.describe_schedule(plan):
        print(line)
    return 0
