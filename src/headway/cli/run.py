"""Start a command, record where its time goes, and show the ledger at the end.

  headway run -- torchrun --nproc-per-node 8 train.py
  headway run --name night-1 -- python train.py --lr 0.1
  headway run -o s3://bucket/night-1 -- srun python train.py

The command runs as it would without Headway: its exit code is passed through, signals reach its
whole process group, and its output is its own. Restarted jobs (torchrun, Slurm requeue, or the
same HEADWAY_RUN) are joined to one run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.compile.archive.store import Store
    from headway.compile.courier import Courier
    from headway.compile.recompiles.learned import Lesson
    from headway.launch.supervise import Options
    from headway.launch.target import Target
    from headway.settings import Settings


TIERS = ("safe", "precompile")


def prepare(parser: argparse.ArgumentParser, plan: str = "--chaos") -> None:
    """The flags of `headway run`; `plan` is the one that names a plan of faults."""
    parser.usage = "headway run [-o DIR|URL] [--name NAME] [--restarts N] [options] -- COMMAND..."
    parser.add_argument("-o", "--output", metavar="DIR|URL", help="the run folder")
    parser.add_argument("--name", help="name of the run; its folder is headway/NAME")
    parser.add_argument("--force", action="store_true", help="replace a run of that name")
    parser.add_argument(
        "--restarts", type=int, metavar="N", help="start it again up to N times, as the cause asks"
    )
    parser.add_argument(
        plan,
        dest="chaos",
        metavar="PLAN",
        help="faults to rehearse: a file, or 'kill rank=1 step=30'",
    )
    parser.add_argument(
        "--warm", action="store_true", default=None, help="fork restarts, with imports done"
    )
    parser.add_argument(
        "--hang-after", type=float, metavar="S", help="no shorter silence is a hang; 120"
    )
    parser.add_argument("--no-hang-watch", action="store_true", help="let it stand still")
    parser.add_argument(
        "--compile-cache", metavar="URL", help="share what torch.compile makes between jobs"
    )
    parser.add_argument(
        "--compile-tier", choices=TIERS, help="precompile: keep what dynamo has traced as well"
    )
    parser.add_argument("--cache-key", metavar="FILE", help="the team's key for such archives")
    parser.add_argument(
        "--autotune", metavar="RUN|FILE", help="try only configs that `headway autotune` kept"
    )
    parser.add_argument(
        "--learn", action="store_true", default=None, help="mark what earlier runs recompiled for"
    )
    parser.add_argument(
        "--async-save", action="store_true", default=None, help="write saves behind the training"
    )
    parser.add_argument("--no-report", action="store_true", help="print no summary at the end")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after `--`: what to run")


def run(args: argparse.Namespace) -> int:
    """Run it."""
    from headway.cli.chaos import read_plan
    from headway.errors import UsageError
    from headway.launch import signals, supervise, target
    from headway.ledger.model import shell_code
    from headway.settings import Settings

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("no command to run; type: headway run -- torchrun train.py")
    supervise.check(command)
    settings = Settings.read(
        output=args.output,
        name=args.name,
        restarts=args.restarts,
        warm=args.warm,
        hang_after=args.hang_after,
        compile_cache=args.compile_cache,
        compile_tier=args.compile_tier,
        cache_key=args.cache_key,
        autotune=args.autotune,
        learn=args.learn,
        async_save=args.async_save,
        hang_watch=False if args.no_hang_watch else None,
        report=False if args.no_report else None,
    )
    options = supervise.Options(
        restarts=settings.restarts,
        hang_watch=settings.hang_watch,
        hang_after=settings.hang_after,
        warm=settings.warm,
        chaos=None if args.chaos is None else read_plan(args.chaos),
        env=_env(settings),
    )
    store = _store(settings)
    where = target.prepare(command, output=settings.output, name=settings.name, force=args.force)
    say(f"headway: recording to {where.url or where.folder}")
    say(f"headway: watch it with `headway top {where.folder}`")
    lesson = _lesson(command, where) if settings.learn else None
    if lesson is not None:
        options = replace(options, env={**options.env, **lesson.begin(os.environ)})
    with signals.held():  # threads that begin in it leave signals to this one
        if store is not None:
            options = replace(options, companion=_courier(store, command, settings))
        status = _run(command, where, options, quiet=not settings.report)
        if lesson is not None:
            lesson.end(where.folder, status)
    if status == -signal.SIGINT:  # so that a script which runs us stops too, as it would without
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return shell_code(status)


def _env(settings: Settings) -> dict[str, str]:
    """What the probe is told to do beside recording."""
    from headway.probe import ENV_ASYNC, ENV_AUTOTUNE

    told = {ENV_ASYNC: "1"} if settings.async_save else {}
    if settings.autotune:
        from headway.compile.autotune.advice import find

        told[ENV_AUTOTUNE] = str(find(settings.autotune))
    return told


def _store(settings: Settings) -> Store | None:
    """Where compiled code is shared, if that is wanted and may be used."""
    from headway.errors import UsageError

    if settings.compile_tier not in TIERS:
        told = settings.compile_tier
        raise UsageError(f"compile_tier is {told!r}, but it must be one of {', '.join(TIERS)}")
    if not settings.compile_cache:
        return None
    from headway.compile import courier
    from headway.compile.archive.signing import read_key
    from headway.compile.archive.store import Store

    store = Store(
        settings.compile_cache, read_key(settings.cache_key) if settings.cache_key else None
    )
    off = courier.disabled()
    if off:
        say(f"headway: compile cache: not used, {off} is set")
        return None
    why = store.distrust()
    if why and "://" in settings.compile_cache:
        raise UsageError(
            f"archives are run as code, and {why}; give the team's key with --cache-key FILE"
        )
    if why:
        say(f"headway: compile cache: not used, {why}, or give a key with --cache-key FILE")
        return None
    return store


def _lesson(command: Sequence[str], where: Target) -> Lesson:
    from headway.compile.recompiles.learned import Lesson
    from headway.launch.target import job

    return Lesson(where.folder.parent, job(command), command, say)


def _courier(store: Store, command: Sequence[str], settings: Settings) -> Courier | None:
    from headway.compile.courier import Courier, code_of, config_of
    from headway.launch.target import job

    config = config_of(command) if settings.compile_tier == "precompile" else ""
    try:
        return Courier(store, job(command), code_of(command), say, config=config)
    except OSError as error:  # no room for its folder, or it may not be written
        say(f"headway: compile cache: not used, {error.filename}: {error.strerror}")
        return None


def _run(command: Sequence[str], where: Target, options: Options, *, quiet: bool) -> int:
    """The job, and what is told of it; nothing after its end can cost it its exit code."""
    from headway.launch import supervise
    from headway.launch.ship import Shipper

    shipper = Shipper(where.folder, where.url) if where.url else None
    if shipper:
        shipper.start()
    status = supervise.supervise(command, where, options, say)
    try:
        _conclude(where.folder, quiet=quiet)
    except (Exception, SystemExit) as error:  # rich exits when nobody reads its pipe
        say(
            f"headway: the ledger could not be written ({type(error).__name__}: {error}); "
            f"the journals are in {where.folder}"
        )
    if shipper:
        shipper.finish()
        if shipper.fault:
            say(f"headway: could not ship to {where.url}: {shipper.fault}")
    return status


def say(text: str) -> None:
    """One line to standard error, if there is one that takes it."""
    try:
        if sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):  # closed, full, or a pipe that nobody reads
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _conclude(path: Path, *, quiet: bool) -> None:
    """Write ledger.json and report.html, and print the summary."""
    from headway.journal import folder
    from headway.ledger.run import load

    loaded = load(path)
    contract = json.dumps(loaded.to_dict(), indent=1) + "\n"
    folder.write_atomically(path / folder.LEDGER_JSON, contract)
    try:
        from headway.report import html, screen, terminal
    except ImportError as error:  # a bare GPU machine: the numbers are there all the same
        say(
            f"headway: ETT {loaded.ett_percent:.1f} % of {loaded.ledger.wall / 1e9:.1f} s, see "
            f"{path / folder.LEDGER_JSON} (no report: {error.name} is not installed here)"
        )
        return
    folder.write_atomically(path / folder.REPORT_HTML, html.page(loaded.ledger))
    if not quiet and sys.stderr is not None:
        terminal.summary(loaded.ledger, path, screen.console(stderr=True))
