"""The command line: one file per verb, each with `prepare(parser)` and `run(args)`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from headway import __version__
from headway.errors import HeadwayError

VERBS = {
    "run": "start a command and record where its time goes",
    "chaos": "run a command with planned faults, and see what was made of them",
    "report": "show the ledger of a run: terminal, JSON or one HTML file",
    "advise": "say what to change next in a run or a store, and what each change is worth",
    "top": "watch a run live in the terminal",
    "compare": "compare runs: two with gates for CI, or a series as a waterfall",
    "plan": "say what ETT to expect of a job before it runs, and how often it should save",
    "export": "write a run or a store for another tool: Perfetto, Prometheus, OTLP, ...",
    "autotune": "say what autotuning cost, and prune what is tried next time",
    "recompiles": "say why torch.compile compiled again, and what cures it",
    "classify": "say why a job failed, from any log",
    "cache": "look after a store of compile archives",
    "ingest": "write the ledgers of runs to a store",
    "fleet": "ask a store about all runs in it",
    "simulate": "play a trace through a cluster, and see what each policy of eviction costs",
    "schedule": "choose who is evicted by what it would waste, and tell schedulers",
    "serve": "show a store as web pages",
    "publish": "make a snapshot that serves of an anchor checkpoint",
    "auto": "show what `run --auto` has learned of a job, or forget it",
    "doctor": "start a child as `run` does and say what would be seen",
    "config": "print every setting and where its value came from",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(args)
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `headway report | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("HEADWAY_DEBUG"):
            raise
        print(
            f"headway: internal fault, {type(error).__name__}: {error}; "
            "set HEADWAY_DEBUG=1 and run it again to see where",
            file=sys.stderr,
        )
        return 70


def _dispatch(args: list[str]) -> int:
    verb = args[0] if args else ""
    if verb in VERBS:
        module = importlib.import_module(f"headway.cli.{verb}")
        parser = _Parser(prog=f"headway {verb}", description=module.__doc__)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        module.prepare(parser)
        code: int = module.run(parser.parse_args(args[1:]))
        return code
    _top_parser().parse_args(args)
    _top_parser().print_help(sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    """argparse, but a wrong use is one sentence."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"headway: {message}; try `{self.prog} --help`\n")


def _top_parser() -> argparse.ArgumentParser:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {text}" for name, text in VERBS.items())
    parser = _Parser(
        prog="headway",
        usage="headway VERB [options]",
        description=f"Effective Training Time of PyTorch jobs.\n\nverbs:\n{verbs}",
        epilog="start here:  headway run -- torchrun --nproc-per-node 8 train.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"headway {__version__}")
    parser.add_argument("verb", nargs="?", choices=VERBS, help=argparse.SUPPRESS)
    return parser
