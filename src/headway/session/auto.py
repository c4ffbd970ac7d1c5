"""`--auto`: choose boosters for a run, drop those suspected of a failure, update the job's profile.

An error in this module never affects the start or the exit code of the job.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from headway.compile.autotune import advice
from headway.errors import HeadwayError, with_code
from headway.journal import reader
from headway.journal.run_files import JOURNAL
from headway.journal.writer import now
from headway.launch import run_folder, verdict
from headway.launch.attempt import AttemptResult
from headway.launch.hang.limits import FLOOR_S
from headway.probe import host_facts
from headway.run import load
from headway.session import learning, registry, suspicion
from headway.session.job import identify, script_and_args
from headway.session.profile import Baseline, DisabledBooster, JobProfile, ProfileStore, hang_limit
from headway.session.suspicion import Suspicion
from headway.settings import read_toml
from headway.storage.atomic_write import write_atomically

RECIPE_FILE = "publish.toml"
NO_RECIPE = f"there is no {RECIPE_FILE}"
MAX_RESTARTS = 20  # the policy stops earlier if another attempt would fail too
NOT_RECORDED_YET = "nothing was recorded yet"

Log = Callable[[str], object]


def find_recipe(command: Sequence[str], folder: Path) -> tuple[Path | None, str]:
    """The recipe in the working folder or next to the script; if there is none, the reason."""
    script = script_and_args(command)[0] if command else ""
    folders = dict.fromkeys((folder, folder / Path(script).parent))
    reason = ""
    for path in (parent / RECIPE_FILE for parent in folders):
        if not path.is_file():
            continue
        mismatch = _mismatch_reason(path, script)
        if not mismatch:
            return path, ""
        reason = reason or mismatch
    return None, reason or NO_RECIPE


def _mismatch_reason(path: Path, script: str) -> str:
    """Why a recipe is not for this script, or empty; other errors are reported when it is read."""
    try:
        named: Any = read_toml(path).get("script", [])
    except HeadwayError:
        return ""
    names = [named] if isinstance(named, str) else named
    name = Path(script).name
    if not isinstance(names, list) or {name, script} & set(map(str, names)):
        return ""
    if names:
        return f"{path} is for {', '.join(map(str, names))}, not for {name}"
    return f'{path} does not name a script; add script = "{name}" at its top to use it for this job'


def recipe_digest(path: Path) -> str:
    """Digest of the content of a recipe; empty if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a run is started with; `settings` are those that only `--auto` has chosen."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    on: tuple[str, ...] = ()  # all, including those that the user enabled
    revocable: frozenset[str] = frozenset()  # those that may be dropped
    off: Mapping[str, str] = field(default_factory=dict)  # the others, and the reason
    recipe: str | None = None


def choose_boosters(
    resolved: Mapping[str, tuple[Any, str]],
    profile: JobProfile,
    *,
    versions: str,
    archives: Path,
    autotune: Path,
    recipe: Path | None,
    no_recipe: str = NO_RECIPE,
    publish: str | None = None,
) -> Choice:
    """`resolved`: each setting and its origin; `publish`: the value of --publish."""
    offered: dict[str, Any] = {
        registry.RESTARTS: MAX_RESTARTS,
        registry.WARM: True,
        registry.HANG_WATCH: True,
        registry.COMPILE_CACHE: str(archives),
        registry.LEARN: True,
        registry.AUTOTUNE: str(autotune) if autotune.is_file() else None,
        registry.ASYNC_SAVE: True,
    }
    settings: dict[str, Any] = {}
    off: dict[str, str] = {}
    on: list[str] = []
    for name, offer in offered.items():
        value, source = resolved[name]
        if source != "default":
            if value:
                on.append(name)
            else:
                off[name] = f"set by you ({source})"
        elif offer is None:
            off[name] = NOT_RECORDED_YET
        elif (disabled := profile.off.get(name)) and disabled.versions == versions:
            off[name] = disabled.why
            settings[name] = type(value)() if value is not None else None
        else:
            on.append(name)
            settings[name] = offer
    chosen, reason = _choose_recipe(profile.off.get(registry.PUBLISH), recipe, no_recipe, publish)
    if chosen:
        on.append(registry.PUBLISH)
    else:
        off[registry.PUBLISH] = reason
    limit = hang_limit(profile.silence_s)
    if limit is not None and registry.HANG_WATCH in on and resolved["hang_after"][1] == "default":
        settings["hang_after"] = min(limit, resolved["hang_after"][0])
    return Choice(
        settings=settings,
        on=tuple(on),
        revocable=frozenset(name for name in on if name in settings),
        off=off,
        recipe=chosen,
    )


