"""One `headway run`: settings, run folder, background services, the job, and what follows it.

Invalid flags, settings or command lines raise UsageError before the job starts. Any other fault
affects at most the recording.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError, TargetUnwritable, UsageError
from headway.session.output import log, log_fault, log_warning, write_results

if TYPE_CHECKING:
    from headway.compile.cache.archive import ArchiveStore
    from headway.compile.cache.sync import CompileCacheSync
    from headway.compile.recompiles.learning import RecompileLearner
    from headway.fleet.ingest_worker import StoreIngest
    from headway.launch.run_folder import RunFolder
    from headway.launch.supervisor import Options
    from headway.publish.after_run import PublishRequest, SavedCheckpoints
    from headway.session.auto import AutoPolicy, BoosterMonitor
    from headway.settings import Settings
    from headway.storage.upload import RunUploader


TIERS = ("safe", "precompile")
CLOSING_LIMIT_S = 900.0  # for everything after the end of the job
HURRIED_LIMIT_S = 10.0  # remaining time for it after a signal


def run_session(args: argparse.Namespace) -> int:
    from headway.journal import file_access
    from headway.launch import child_process, signals
    from headway.ledger.model import shell_code

    file_access.fill_standard_fds()
    # Before anything else, so that threads started later leave signals to this thread.
    with signals.blocked(to_the_end=args.ends_process):
        session = Session(args)
        try:
            session.prepare()
        except TargetUnwritable as error:
            log_warning(f"{error}; the job runs without Headway", code=error.code)
            status = child_process.run(session.command, os.environ)
        except UsageError:
            raise
        except Exception as error:  # an internal fault
            log_fault("the job runs without Headway", error)
            status = child_process.run(session.command, os.environ)
        else:
            status = session.run()
    code = shell_code(status)
    if session.cut_short:  # unfinished work could delay the exit of this interpreter
        sys.stdout.flush()
        os._exit(code)
    if status == -signal.SIGINT:
        signals.die_of_signal(signal.SIGINT)
    if args.ends_process:  # limits the time of exit handlers of other libraries
        last = threading.Timer(HURRIED_LIMIT_S, os._exit, [code])
        last.daemon = True
        with contextlib.suppress(RuntimeError):
            last.start()
    return code


class Session:
    """One `headway run`: preparation before the job starts, and the work after its end."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.command = args.command[1:] if args.command[:1] == ["--"] else args.command
        self.cut_short = False  # whether CLOSING_LIMIT_S or a signal ended the work after the job
        self.publish_request: PublishRequest | None = None
        self.recompile_learner: RecompileLearner | None = None
        self.store_ingest: StoreIngest | None = None
        self.uploader: RunUploader | None = None

    def prepare(self) -> None:
        """Check the input of the user, find a run folder and start the background services.

        Only the checks may raise, and only UsageError.
        """
        from headway.chaos.plan import read_plan
        from headway.launch import run_folder, supervisor

        args = self.args
        if not self.command:
            raise UsageError(
                "no command to run; type: headway run -- torchrun train.py", code="command-missing"
            )
        supervisor.check_command(self.command)
        self.settings, self.auto = _resolve_settings(
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
        self.options = supervisor.Options(
            restarts=settings.restarts,
            hang_watch=settings.hang_watch,
            hang_after=settings.hang_after,
            warm=settings.warm,
            chaos=None if args.chaos is None else read_plan(args.chaos),
            env=_probe_env(settings),
        )
        store = _compile_store(settings)
        _check_store_url(settings)
        self.publish_request = _publish_request(args, self.auto)
        try:
            self.run_folder = run_folder.prepare(
                self.command,
                output=settings.output,
                name=settings.name,
                force=args.force,
                join=args.join,
                labels=_labels(settings, self.command),
                boosters=_enabled_boosters(settings, self.publish_request),
            )
        except TargetUnwritable as error:
            url = settings.output if settings.output and "://" in settings.output else None
            self.run_folder = run_folder.prepare_temporary(self.command, url, str(error))
        self._announce()
        for start in (self._start_learning, self._start_ingest, self._start_upload):
            self._guarded(start)
        if store is not None:
            self._guarded(self._share_cache, store)
        if self.auto is not None:
            self._guarded(self._monitor_boosters, self.auto)

    @property
    def _recorded(self) -> bool:
        """Whether the run folder is kept, here or at its URL."""
        return not self.run_folder.temporary or self.run_folder.url is not None

    def _announce(self) -> None:
        run, note = self.run_folder, self.run_folder.note
        if note:
            reason = note if self._recorded else f"not recording: {note}"
            log_warning(reason, code=note.code)
        if self._recorded and (run.temporary or not note):  # else the note contains it
            log(f"headway: recording to {run.url or run.folder}")
        if self._recorded:
            log(f"headway: watch it with `headway top {run.folder}`")

    def _start_learning(self) -> None:
        from headway.compile.recompiles.learning import RecompileLearner
        from headway.launch.run_folder import job_name

        if self.settings.learn and not self.run_folder.temporary:
            folder = self.run_folder.folder.parent
            learner = self.recompile_learner = RecompileLearner(
                folder, job_name(self.command), self.command, log
            )
            env = {**self.options.env, **learner.begin(os.environ)}
            self.options = replace(self.options, env=env)

    def _start_ingest(self) -> None:
        if not self.run_folder.temporary:
            self.store_ingest = _store_ingest(self.settings, self.run_folder)
        if self.store_ingest is not None:
            self.store_ingest.start()

    def _start_upload(self) -> None:
        from headway.storage.upload import RunUploader

        if self.run_folder.url:
            self.uploader = RunUploader(self.run_folder.folder, self.run_folder.url)
            self.uploader.start()

    def _share_cache(self, store: ArchiveStore) -> None:
        self.options = replace(
            self.options, companion=_compile_cache_sync(store, self.command, self.settings)
        )

    def _monitor_boosters(self, auto: AutoPolicy) -> None:
        self.options = replace(
            self.options, policy=_booster_monitor(auto, self.options, self.recompile_learner)
        )

    def run(self) -> int:
        """Run the job and the work after it, which cannot change the exit code of the job."""
        from headway.launch import child_process, signals
        from headway.launch.supervisor import Supervisor

        try:
            supervisor = Supervisor(self.command, self.run_folder, self.options, log)
        except Exception as error:
            log_fault("the job runs without Headway", error)
            return child_process.run(self.command, os.environ)
        status = supervisor.run()
        unfinished: list[str] = []

        def close(hurried: Callable[[], bool]) -> None:
            steps = [*supervisor.closing_steps(hurried), *self._closing_steps(status)]
            unfinished.extend(name for name, _ in steps)
            for _, step in steps:
                self._guarded(step)
                unfinished.pop(0)

        if not signals.run_with_deadline(close, CLOSING_LIMIT_S, HURRIED_LIMIT_S):
            self.cut_short = True
            log_warning(f"not finished: {', '.join(unfinished)}", code="closing-cut-short")
        return status

    def _closing_steps(self, status: int) -> list[tuple[str, Callable[[], object]]]:
        """Work after the job, by name: the results first, then what takes longer."""
        folder = self.run_folder.folder
        steps: list[tuple[str, Callable[[], object]]] = []
        if self.publish_request is not None and status == 0:
            steps.append(
                ("publishing", partial(_start_publish, self.publish_request, self.run_folder))
            )
        if self._recorded:
            steps.append(("report", self._write_results))
        if self.uploader is not None:
            steps.append(("uploading", self._finish_upload))
        if self.store_ingest is not None:
            steps.append(("ingesting", self.store_ingest.finish))
        if self.recompile_learner is not None:
            steps.append(("learning", partial(self.recompile_learner.end, folder, status)))
        if self.auto is not None and not self.run_folder.temporary:
            steps.append(("booster profile", partial(self.auto.end, folder, status)))
        if self.run_folder.temporary:
            steps.append(("temporary folder", partial(shutil.rmtree, folder, ignore_errors=True)))
        return steps

    def _write_results(self) -> None:
        try:
            write_results(self.run_folder.folder, quiet=not self.settings.report)
        except (Exception, SystemExit) as error:  # rich exits when its pipe is closed
            log_warning(
                f"the ledger could not be written ({type(error).__name__}: {error}); "
                f"the journals are in {self.run_folder.folder}",
                code="ledger-not-written",
            )

    def _finish_upload(self) -> None:
        assert self.uploader is not None
        self.uploader.finish()
        if self.uploader.error:
            log_warning(
                f"could not upload to {self.uploader.url}: {self.uploader.error}",
                code="run-not-shipped",
            )

    def _guarded(self, step: Callable[..., object], *args: object) -> None:
        """Run a step; if it fails, continue without it."""
        try:
            step(*args)
        except Exception as error:
            log_fault("continuing without it", error)


def _resolve_settings(
    command: Sequence[str], publish: str | None, **flags: Any
) -> tuple[Settings, AutoPolicy | None]:
    """The effective settings; under --auto including those that Headway chooses."""
    from headway.settings import Settings, resolve

    resolved = resolve(**flags)
    settings = Settings(**{name: value for name, (value, _) in resolved.items()})
    if not settings.auto:
        return settings, None
    from headway.session.auto import AutoPolicy

    try:
        auto = AutoPolicy(command, settings.output, resolved, publish, log)
    except Exception as error:  # the job runs without --auto
        log_warning(f"auto: not used ({type(error).__name__}: {error})", code="auto-not-used")
        return settings, None
    return replace(settings, **auto.choice.settings), auto


def _booster_monitor(
    auto: AutoPolicy, options: Options, learner: RecompileLearner | None
) -> BoosterMonitor:
    """The monitor of `--auto`, with the environment variables of each booster."""
    from headway.compile.cache.sync import CompileCacheSync
    from headway.probe import ENV_ASYNC, ENV_AUTOTUNE
    from headway.session import registry
    from headway.session.auto import StaticBooster

    boosters = auto.monitor.boosters
    if isinstance(options.companion, CompileCacheSync):
        boosters[registry.COMPILE_CACHE] = options.companion
    if learner is not None:
        boosters[registry.LEARN] = StaticBooster(learner.applied)
    for name, variable in ((registry.AUTOTUNE, ENV_AUTOTUNE), (registry.ASYNC_SAVE, ENV_ASYNC)):
        env = {variable: options.env[variable]} if variable in options.env else {}
        # Async saves are judged by their outcome instead.
        boosters[name] = StaticBooster(env, acts=name == registry.AUTOTUNE)
    return auto.monitor


def _labels(settings: Settings, command: Sequence[str]) -> dict[str, str]:
    """Labels of the run; for a store also the digests of its code and configuration."""
    from headway.settings import parse_labels

    labels = parse_labels(settings.labels)
    if not (labels or settings.store):
        return {}
    from headway.compile.cache.keys import code_digest, config_digest

    return {"code": code_digest(command), "config": config_digest(command), **labels}


def _enabled_boosters(settings: Settings, request: PublishRequest | None) -> list[str]:
    """Names of all enabled boosters, no matter who enabled them."""
    from headway.session.registry import BOOSTERS, PUBLISH

    on = [name for name in BOOSTERS if name != PUBLISH and getattr(settings, name)]
    return [*on, PUBLISH] if request is not None else on


def _check_store_url(settings: Settings) -> None:
    """Check the URL of the store; an unreachable store is accepted, as it may come back."""
    from headway.storage import remote

    url = settings.store or ""
    if "://" in url and not url.startswith(("postgresql://", "postgres://")):
        remote.check_url(url)


def _store_ingest(settings: Settings, run: RunFolder) -> StoreIngest | None:
    """The worker that writes the run to a store, if configured and possible."""
    if not settings.store:
        return None
    from headway.errors import MissingExtra
    from headway.fleet.ingest_worker import StoreIngest
    from headway.fleet.store.arrow import WRITE_PACKAGES, require_packages

    try:
        require_packages(*WRITE_PACKAGES)
    except MissingExtra as error:
        log_warning(f"the run will not be in the store: {error}", code=error.code)
        return None
    return StoreIngest(run.folder, settings.store, log)


def _publish_request(args: argparse.Namespace, auto: AutoPolicy | None) -> PublishRequest | None:
    """What to publish after the job has succeeded, if anything."""
    from headway.publish import after_run

    recipe = args.publish or (auto.choice.recipe if auto else None)
    if not recipe:
        return None
    try:
        request = after_run.parse_request(recipe, args.publish_to, args.publish_by)
        _check_recipe(request)
    except HeadwayError as error:
        if auto is None or args.publish:
            raise
        auto.cannot_publish(str(error))
        return None
    return request


def _probe_env(settings: Settings) -> dict[str, str]:
    """Environment variables that turn on boosters in the probe."""
    from headway.probe import ENV_ASYNC, ENV_AUTOTUNE

    env = {ENV_ASYNC: "1"} if settings.async_save else {}
    if settings.autotune:
        from headway.compile.autotune.advice import find_advice_file

        env[ENV_AUTOTUNE] = str(find_advice_file(settings.autotune))
    return env


def _compile_store(settings: Settings) -> ArchiveStore | None:
    """The store of compile archives, if configured and usable."""
    if settings.compile_tier not in TIERS:
        tier = settings.compile_tier
        raise UsageError(
            f"compile_tier is {tier!r}, but it must be one of {', '.join(TIERS)}",
            code="setting-invalid",
            setting="compile_tier",
        )
    if not settings.compile_cache:
        return None
    from headway.compile.cache import sync
    from headway.compile.cache.archive import ArchiveStore
    from headway.storage.signing import read_key

    store = ArchiveStore(
        settings.compile_cache, read_key(settings.cache_key) if settings.cache_key else None
    )
    off = sync.disabling_setting()
    if off:
        log_warning(f"compile cache: not used, {off} is set", code="compile-cache-disabled")
        return None
    reason = store.untrusted_reason()
    if reason and "://" in settings.compile_cache:
        raise UsageError(
            f"archives contain code that is run, and {reason}; "
            "give the team's key with --cache-key FILE",
            code="archive-key-missing",
        )
    if reason:
        log_warning(
            f"compile cache: not used, {reason}, or give a key with --cache-key FILE",
            code="compile-cache-key-missing",
        )
        return None
    return store


def _compile_cache_sync(
    store: ArchiveStore, command: Sequence[str], settings: Settings
) -> CompileCacheSync | None:
    from headway.compile.cache.keys import code_digest, config_digest
    from headway.compile.cache.sync import CompileCacheSync
    from headway.launch.run_folder import job_name

    config = config_digest(command) if settings.compile_tier == "precompile" else ""
    try:
        return CompileCacheSync(store, job_name(command), code_digest(command), log, config=config)
    except OSError as error:  # its folder is full or not writable
        log_warning(
            f"compile cache: not used, {error.filename}: {error.strerror}",
            code="compile-cache-unwritable",
        )
        return None


def _check_recipe(request: PublishRequest) -> None:
    """Report errors in the recipe before the job starts, not after it has ended."""
    from headway.publish import recipe
    from headway.publish.after_run import LOCAL

    parsed = recipe.read_recipe(Path(request.recipe))
    if request.by[0] == LOCAL:  # another host may have other packages
        recipe.check_functions(parsed)


def _start_publish(request: PublishRequest, run: RunFolder) -> None:
    """Start publishing the last checkpoint of a successful job; does not wait for the result."""
    from headway.publish import after_run

    try:
        saves = after_run.find_saved(run.journal, os.uname().nodename)
        if not saves.on_this_host:
            return  # the node of rank 0 publishes
        anchor = _find_anchor(saves, run)
        if anchor is None:
            log_warning(
                "nothing is published: no checkpoint of the job was found", code="not-published"
            )
            return
        log(f"headway: publishing {anchor}: {after_run.start_publish(request, anchor, run)}")
    except Exception as error:  # must not change the exit code of the job
        log_warning(f"nothing is published: {error or type(error).__name__}", code="not-published")


def _find_anchor(saves: SavedCheckpoints, run: RunFolder) -> str | None:
    """A checkpoint that this run made: of a Checkpointer, else of DCP, else of torch.save."""
    from headway.journal import run_files
    from headway.publish.anchor import last_anchor

    since = float(run_files.read_identity(run.folder).get("created") or 0.0)
    anchors = filter(None, (last_anchor(store, since) for store in saves.stores))
    return next(anchors, next(iter((*saves.folders, *saves.files)), None))
