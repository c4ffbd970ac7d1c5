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
import contextlib
import json
import os
import select
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from headway.errors import HeadwayError, TargetUnwritable, UsageError

if TYPE_CHECKING:
    from headway.boosters.drive import AutoPolicy
    from headway.boosters.pilot import BoosterMonitor
    from headway.compile.archive.store import ArchiveStore
    from headway.compile.courier import CompileCacheSync
    from headway.compile.recompiles.learned import RecompileLearner
    from headway.launch.ingest import StoreIngest
    from headway.launch.last_save import SavedCheckpoints
    from headway.launch.publish import PublishRequest
    from headway.launch.ship import RunUploader
    from headway.launch.supervise import Options
    from headway.launch.target import RunFolder
    from headway.settings import Settings


TIERS = ("safe", "precompile")
CLOSING_LIMIT_S = 900.0  # for all that follows the end of the job
STDERR_WAIT_S = 0.2  # for standard error to take a line
HURRIED_LIMIT_S = 10.0  # what is left of it after a signal


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


def run_session(args: argparse.Namespace) -> int:
    """Run it."""
    from headway.journal import files
    from headway.launch import process, signals
    from headway.ledger.model import shell_code

    files.fill_standard_fds()
    # First of all: threads that begin in it leave signals to this one.
    with signals.blocked(to_the_end=args.ends_process):
        session = Session(args)
        try:
            session.prepare()
        except TargetUnwritable as error:
            log_warning(f"{error}; the job runs as without Headway", code=error.code)
            status = process.run(session.command, os.environ)
        except UsageError:
            raise
        except Exception as error:  # a fault of ours
            log_fault("the job runs as without Headway", error)
            status = process.run(session.command, os.environ)
        else:
            status = session.run()
    code = shell_code(status)
    if session.cut_short:  # what is left of it may hold up the end of this interpreter
        sys.stdout.flush()
        os._exit(code)
    if status == -signal.SIGINT:
        signals.die_of_signal(signal.SIGINT)
    if args.ends_process:  # what other libraries do at the end is not waited for without limit
        last = threading.Timer(HURRIED_LIMIT_S, os._exit, [code])
        last.daemon = True
        with contextlib.suppress(RuntimeError):
            last.start()
    return code


