"""Command line: dispatch of verbs; errors become one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from headway import __version__
from headway.errors import HeadwayError, with_code

TYPE_CHECKING = False  # `headway --help` does not need typing
if TYPE_CHECKING:
    from typing import Any

VERBS = {
    "run": "run a command and record where its time goes",
    "chaos": "run a command with planned faults and report what was detected",
    "report": "show the ledger of a run: terminal, JSON or one HTML file",
    "advise": "list what to change next in a run or a store, and the gain of each change",
    "top": "watch a run live in the terminal",
    "compare": "compare runs: two with gates for CI, or a series as a waterfall",
    "plan": "estimate the ETT of a job before it runs, and its best checkpoint interval",
    "export": "export a run or a store to another tool: Perfetto, Prometheus, OTLP, ...",
    "autotune": "report the cost of autotuning, and prune the configs of the next run",
    "recompiles": "explain why torch.compile recompiled, and how to avoid it",
    "classify": "find the cause of a failed job in any log",
    "cache": "list, verify, copy and clean up compile archives",
    "ingest": "write the ledgers of runs to a store",
    "fleet": "query and maintain a store of many runs",
    "simulate": "replay a trace on a simulated cluster, and compare eviction policies",
    "schedule": "evict jobs by what it would waste, and publish that cost to schedulers",
    "serve": "serve a store as web pages",
    "publish": "publish an anchor checkpoint as an inference-ready snapshot",
    "auto": "show or delete what `run --auto` has learned about a job",
    "doctor": "check what Headway can record in this environment",
    "config": "print every setting and the origin of its value",
}

# Verbs that share a module with another one: prepare_NAME and run_NAME there.
SHARED = {
    "top": "headway.cli.report:top",
    "auto": "headway.cli.settings:auto",
    "config": "headway.cli.settings:config",
    "ingest": "headway.cli.fleet:ingest",
}


def function(place: str, kind: str) -> Callable[..., Any]:
    """`prepare` or `run` of a command; `place` is a module, or `module:name` if it has several."""
    module, _, name = place.partition(":")
    result: Callable[..., Any] = getattr(
        importlib.import_module(module), f"{kind}_{name}" if name else kind
    )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # for names that the terminal cannot encode
        sys.stdout.reconfigure(errors="replace")
    # The job inherits standard output unchanged.
    runs_job = args[:1] in (["run"], ["chaos"])
    if sys.stdout is None and not runs_job:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        code = _dispatch(args, ends_process=argv is None)
        if not runs_job:
            sys.stdout.flush()
        return code
    except HeadwayError as error:
        _print_error(with_code(_redacted(f"headway: {error}"), code=error.code))
        return error.exit_code
    except BrokenPipeError:  # `headway report | head`
        _discard_stdout()
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("HEADWAY_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename and error.strerror:
            text = _redacted(f"headway: cannot use {error.filename}: {error.strerror}")
            _print_error(with_code(text, code="path-unusable"))
            return 2
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            text = f"headway: cannot write the output: {error.strerror}"
            _print_error(with_code(text, code="output-unwritable"))
            _discard_stdout()
            return HeadwayError.exit_code
        text = f"headway: internal fault, {type(error).__name__}: {error}; "
        text += "set HEADWAY_DEBUG=1 and run it again for a traceback"
        _print_error(with_code(_redacted(text), code="internal-fault"))
        return 70


def _discard_stdout() -> None:
    """Otherwise Python tries to flush the rest at exit."""
    with contextlib.suppress(OSError, ValueError):  # not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(line: str) -> None:
    print(line, file=sys.stderr)


def _redacted(text: str) -> str:
    from headway import redact

    return redact.text(text)


def _dispatch(args: list[str], *, ends_process: bool) -> int:
    verb = args[0] if args else ""
    if verb in VERBS:
        parsed = verb_parser(verb).parse_args(args[1:])
        parsed.ends_process = ends_process  # the process exits after the verb
        code: int = function(_place(verb), "run")(parsed)
        return code
    _top_parser().parse_args(args)
    _top_parser().print_help(sys.stderr)
    return 2


def verb_parser(verb: str) -> argparse.ArgumentParser:
    """Parser of one verb, with its sub-commands."""
    module = importlib.import_module(_place(verb).partition(":")[0])
    parser = _Parser(prog=f"headway {verb}", description=module.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    function(_place(verb), "prepare")(parser)
    return parser


def _place(verb: str) -> str:
    return SHARED.get(verb, f"headway.cli.{verb}")


def commands() -> list[tuple[str, ...]]:
    """Words of every command, at every level: (), ("run",), ..., ("fleet", "ett"), ..."""
    return [(), *(words for verb in VERBS for words in _walk(verb_parser(verb), (verb,)))]


def _walk(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, part in action.choices.items():
                yield from _walk(part, (*words, name))


class _Parser(argparse.ArgumentParser):
    """argparse, but an error is one line with a code."""

    def error(self, message: str) -> None:  # type: ignore[override]
        text = _redacted(f"headway: {message}; try `{self.prog} --help`")
        self.exit(2, with_code(text, code="wrong-usage") + "\n")


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
