"""Run a command, record where its time goes, and show the ledger at the end.

  headway run -- torchrun --nproc-per-node 8 train.py
  headway run --name night-1 -- python train.py --lr 0.1
  headway run -o s3://bucket/night-1 -- srun python train.py
  headway run --publish recipe.toml --publish-to ./snapshots -- torchrun train.py

The command runs as it would without Headway: its exit code is passed through, signals reach its
whole process group, and its output is not changed. Restarted jobs (torchrun, Slurm requeue, or the
same HEADWAY_RUN) are joined into one run. Invalid flags, settings or command lines exit with 2
before the job starts; any other problem affects at most the recording.
"""

from __future__ import annotations

import argparse
from typing import Any

from headway.session.session import TIERS


def prepare(parser: argparse.ArgumentParser, plan: str = "--chaos") -> None:
    """Add the flags of `headway run`; `plan` is the name of the flag for a fault plan."""
    declined: dict[str, Any] = {"action": "store_const", "const": ""}
    parser.usage = "headway run [-o DIR|URL] [--name NAME] [--restarts N] [options] -- COMMAND..."
    either = argparse.BooleanOptionalAction
    parser.add_argument("-o", "--output", metavar="DIR|URL", help="the run folder")
    parser.add_argument(
        "--auto", action=either, help="enable all boosters that are safe for this job"
    )
    parser.add_argument("--name", help="name of the run; its folder is headway/NAME")
    parser.add_argument("--force", action="store_true", help="replace a run with the same name")
    parser.add_argument(
        "--join",
        action="store_true",
        help="continue an unfinished run with that name, whoever started it",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        metavar="N",
        help="restart a failed job up to N times if the cause may be transient",
    )
    parser.add_argument(
        plan,
        dest="chaos",
        metavar="PLAN",
        help="fault plan: a file, or one line such as 'kill rank=1 step=30'",
    )
    parser.add_argument(
        "--warm",
        action=either,
        help="restart by forking a process that has the imports loaded",
    )
    parser.add_argument(
        "--hang-after",
        type=float,
        metavar="S",
        help="minimum seconds without a step before a job counts as hung (120)",
    )
    parser.add_argument(
        "--no-hang-watch", action="store_true", help="do not detect or kill hung jobs"
    )
    parser.add_argument(
        "--compile-cache", metavar="URL", help="share the results of torch.compile between jobs"
    )
    parser.add_argument(
        "--no-compile-cache",
        dest="compile_cache",
        help="disable the compile cache even under --auto",
        **declined,
    )
    parser.add_argument(
        "--compile-tier", choices=TIERS, help="precompile: also store what Dynamo has traced"
    )
    parser.add_argument("--cache-key", metavar="FILE", help="the team's key for compile archives")
    parser.add_argument(
        "--autotune",
        metavar="RUN|FILE",
        help="try only the configs that `headway autotune` selected",
    )
    parser.add_argument(
        "--no-autotune",
        dest="autotune",
        help="disable autotune pruning even under --auto",
        **declined,
    )
    parser.add_argument(
        "--learn",
        action=either,
        help="mark dimensions as dynamic that made earlier runs recompile",
    )
    parser.add_argument("--async-save", action=either, help="write checkpoints in the background")
    parser.add_argument(
        "--publish", metavar="RECIPE", help="publish the last checkpoint in a separate job"
    )
    parser.add_argument(
        "--no-publish",
        dest="publish",
        help="disable publishing even under --auto",
        **declined,
    )
    parser.add_argument(
        "--publish-to",
        metavar="STORE",
        default="snapshots",
        help="folder or URL of the snapshots (snapshots)",
    )
    parser.add_argument(
        "--publish-by",
        metavar="HOW",
        default="local",
        help="local, 'slurm [OPTIONS of sbatch]', or a command that runs a command (local)",
    )
    parser.add_argument(
        "--store", metavar="URL", help="also write the ledger to a store of many runs"
    )
    parser.add_argument(
        "--label", metavar="NAME=VALUE,...", help="labels of the run, such as team=ads,model=dlrm"
    )
    parser.add_argument("--no-report", action="store_true", help="print no summary at the end")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command to run, after `--`")


def run(args: argparse.Namespace) -> int:
    from headway.session.session import run_session

    return run_session(args)