class Session:
    """One `headway run`: what is made ready before the job starts, and what follows its end."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.command = args.command[1:] if args.command[:1] == ["--"] else args.command
        self.cut_short = False  # the time for what follows the job was over
        self.order: PublishRequest | None = None
        self.lesson: RecompileLearner | None = None
        self.ingester: StoreIngest | None = None
        self.shipper: RunUploader | None = None

    def prepare(self) -> None:
        """Check what the user has given, then find a folder and start what works beside the job.

        Only the first part may raise: UsageError.
        """
        from headway.cli.chaos import read_plan
        from headway.launch import supervise, target

        args = self.args
        if not self.command:
            raise UsageError(
                "no command to run; type: headway run -- torchrun train.py", code="command-missing"
            )
        supervise.check_command(self.command)
        self.settings, self.drive = _resolve_settings(
            self.command,
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
        settings = self.settings
        self.options = supervise.Options(
            restarts=settings.restarts,
            hang_watch=settings.hang_watch,
            hang_after=settings.hang_after,
            warm=settings.warm,
            chaos=None if args.chaos is None else read_plan(args.chaos),
            env=_probe_env(settings),
        )
        store = _compile_store(settings)
        _check_store_url(settings)
        self.order = _publish_request(args, self.drive)
        try:
            self.target = target.prepare(
                self.command,
                output=settings.output,
                name=settings.name,
                force=args.force,
                join=args.join,
                labels=_labels(settings, self.command),
                boosters=_enabled_boosters(settings, self.order),
            )
        except TargetUnwritable as error:
            url = settings.output if settings.output and "://" in settings.output else None
            self.target = target.prepare_temporary(self.command, url, str(error))
        self._announce()
        for part in (self._learn, self._ingest, self._ship):
            self._guarded(part)
        if store is not None:
            self._guarded(self._share, store)
        if self.drive is not None:
            self._guarded(self._watch_boosters, self.drive)

    @property
    def _recorded(self) -> bool:
        """Whether somebody will look at the run folder, here or at its URL."""
        return not self.target.temporary or self.target.url is not None

    def _announce(self) -> None:
        where, note = self.target, self.target.note
        if note:
            reason = note if self._recorded else f"not recording: {note}"
            log_warning(reason, code=note.code)
        if self._recorded and (where.temporary or not note):  # else the note says where
            log(f"headway: recording to {where.url or where.folder}")
        if self._recorded:
            log(f"headway: watch it with `headway top {where.folder}`")

    def _learn(self) -> None:
        from headway.compile.recompiles.learned import RecompileLearner
        from headway.launch.target import job_name

        if self.settings.learn and not self.target.temporary:
            folder = self.target.folder.parent
            lesson = self.lesson = RecompileLearner(
                folder, job_name(self.command), self.command, log
            )
            env = {**self.options.env, **lesson.begin(os.environ)}
            self.options = replace(self.options, env=env)

    def _ingest(self) -> None:
        if not self.target.temporary:
            self.ingester = _store_ingest(self.settings, self.target)
        if self.ingester is not None:
            self.ingester.start()

    def _ship(self) -> None:
        from headway.launch.ship import RunUploader

        if self.target.url:
            self.shipper = RunUploader(self.target.folder, self.target.url)
            self.shipper.start()

    def _share(self, store: ArchiveStore) -> None:
        self.options = replace(
            self.options, companion=_compile_cache_sync(store, self.command, self.settings)
        )

    def _watch_boosters(self, drive: AutoPolicy) -> None:
        self.options = replace(
            self.options, pilot=_booster_monitor(drive, self.options, self.lesson)
        )

    def run(self) -> int:
        """The job, and what follows it; nothing after its end can cost it its exit code."""
        from headway.launch import process, signals
        from headway.launch.supervise import Supervisor

        try:
            supervisor = Supervisor(self.command, self.target, self.options, log)
        except Exception as error:
            log_fault("the job runs as without Headway", error)
            return process.run(self.command, os.environ)
        status = supervisor.run()
        unfinished: list[str] = []

        def close(hurried: Callable[[], bool]) -> None:
            parts = [*supervisor.closing(hurried), *self._closing(status)]
            unfinished.extend(name for name, _ in parts)
            for _, part in parts:
                self._guarded(part)
                unfinished.pop(0)

        if not signals.run_with_deadline(close, CLOSING_LIMIT_S, HURRIED_LIMIT_S):
            self.cut_short = True
            log_warning(f"ended without: {', '.join(unfinished)}", code="closing-cut-short")
        return status

    def _closing(self, status: int) -> list[tuple[str, Callable[[], object]]]:
        """What follows the job, by name: the record first, then what takes longer."""
        folder = self.target.folder
        parts: list[tuple[str, Callable[[], object]]] = []
        if self.order is not None and status == 0:
            parts.append(("publishing", partial(_start_publish, self.order, self.target)))
        if self._recorded:
            parts.append(("report", self._report))
        if self.shipper is not None:
            parts.append(("shipping", self._finish_shipping))
        if self.ingester is not None:
            parts.append(("ingesting", self.ingester.finish))
        if self.lesson is not None:
            parts.append(("learning", partial(self.lesson.end, folder, status)))
        if self.drive is not None and not self.target.temporary:
            parts.append(("booster profile", partial(self.drive.end, folder, status)))
        if self.target.temporary:
            parts.append(("temporary folder", partial(shutil.rmtree, folder, ignore_errors=True)))
        return parts

    def _report(self) -> None:
        try:
            write_results(self.target.folder, quiet=not self.settings.report)
        except (Exception, SystemExit) as error:  # rich exits when nobody reads its pipe
            log_warning(
                f"the ledger could not be written ({type(error).__name__}: {error}); "
                f"the journals are in {self.target.folder}",
                code="ledger-not-written",
            )

    def _finish_shipping(self) -> None:
        assert self.shipper is not None
        self.shipper.finish()
        if self.shipper.fault:
            log_warning(
                f"could not ship to {self.shipper.url}: {self.shipper.fault}",
                code="run-not-shipped",
            )

    def _guarded(self, part: Callable[..., object], *args: object) -> None:
        """A part of ours that fails costs nothing but itself."""
        try:
            part(*args)
        except Exception as error:
            log_fault("continuing without it", error)


def _resolve_settings(
    command: Sequence[str], publish: str | None, **flags: Any
) -> tuple[Settings, AutoPolicy | None]:
    """The settings in force; with --auto also those that the user has left to us."""
    from headway.settings import Settings, resolve

    resolved = resolve(**flags)
    settings = Settings(**{name: value for name, (value, _) in resolved.items()})
    if not settings.auto:
        return settings, None
    from headway.boosters.drive import AutoPolicy

    try:
        drive = AutoPolicy(command, settings.output, resolved, publish, log)
    except Exception as error:  # the job runs as it would without
        log_warning(f"auto: not used ({type(error).__name__}: {error})", code="auto-not-used")
        return settings, None
    return replace(settings, **drive.choice.set), drive


def _booster_monitor(
    drive: AutoPolicy, options: Options, lesson: RecompileLearner | None
) -> BoosterMonitor:
    """Who can take a booster back; told by which variables each of them acts."""
    from headway.boosters import names
    from headway.boosters.pilot import StaticBooster
    from headway.compile.courier import CompileCacheSync
    from headway.probe import ENV_ASYNC, ENV_AUTOTUNE

    parts = drive.pilot.parts
    if isinstance(options.companion, CompileCacheSync):
        parts[names.COMPILE_CACHE] = options.companion
    if lesson is not None:
        parts[names.LEARN] = StaticBooster(lesson.applied)
    for name, variable in ((names.AUTOTUNE, ENV_AUTOTUNE), (names.ASYNC_SAVE, ENV_ASYNC)):
        told = {variable: options.env[variable]} if variable in options.env else {}
        # A save behind the training is judged by what became of it.
        parts[name] = StaticBooster(told, acts=name == names.AUTOTUNE)
    return drive.pilot


def _labels(settings: Settings, command: Sequence[str]) -> dict[str, str]:
    """What the run belongs to; for a store also by which code and configuration it was made."""
    from headway.fleet.labels import parse_labels

    labels = parse_labels(settings.labels)
    if not (labels or settings.store):
        return {}
    from headway.compile.courier import code_digest, config_digest

    return {"code": code_digest(command), "config": config_digest(command), **labels}


def _enabled_boosters(settings: Settings, order: PublishRequest | None) -> list[str]:
    """The names of those that are on, whoever has turned them on."""
    from headway.boosters.names import BOOSTERS, PUBLISH

    on = [name for name in BOOSTERS if name != PUBLISH and getattr(settings, name)]
    return [*on, PUBLISH] if order is not None else on


def _check_store_url(settings: Settings) -> None:
    """Where the ledger is to go; a place that does not answer now may do so later."""
    from headway.journal import remote

    url = settings.store or ""
    if "://" in url and not url.startswith(("postgresql://", "postgres://")):
        remote.check_url(url)


def _store_ingest(settings: Settings, where: RunFolder) -> StoreIngest | None:
    """Who writes the run to a store, if that is wanted and can be done."""
    if not settings.store:
        return None
    from headway.errors import MissingExtra
    from headway.fleet.arrow import WRITE_PACKAGES, require_packages
    from headway.launch.ingest import StoreIngest

    try:
        require_packages(*WRITE_PACKAGES)
    except MissingExtra as error:
        log_warning(f"the run will not be in the store: {error}", code=error.code)
        return None
    return StoreIngest(where.folder, settings.store, log)


def _publish_request(args: argparse.Namespace, drive: AutoPolicy | None) -> PublishRequest | None:
    """What is published when the job has ended well, if anything is."""
    from headway.launch import publish

    recipe = args.publish or (drive.choice.recipe if drive else None)
    if not recipe:
        return None
    try:
        order = publish.parse_request(recipe, args.publish_to, args.publish_by)
        _check_recipe(order)
    except HeadwayError as error:
        if drive is None or args.publish:
            raise
        drive.cannot_publish(str(error))
        return None
    return order


def _probe_env(settings: Settings) -> dict[str, str]:
    """What the probe is told to do beside recording."""
    from headway.probe import ENV_ASYNC, ENV_AUTOTUNE

    told = {ENV_ASYNC: "1"} if settings.async_save else {}
    if settings.autotune:
        from headway.compile.autotune.advice import find_advice_file

        told[ENV_AUTOTUNE] = str(find_advice_file(settings.autotune))
    return told


def _compile_store(settings: Settings) -> ArchiveStore | None:
    """Where compiled code is shared, if that is wanted and may be used."""
    if settings.compile_tier not in TIERS:
        told = settings.compile_tier
        raise UsageError(
            f"compile_tier is {told!r}, but it must be one of {', '.join(TIERS)}",
            code="setting-invalid",
            setting="compile_tier",
        )
    if not settings.compile_cache:
        return None
    from headway.compile import courier
    from headway.compile.archive.signing import read_key
    from headway.compile.archive.store import ArchiveStore

    store = ArchiveStore(
        settings.compile_cache, read_key(settings.cache_key) if settings.cache_key else None
    )
    off = courier.disabling_setting()
    if off:
        log_warning(f"compile cache: not used, {off} is set", code="compile-cache-disabled")
        return None
    why = store.distrust()
    if why and "://" in settings.compile_cache:
        raise UsageError(
            f"archives are run as code, and {why}; give the team's key with --cache-key FILE",
            code="archive-key-missing",
        )
    if why:
        log_warning(
            f"compile cache: not used, {why}, or give a key with --cache-key FILE",
            code="compile-cache-key-missing",
        )
        return None
    return store


def _compile_cache_sync(
    store: ArchiveStore, command: Sequence[str], settings: Settings
) -> CompileCacheSync | None:
    from headway.compile.courier import CompileCacheSync, code_digest, config_digest
    from headway.launch.target import job_name

    config = config_digest(command) if settings.compile_tier == "precompile" else ""
    try:
        return CompileCacheSync(store, job_name(command), code_digest(command), log, config=config)
    except OSError as error:  # no room for its folder, or it may not be written
        log_warning(
            f"compile cache: not used, {error.filename}: {error.strerror}",
            code="compile-cache-unwritable",
        )
        return None


def _check_recipe(order: PublishRequest) -> None:
    """What is wrong in it is told before the training begins, not when it has ended."""
    from headway.launch.publish import LOCAL
    from headway.publish import factories, recipe

    found = recipe.read_recipe(Path(order.recipe))
    if order.by[0] == LOCAL:  # elsewhere other things may be installed
        factories.check_functions(found)


def _start_publish(order: PublishRequest, where: RunFolder) -> None:
    """The last checkpoint of a job that has ended well is handed over; nobody waits for it."""
    from headway.launch import last_save, publish

    try:
        saves = last_save.find_saved(where.journal, os.uname().nodename)
        if not saves.here:
            return  # the node of rank 0 does it
        anchor = _find_anchor(saves, where)
        if anchor is None:
            log_warning(
                "nothing is published: no checkpoint of the job was found", code="not-published"
            )
            return
        log(f"headway: publishing {anchor}: {publish.start_publish(order, anchor, where)}")
    except Exception as error:  # the job has ended well: that is not to be lost
        log_warning(f"nothing is published: {error or type(error).__name__}", code="not-published")


def _find_anchor(saves: SavedCheckpoints, where: RunFolder) -> str | None:
    """A checkpoint of a Checkpointer that this run has made, else of DCP, else of torch.save."""
    from headway.journal import folder
    from headway.publish.last import last_anchor

    since = float(folder.read_identity(where.folder).get("created") or 0.0)
    found = filter(None, (last_anchor(store, since) for store in saves.stores))
    return next(found, next(iter((*saves.folders, *saves.files)), None))


def log_fault(consequence: str, error: Exception) -> None:
    """Say what is wrong with Headway itself, and what becomes of the job."""
    log_warning(
        f"internal fault, {type(error).__name__}: {error}; {consequence}", code="launcher-fault"
    )
    if os.environ.get("HEADWAY_DEBUG"):
        log("".join(traceback.format_exception(error)))


def log_warning(text: str, *, code: str) -> None:
    """A line about something that did not work."""
    from headway.errors import with_code

    log(with_code(f"headway: {text}", code=code))


def log(text: str) -> None:
    """One line to standard error, if there is one that takes it."""
    from headway import redact

    try:
        if sys.stderr is not None and _is_writable(sys.stderr):
            print(redact.text(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):  # closed, full, or a pipe that nobody reads
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _is_writable(stream: TextIO) -> bool:
    """False for a pipe whose reader has stopped: the launcher must not wait there for ever.

    The job would not start, or would not get its signals.
    """
    try:
        fd = stream.fileno()
    except (OSError, ValueError):  # closed, or no file
        return True
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(STDERR_WAIT_S * 1000))


def write_results(path: Path, *, quiet: bool) -> None:
    """Write ledger.json and report.html, and print the summary."""
    from headway.journal import folder
    from headway.ledger.run import load

    loaded = load(path)
    contract = json.dumps(loaded.to_dict(), indent=1) + "\n"
    folder.write_atomically(path / folder.LEDGER_JSON, contract)
    try:
        from headway.report import html, screen, terminal
    except ImportError as error:  # a bare GPU machine: the numbers are there all the same
        log_warning(
            f"ETT {loaded.ett_percent:.1f} % of {loaded.ledger.wall / 1e9:.1f} s, see "
            f"{path / folder.LEDGER_JSON} (no report: {error.name} is not installed here)",
            code="report-not-written",
        )
        return
    folder.write_atomically(path / folder.REPORT_HTML, html.page(loaded.ledger))
    if not quiet and sys.stderr is not None and _is_writable(sys.stderr):
        terminal.print_summary(loaded.ledger, path, screen.console(stderr=True))
