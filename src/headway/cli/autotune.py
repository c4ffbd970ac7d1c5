"""Report the cost of autotuning, and write the few configs that are worth trying next time.

examples:
  headway autotune RUN                          the report, and RUN/autotune.json
  headway autotune RUN --loss 5                 accept kernels that are up to 5 % slower
  headway autotune RUN --code                   print Python code to paste
  headway autotune MONDAY TUESDAY -o both.json  combine the shapes of several runs
  headway run --autotune RUN -- COMMAND         the next run tries only these configs

Only recorded tunings are pruned: other shapes, GPUs or Triton versions try every config.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.compile.autotune.advice import KernelAdvice
    from headway.compile.autotune.records import Kernel
    from headway.journal.reader import Journal


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders of recorded runs")
    parser.add_argument(
        "--loss",
        type=float,
        default=2.0,
        metavar="PERCENT",
        help="accepted slowdown of a kernel (2)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="output file (RUN/autotune.json)")
    parser.add_argument(
        "--force", action="store_true", help="overwrite FILE even if it is not an advice file"
    )
    output_format = parser.add_mutually_exclusive_group()
    output_format.add_argument("--json", action="store_true", help="print JSON")
    output_format.add_argument("--code", action="store_true", help="print Python code to paste")
    parser.add_argument("--all", action="store_true", help="show every kernel, key and config")


def run(args: argparse.Namespace) -> int:
    from headway.compile.autotune.advice import advise, same_setup

    if not 0 <= args.loss <= 1000:
        raise UsageError(
            f"--loss is {args.loss:g}, but it must be from 0 to 1000 percent",
            code="loss-out-of-range",
        )
    if "://" in args.runs[0] and not args.output:
        raise UsageError(
            f"{args.runs[0]} is a URL; give a file to write: -o autotune.json",
            code="output-not-given",
        )
    kernels = _kernels(args.runs)
    setup, selected = same_setup(kernels)
    if setup is None:
        raise UsageError(
            f"no autotuning was recorded in {' '.join(args.runs)}; kernels of "
            "@triton.autotune and torch.compile are recorded when tuned under `headway run`",
            code="autotuning-not-recorded",
        )
    advised = [advise(kernel, args.loss / 100) for kernel in selected]
    left_out = len(kernels) - len(selected)
    content = _content(args, setup, advised)
    target = _write(args, content)
    if args.json:
        print(json.dumps(content | {"ranking": _rankings(advised)}, indent=1))
    elif args.code:
        _print_code(advised, args.loss)
    else:
        _print(args, setup, advised, left_out, target)
    return 0


def _kernels(runs: Sequence[str]) -> list[Kernel]:
    from headway.compile.autotune.records import collect

    return collect(journal for run in runs for journal in _journals(run))


def _journals(run: str) -> list[Journal]:
    from headway.journal import reader, run_files

    if "://" not in run:
        return reader.read_journals(str(run_files.find_run(run) / run_files.JOURNAL))[0]
    with tempfile.TemporaryDirectory() as copy:
        run_files.fetch_run(run, Path(copy))
        return reader.read_journals(str(run_files.find_run(copy) / run_files.JOURNAL))[0]


def _content(
    args: argparse.Namespace, setup: Any, advised: Sequence[KernelAdvice]
) -> dict[str, Any]:
    from headway.compile.autotune.advice import to_dict

    names = [Path(run).resolve().name for run in args.runs]
    return to_dict(setup, advised, args.loss / 100, names)


def _write(args: argparse.Namespace, content: dict[str, Any]) -> Path | None:
    """Write the file and return its path; None if nothing can be pruned."""
    from headway.compile.autotune.advice import ADVICE_FILE, check_advice_file
    from headway.storage.output_file import write_output

    if not content["kernels"]:
        return None
    target = Path(args.output) if args.output else Path(args.runs[0]) / ADVICE_FILE
    replaceable = not args.output
    if target.is_file() and not replaceable and not args.force:
        try:
            check_advice_file(target)
            replaceable = True
        except UsageError:
            pass
    write_output(
        target, (json.dumps(content, indent=1) + "\n").encode(), force=args.force or replaceable
    )
    return target


def _rankings(advised: Sequence[KernelAdvice]) -> dict[str, list[dict[str, Any]]]:
    """Per kernel, each config with the keys it won, its median and worst distance in percent."""
    return {
        advice.kernel.id: [
            {
                "config": config,
                "won": won,
                "median_percent": round(middle * 100, 3),
                "worst_percent": None if worst == float("inf") else round(worst * 100, 3),
            }
            for config, won, middle, worst in advice.ranking()
        ]
        for advice in advised
    }


def _print_code(advised: Sequence[KernelAdvice], loss: float) -> None:
    from headway.compile.autotune.render import python_code

    for advice in advised:
        if advice.kernel.kind == "triton" and advice.keys:
            print(python_code(advice, loss))
    others = sum(advice.kernel.kind != "triton" for advice in advised)
    if others:
        print(f"# {others} kernels are generated by torch: `headway run --autotune` prunes them.")


def _print(
    args: argparse.Namespace,
    setup: Any,
    advised: Sequence[KernelAdvice],
    left_out: int,
    target: Path | None,
) -> None:
    from rich.text import Text

    from headway.compile.autotune.render import report_lines
    from headway.report.screen import console, print_line

    screen = console()
    for line in report_lines(setup, advised, everything=args.all):
        print_line(screen, Text(line))
    if any(advice.kernel.pruned for advice in advised):
        earlier = "  this file does not contain what an earlier file pruned: add that run, as in"
        print_line(screen, Text(f"{earlier} `headway autotune EARLIER {' '.join(args.runs)}`"))
    if left_out:
        print_line(
            screen,
            Text(f"  {left_out} kernels were tuned on another GPU or Triton and are omitted"),
        )
    print_line(screen, Text(""))
    if target is None:
        print_line(screen, Text("  nothing to write: every tuning was already pruned, or failed"))
        return
    named = args.output or args.runs[0]
    print_line(screen, Text(f"  wrote {target}"))
    print_line(screen, Text(f"  next: headway run --autotune {named} -- YOUR COMMAND"))