def _choose_recipe(
    off: DisabledBooster | None, path: Path | None, no_recipe: str, flag: str | None
) -> tuple[str | None, str]:
    """The recipe to use, or why there is none; `flag` is empty after --no-publish."""
    if flag is not None:
        return flag or None, "set by you (flag)"
    if path is None:
        return None, no_recipe
    if off is not None and off.of == recipe_digest(path):
        return None, off.why
    return str(path), ""


class RevocableBooster(Protocol):
    """A booster that changes the job by environment variables and can be dropped."""

    @property
    def env(self) -> Mapping[str, str]:
        """Environment variables that it sets."""

    @property
    def is_active(self) -> bool:
        """Whether it has changed the job."""


class BoosterMonitor:
    """Drops boosters that are suspected of a failure; one for all attempts on this node."""

    def __init__(
        self, job: str, choice: Choice, baselines: Mapping[str, Baseline], log: Log
    ) -> None:
        self.job, self.choice, self.log = job, choice, log
        self.values = {kind: baseline.values() for kind, baseline in baselines.items()}
        self.boosters: dict[str, RevocableBooster] = {}
        self.dropped: dict[str, str] = {}  # for the rest of the run, with the reason
        self.confirmed_culprits: dict[str, str] = {}  # for later runs of the job, too
        self._reasons: dict[str, str] = {}
        self._evident: set[str] = set()

    def begin(self, emit: Callable[[dict[str, Any]], object]) -> None:
        """Record the boosters of an attempt in its journal."""
        on = [name for name in self.choice.on if name not in self.dropped]
        off = {**self.choice.off, **self.dropped}
        learned = self.boosters.get(registry.LEARN)
        fields = {"job": self.job, "gpus": host_facts.gpu_models(), "on": on, "off": off}
        fields |= {"known": self.values, "learned": sorted(learned.env) if learned else []}
        emit({"ev": "auto", "t": now(), **fields})

    def dropped_env(self) -> set[str]:
        """Environment variables to remove from the next attempt."""
        return {
            key
            for name in self.dropped
            if (booster := self.boosters.get(name))
            for key in booster.env
        }

    def suspects(self, result: AttemptResult) -> list[str]:
        """Boosters that may have caused the failure of an attempt, on this node."""
        self.confirm_dropped(result.stepped)
        if not result.status or result.signal is not None:
            return []
        try:
            suspicion = self._suspect(result)
        except Exception as error:  # an internal fault must not prevent the restart
            self.log(
                with_code(
                    "headway: auto: boosters were not checked after the failure "
                    f"({type(error).__name__}: {error})",
                    code="booster-diagnosis-failed",
                )
            )
            return []
        self._reasons = {**suspicion.tentative, **suspicion.evident}
        self._evident = set(suspicion.evident)
        return sorted(self._reasons)

    def _suspect(self, result: AttemptResult) -> Suspicion:
        ranks = [rank for ranks in result.elastic_restarts for rank in ranks]
        return suspicion.find_suspects(
            enabled=self.choice.revocable - self.dropped.keys(),
            facts=result.facts,
            error_frames=[str(error.get("where")) for rank in ranks for error in rank.errors],
            category=verdict.judge(result.facts).category,
            stepped=result.stepped,
            async_save=suspicion.async_save_state([rank.path for rank in ranks], now()),
            active=[name for name, booster in self.boosters.items() if booster.is_active],
        )

    def drop(self, suspects: Sequence[str]) -> None:
        """Drop boosters for the rest of the run, after all nodes agreed."""
        for name in suspects:
            reason = self._reasons.get(name, "it may have caused the failure on another node")
            self.dropped.setdefault(name, reason)
            if name in self._evident:
                self.confirmed_culprits[name] = reason
            self.log(
                with_code(
                    f"headway: auto: {name} is off for the rest of the run: {reason}",
                    code="booster-dropped",
                )
            )

    def confirm_dropped(self, stepped: bool) -> None:
        """After an attempt that made steps: the dropped boosters caused the failure."""
        if stepped:
            self.confirmed_culprits.update(self.dropped)


class StaticBooster:
    """A booster whose environment variables are known from the start."""

    def __init__(self, env: Mapping[str, str], *, acts: bool = True) -> None:
        self.env, self.is_active = env, acts and bool(env)


def runs_folder(output: str | None) -> Path:
    """The folder that contains the runs."""
    return Path(output).parent if output and "://" not in output else Path("headway")


