"""Start a command, record where its time goes, and show the ledger at the end.

  headway run -- torchrun --nproc-per-node 8 train.py
  headway run --name night-1 -- python train.py --lr 0.1
  headway run -o s3://bucket/night-1 -- srun python train.py
  headway run --publish recipe.toml --publish-to ./snapshots -- torchrun train.py

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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.boosters.drive import Drive
    from headway.boosters.pilot import Pilot
    from headway.compile.archive.store import Store
    from headway.compile.courier import Courier
    from headway.compile.recompiles.learned import Lesson
    from headway.launch.ingest import Ingester
    from headway.launch.last_save import Saves
    from headway.launch.publish import Order
    from headway.launch.supervise import Options
    from headway.launch.target import Target
    from headway.settings import Settings


TIERS = ("safe", "precompile")


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
    """Run it."""
    from headway.cli.chaos import read_plan
    from headway.errors import HeadwayError, UsageError
    from headway.launch import publish, signals, supervise, target
    from headway.ledger.model import shell_code

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("no command to run; type: headway run -- torchrun train.py")
    supervise.check(command)
    settings, drive = _settings(
        command,
        args.publish,
        auto=args.auto,
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
        store=args.store,
        labels=args.label,
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
    order = None
    recipe = args.publish or (drive.choice.recipe if drive else None)
    try:
        if recipe:
            order = publish.order(recipe, args.publish_to, args.publish_by)
            _read_recipe(order)
    except HeadwayError as error:
        if drive is None or args.publish:
            raise
        drive.cannot_publish(str(error))
        order = None
    where = target.prepare(
        command,
        output=settings.output,
        name=settings.name,
        force=args.force,
        labels=_labels(settings, command),
    )
    say(f"headway: recording to {where.url or where.folder}")
    say(f"headway: watch it with `headway top {where.folder}`")
    lesson = _lesson(command, where) if settings.learn else None
    if lesson is not None:
        options = replace(options, env={**options.env, **lesson.begin(os.environ)})
    ingester = _ingester(settings, where)
    if ingester is not None:
        options = replace(options, spare=ingester.pids)
    with signals.held():  # threads that begin in it leave signals to this one
        if store is not None:
            options = replace(options, companion=_courier(store, command, settings))
        if drive is not None:
            options = replace(options, pilot=_pilot(drive, options, lesson))
        if ingester is not None:
            ingester.start()
        status = _run(command, where, options, order, quiet=not settings.report)
        if ingester is not None:
            ingester.finish()
        if lesson is not None:
            lesson.end(where.folder, status)
        if drive is not None:
            drive.end(where.folder, status)
    if status == -signal.SIGINT:  # so that a script which runs us stops too, as it would without
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return shell_code(status)


def _settings(
    command: Sequence[str], publish: str | None, **flags: Any
) -> tuple[Settings, Drive | None]:
    """The settings in force; with --auto also those that the user has left to us."""
    from headway.settings import Settings, resolve

    resolved = resolve(**flags)
    settings = Settings(**{name: value for name, (value, _) in resolved.items()})
    if not settings.auto:
        return settings, None
    from headway.boosters.drive import Drive

    try:
        drive = Drive(command, settings.output, resolved, publish, say)
    except Exception as error:  # the job runs as it would without
        say(f"headway: auto: not used ({type(error).__name__}: {error})")
        return settings, None
    return replace(settings, **drive.choice.set), drive


def _pilot(drive: Drive, options: Options, lesson: Lesson | None) -> Pilot:
    """Who can take a booster back; told by which variables each of them acts."""
    from headway.boosters import names
    from headway.boosters.pilot import Given
    from headway.compile.courier import Courier
    from headway.probe import ENV_ASYNC, ENV_AUTOTUNE

    parts = drive.pilot.parts
    if isinstance(options.companion, Courier):
        parts[names.COMPILE_CACHE] = options.companion
    if lesson is not None:
        parts[names.LEARN] = Given(lesson.applied)
    for name, variable in ((names.AUTOTUNE, ENV_AUTOTUNE), (names.ASYNC_SAVE, ENV_ASYNC)):
        told = {variable: options.env[variable]} if variable in options.env else {}
        # A save behind the training is judged by what became of it.
        parts[name] = Given(told, acts=name == names.AUTOTUNE)
    return drive.pilot


def _labels(settings: Settings, command: Sequence[str]) -> dict[str, str]:
    """What the run belongs to; for a store also by which code and configuration it was made."""
    from headway.fleet.labels import parse

    labels = parse(settings.labels)
    if not (labels or settings.store):
        return {}
    from headway.compile.courier import code_of, config_of

    return {"code": code_of(command), "config": config_of(command), **labels}


def _ingester(settings: Settings, where: Target) -> Ingester | None:
    """Who writes the run to a store, if that is wanted and can be done."""
    if not settings.store:
        return None
    from headway.errors import MissingExtra
    from headway.fleet.arrow import TO_WRITE, need
    from headway.launch.ingest import Ingester

    try:
        need(*TO_WRITE)
    except MissingExtra as error:
        say(f"headway: the run will not be in the store: {error}")
        return None
    return Ingester(where.folder, settings.store, say)


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


def _read_recipe(order: Order) -> None:
    """What is wrong in it is told before the training begins, not when it has ended."""
    from headway.launch.publish import LOCAL
    from headway.publish import factories, recipe

    found = recipe.read(Path(order.recipe))
    if order.by[0] == LOCAL:  # elsewhere other things may be installed
        factories.check(found)


def _publish(order: Order, where: Target) -> None:
    """The last checkpoint of a job that has ended well is handed over; nobody waits for it."""
    from headway.launch import last_save, publish

    try:
        saves = last_save.find(where.journal, os.uname().nodename)
        if not saves.here:
            return  # the node of rank 0 does it
        anchor = _anchor(saves, where)
        if anchor is None:
            say("headway: nothing is published: no checkpoint of the job was found")
            return
        say(f"headway: publishing {anchor}: {publish.begin(order, anchor, where)}")
    except Exception as error:  # the job has ended well: that is not to be lost
        say(f"headway: nothing is published: {error or type(error).__name__}")


def _anchor(saves: Saves, where: Target) -> str | None:
    """A checkpoint of a Checkpointer that this run has made, else of DCP, else of torch.save."""
    from headway.journal import folder
    from headway.publish.last import last

    since = float(folder.read_identity(where.folder).get("created") or 0.0)
    found = filter(None, (last(store, since) for store in saves.stores))
    return next(found, next(iter((*saves.folders, *saves.files)), None))


def _run(
    command: Sequence[str], where: Target, options: Options, order: Order | None, *, quiet: bool
) -> int:
    """The job, and what is told of it; nothing after its end can cost it its exit code."""
    from headway.launch import supervise
    from headway.launch.ship import Shipper

    shipper = Shipper(where.folder, where.url) if where.url else None
    if shipper:
        shipper.start()
    status = supervise.supervise(command, where, options, say)
    try:
        if order is not None and status == 0:
            _publish(order, where)
        conclude(where.folder, quiet=quiet)
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


def conclude(path: Path, *, quiet: bool) -> None:
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
