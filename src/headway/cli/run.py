"""Start a command, record where its time goes, and show the ledger at the end.

  headway run -- torchrun --nproc-per-node 8 train.py
  headway run --name night-1 -- python train.py --lr 0.1
  headway run -o s3://bucket/night-1 -- srun python train.py
  headway run --publish recipe.toml --publish-to ./snapshots -- torchrun train.py

The command runs as it would without Headway: its exit code is passed through, signals reach its
whole process group, and its output is its own. Restarted jobs (torchrun, Slurm requeue, or the
same HEADWAY_RUN) are joined to one run. Wrong flags, settings or command lines exit with 2 before
the job starts; any other problem costs at most the recording.
"""

from __future__ import annotations

import argparse
from typing import Any

from headway.session.session import TIERS


def prepare(parser: argparse.ArgumentParser, plan: str = "--chaos") -> None:
    """The flags of `headway run`; `plan` is the one that names a plan of faults."""
    declined: dict[str, Any] = {"action": "store_const", "const": ""}
    declined["help"] = "not by --auto either"
    parser.usage = "headway run [-o DIR|URL] [--name NAME] [--restarts N] [options] -- COMMAND..."
    either = argparse.BooleanOptionalAction
    parser.add_argument("-o", "--output", metavar="DIR|URL", help="the run folder")
    parser.add_argument("--auto", action=either, help="turn on all boosters that are safe for it")
    parser.add_argument("--name", help="name of the run; its folder is headway/NAME")
    parser.add_argument("--force", action="store_true", help="replace a run of that name")
    parser.add_argument(
        "--join",
        action="store_true",
        help="add to an unfinished run of that name, whoever began it",
    )
    parser.add_argument(
        "--restarts", type=int, metavar="N", help="start it again up to N times, as the cause asks"
    )
    parser.add_argument(
        plan,
        dest="chaos",
        metavar="PLAN",
        help="faults to rehearse: a file, or 'kill rank=1 step=30'",
    )
    parser.add_argument("--warm", action=either, help="fork restarts, with imports done")
    parser.add_argument(
        "--hang-after", type=float, metavar="S", help="no shorter silence is a hang; 120"
    )
    parser.add_argument("--no-hang-watch", action="store_true", help="let it stand still")
    parser.add_argument(
        "--compile-cache", metavar="URL", help="share what torch.compile makes between jobs"
    )
    parser.add_argument("--no-compile-cache", dest="compile_cache", **declined)
    parser.add_argument(
        "--compile-tier", choices=TIERS, help="precompile: keep what dynamo has traced as well"
    )
    parser.add_argument("--cache-key", metavar="FILE", help="the team's key for such archives")
    parser.add_argument(
        "--autotune", metavar="RUN|FILE", help="try only configs that `headway autotune` kept"
    )
    parser.add_argument("--no-autotune", dest="autotune", **declined)
    parser.add_argument("--learn", action=either, help="mark what earlier runs recompiled for")
    parser.add_argument("--async-save", action=either, help="write saves behind the training")
    parser.add_argument(
        "--publish", metavar="RECIPE", help="publish its last checkpoint by a job of its own"
    )
    parser.add_argument("--no-publish", dest="publish", **declined)
    parser.add_argument(
        "--publish-to", metavar="STORE", default="snapshots", help="folder or URL; snapshots"
    )
    parser.add_argument(
        "--publish-by",
        metavar="HOW",
        default="local",
        help="local, 'slurm [OPTIONS of sbatch]', or a command that runs a command",
    )
    parser.add_argument("--store", metavar="URL", help="write its ledger to a store of many runs")
    parser.add_argument(
        "--label", metavar="NAME=VALUE,...", help="what the run belongs to: team=ads,model=dlrm"
    )
    parser.add_argument("--no-report", action="store_true", help="print no summary at the end")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after `--`: what to run")


def run(args: argparse.Namespace) -> int:
    """Start the session."""
    from headway.session.session import run_session

    return run_session(args)