class AutoPolicy:
    """Chooses boosters for a run, and updates the profile of the job after it."""

    def __init__(
        self,
        command: Sequence[str],
        output: str | None,
        resolved: Mapping[str, tuple[Any, str]],
        publish: str | None,
        log: Log,
    ) -> None:
        self.log = log
        self.job = identify(command)
        self.profiles = ProfileStore(runs_folder(output), log)
        versions = run_folder.installed_versions()
        self.versions = f"headway {versions['headway']}, torch {versions.get('torch', '?')}"
        self.profile = self._published_last(self.profiles.read(self.job.id))
        self.recipe, no_recipe = find_recipe(command, Path.cwd())
        self.choice = choose_boosters(
            resolved,
            self.profile,
            versions=self.versions,
            archives=self.profiles.archives,
            autotune=self._autotune(),
            recipe=self.recipe,
            no_recipe=no_recipe,
            publish=publish,
        )
        if publish is None and no_recipe not in ("", NO_RECIPE):
            log(
                with_code(
                    f"headway: auto: publish is off: {no_recipe}",
                    code="auto-publish-off",
                )
            )
        self.monitor = BoosterMonitor(self.job.id, self.choice, self._known(), log)
        self.unusable: dict[str, DisabledBooster] = {}

    def _autotune(self) -> Path:
        """The advice file of an earlier run; a damaged one is not used and is replaced later."""
        path = self.profiles.autotune(self.job.id)
        try:
            if path.is_file():
                advice.check_advice_file(path)
        except HeadwayError as error:
            self.log(
                with_code(
                    f"headway: auto: {error}; it will be replaced", code="auto-profile-recreated"
                )
            )
            return path.with_name(f"{path.name}.none")
        return path

    def _known(self) -> dict[str, Baseline]:
        """Baselines of earlier runs, and of other runs of the job without boosters."""
        baselines = dict(self.profile.measured)
        for kind, plain in learning.other_baselines(
            self.profiles.runs, self.job.id, host_facts.gpu_models()
        ):
            baselines[kind] = baselines.get(kind, Baseline()).or_else(plain)
        return baselines

    def _published_last(self, profile: JobProfile) -> JobProfile:
        """Add the failure of the last publish, which was not known when its run ended."""
        recipe, _ = find_recipe(profile.words, Path.cwd())
        if recipe is None or not profile.last_run:
            return profile
        reason = learning.publish_error(self.profiles.runs / profile.last_run, recipe)
        if not reason:
            return profile
        off = DisabledBooster(
            why=f"the last publish failed: {reason}",
            versions=self.versions,
            of=recipe_digest(recipe),
        )
        changed = self.profiles.update(
            self.job.id, lambda old: old.with_disabled(registry.PUBLISH, off)
        )
        return changed or profile

    @property
    def hang_limit_s(self) -> float:
        """Minimum seconds without a step before the job counts as hung."""
        return float(self.choice.settings.get("hang_after", FLOOR_S))

    def cannot_publish(self, reason: str) -> None:
        """Run the job without publishing, as the recipe cannot be used."""
        self.log(with_code(f"headway: auto: publish is off: {reason}", code="auto-publish-off"))
        on = tuple(name for name in self.choice.on if name != registry.PUBLISH)
        off = {**self.choice.off, registry.PUBLISH: reason}
        self.choice = self.monitor.choice = replace(self.choice, on=on, off=off, recipe=None)
        if self.recipe is not None:
            self.unusable[registry.PUBLISH] = DisabledBooster(
                why=reason, versions=self.versions, of=recipe_digest(self.recipe)
            )

    def end(self, run: Path, status: int) -> None:
        """Update the profile after the run."""
        try:
            if status == 0:
                self.monitor.confirm_dropped(True)
            self._learn(run, status)
        except Exception as error:
            self.log(
                with_code(
                    f"headway: auto: the profile was not updated ({type(error).__name__}: {error})",
                    code="auto-learning-failed",
                )
            )

    def _learn(self, run: Path, status: int) -> None:
        loaded = load(run)
        journals, _ = reader.read_journals(str(run / JOURNAL))
        if not learning.is_rank0_host(journals, os.uname().nodename):
            return  # the node of rank 0 updates the profile
        findings = learning.run_findings(
            loaded, journals, status, self.monitor.confirmed_culprits, self.hang_limit_s
        )

        def change(profile: JobProfile) -> JobProfile:
            changed = learning.updated_profile(profile, findings, self.versions, self.job.words)
            for name, off in self.unusable.items():
                changed = changed.with_disabled(name, off)
            return changed

        changed = self.profiles.update(self.job.id, change)
        if changed is None:
            return
        for name, off in changed.off.items():
            if name not in self.profile.off:
                self.log(
                    with_code(
                        f"headway: auto: {name} is off for later runs of this job: {off.why}",
                        code="booster-off",
                    )
                )
        content = learning.autotune_advice(loaded.name, journals)
        if content is not None:
            write_atomically(self.profiles.autotune(self.job.id), content)
