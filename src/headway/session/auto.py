"""`--auto`: choose boosters for a run, drop those suspected of a failure, update the job's profile.

An error in here never costs the job its start or its exit code.
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


def find_recipe(command: Sequence[str], here: Path) -> tuple[Path | None, str]:
    """In the working folder, or beside the script; where there is none for it, why."""
    script = script_and_args(command)[0] if command else ""
    folders = dict.fromkeys((here, here / Path(script).parent))
    why = ""
    for path in (folder / RECIPE_FILE for folder in folders):
        if not path.is_file():
            continue
        unfit = _mismatch_reason(path, script)
        if not unfit:
            return path, ""
        why = why or unfit
    return None, why or NO_RECIPE


def _mismatch_reason(path: Path, script: str) -> str:
    """Why a recipe is not for that script; what is wrong in it is told when it is read."""
    try:
        named: Any = read_toml(path).get("script", [])
    except HeadwayError:
        return ""
    names = [named] if isinstance(named, str) else named
    name = Path(script).name
    if not isinstance(names, list) or {name, script} & set(map(str, names)):
        return ""
    if names:
        return f"{path} is for {', '.join(map(str, names))}, and not for {name}"
    return f'{path} names no script; write script = "{name}" on top of it if it is for that'


def recipe_digest(path: Path) -> str:
    """What tells one version of a recipe from another; empty where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


MAX_RESTARTS = 20  # the policy stops earlier where another attempt would fail too


NOT_RECORDED_YET = "nothing was recorded yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a run is started with; `set` are settings that nobody but us has made."""

    set: Mapping[str, Any] = field(default_factory=dict)
    on: tuple[str, ...] = ()  # all, also those that the user has turned on
    ours: frozenset[str] = frozenset()  # those that may be taken back
    off: Mapping[str, str] = field(default_factory=dict)  # the others, and why
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
    """`resolved`: each setting and where it came from; `publish`: what --publish says."""
    offered: dict[str, Any] = {
        registry.RESTARTS: MAX_RESTARTS,
        registry.WARM: True,
        registry.HANG_WATCH: True,
        registry.COMPILE_CACHE: str(archives),
        registry.LEARN: True,
        registry.AUTOTUNE: str(autotune) if autotune.is_file() else None,
        registry.ASYNC_SAVE: True,
    }
    made: dict[str, Any] = {}
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
        elif (known := profile.off.get(name)) and known.versions == versions:
            off[name] = known.why
            made[name] = type(value)() if value is not None else None
        else:
            on.append(name)
            made[name] = offer
    chosen, why = _choose_recipe(profile.off.get(registry.PUBLISH), recipe, no_recipe, publish)
    if chosen:
        on.append(registry.PUBLISH)
    else:
        off[registry.PUBLISH] = why
    limit = hang_limit(profile.silence_s)
    if limit is not None and registry.HANG_WATCH in on and resolved["hang_after"][1] == "default":
        made["hang_after"] = min(limit, resolved["hang_after"][0])
    return Choice(
        set=made,
        on=tuple(on),
        ours=frozenset(name for name in on if name in made),
        off=off,
        recipe=chosen,
    )


def _choose_recipe(
    off: DisabledBooster | None, found: Path | None, no_recipe: str, told: str | None
) -> tuple[str | None, str]:
    """The recipe to publish by, or why there is none; `told` is empty where it was declined."""
    if told is not None:
        return told or None, "set by you (flag)"
    if found is None:
        return None, no_recipe
    if off is not None and off.of == recipe_digest(found):
        return None, off.why
    return str(found), ""


class RevocableBooster(Protocol):
    """A booster that changes the job: by these variables, and maybe not at all."""

    @property
    def env(self) -> Mapping[str, str]:
        """What it sets."""

    @property
    def acted(self) -> bool:
        """Whether the job was given anything by it."""


class BoosterMonitor:
    """One for all attempts of a run on this node."""

    def __init__(self, job: str, choice: Choice, known: Mapping[str, Baseline], say: Say) -> None:
        self.job, self.choice, self.say = job, choice, say
        self.known = {kind: one.known() for kind, one in known.items()}
        self.parts: dict[str, RevocableBooster] = {}
        self.dropped: dict[str, str] = {}  # from now on, and why
        self.settled: dict[str, str] = {}  # the same for the job, not for this run alone
        self._reasons: dict[str, str] = {}
        self._firm: set[str] = set()

    def begin(self, write: Callable[[dict[str, Any]], object]) -> None:
        """An attempt begins; its journal says with what."""
        on = [name for name in self.choice.on if name not in self.dropped]
        off = {**self.choice.off, **self.dropped}
        learned = self.parts.get(registry.LEARN)
        told = {"job": self.job, "gpus": host_facts.gpu_models(), "on": on, "off": off}
        told |= {"known": self.known, "learned": sorted(learned.env) if learned else []}
        write({"ev": "auto", "t": now(), **told})

    def dropped_env(self) -> set[str]:
        """Variables that the next attempt does not get."""
        return {key for name in self.dropped if (p := self.parts.get(name)) for key in p.env}

    def suspects(self, ended: AttemptResult) -> list[str]:
        """Boosters that may be to blame for a bad end, on this node."""
        self.went_on(ended.stepped)
        if not ended.status or ended.signal is not None:
            return []
        try:
            found = self._suspect(ended)
        except Exception as error:  # a fault of ours must not cost the job its restart
            self.say(
                with_code(
                    f"headway: auto: no suspect was looked for ({type(error).__name__}: {error})",
                    code="booster-diagnosis-failed",
                )
            )
            return []
        self._reasons = {**found.trial, **found.firm}
        self._firm = set(found.firm)
        return sorted(self._reasons)

    def _suspect(self, ended: AttemptResult) -> Suspicion:
        ranks = [rank for ranks in ended.elastic_restarts for rank in ranks]
        return suspicion.find_suspects(
            on=self.choice.ours - self.dropped.keys(),
            facts=ended.facts,
            places=[str(error.get("where")) for rank in ranks for error in rank.errors],
            category=verdict.judge(ended.facts).category,
            stepped=ended.stepped,
            saving=suspicion.async_save_state([rank.path for rank in ranks], now()),
            acted=[name for name, part in self.parts.items() if part.acted],
        )

    def drop(self, suspects: Sequence[str]) -> None:
        """All nodes have agreed: these are left out from now on."""
        for name in suspects:
            why = self._reasons.get(name, "it may be to blame for how the job ended elsewhere")
            self.dropped.setdefault(name, why)
            if name in self._firm:
                self.settled[name] = why
            self.say(
                with_code(
                    f"headway: auto: without {name} from now on: {why}", code="booster-dropped"
                )
            )

    def went_on(self, stepped: bool) -> None:
        """An attempt has made steps: what it ran without was to blame."""
        if stepped:
            self.settled.update(self.dropped)


class StaticBooster:
    """A part whose variables are known from the start."""

    def __init__(self, env: Mapping[str, str], *, acts: bool = True) -> None:
        self.env, self.acted = env, acts and bool(env)


Say = Callable[[str], object]


def runs_folder(output: str | None) -> Path:
    """The folder that runs lie in side by side."""
    return Path(output).parent if output and "://" not in output else Path("headway")


class AutoPolicy:
    """What is chosen for a run, and what is made of it."""

    def __init__(
        self,
        command: Sequence[str],
        output: str | None,
        resolved: Mapping[str, tuple[Any, str]],
        publish: str | None,
        say: Say,
    ) -> None:
        self.say = say
        self.job = identify(command)
        self.shelf = ProfileStore(runs_folder(output), say)
        found = run_folder.installed_versions()
        self.versions = f"headway {found['headway']}, torch {found.get('torch', '?')}"
        self.profile = self._published_last(self.shelf.read(self.job.id))
        self.recipe, no_recipe = find_recipe(command, Path.cwd())
        self.choice = choose_boosters(
            resolved,
            self.profile,
            versions=self.versions,
            archives=self.shelf.archives,
            autotune=self._autotune(),
            recipe=self.recipe,
            no_recipe=no_recipe,
            publish=publish,
        )
        if publish is None and no_recipe not in ("", NO_RECIPE):
            say(
                with_code(
                    f"headway: auto: nothing will be published: {no_recipe}",
                    code="auto-publish-off",
                )
            )
        self.pilot = BoosterMonitor(self.job.id, self.choice, self._known(), say)
        self.wrong: dict[str, DisabledBooster] = {}

    def _autotune(self) -> Path:
        """The file of an earlier run; one that is damaged is made again."""
        path = self.shelf.autotune(self.job.id)
        try:
            if path.is_file():
                advice.check_advice_file(path)
        except HeadwayError as error:
            self.say(
                with_code(
                    f"headway: auto: {error}; it is made again", code="auto-profile-recreated"
                )
            )
            return path.with_name(f"{path.name}.none")
        return path

    def _known(self) -> dict[str, Baseline]:
        """Figures of earlier runs, and of those beside them that had no booster."""
        known = dict(self.profile.measured)
        for kind, plain in learning.other_baselines(
            self.shelf.runs, self.job.id, host_facts.gpu_models()
        ):
            known[kind] = known.get(kind, Baseline()).or_else(plain)
        return known

    def _published_last(self, profile: JobProfile) -> JobProfile:
        """What became of the last publish is known only now."""
        recipe, _ = find_recipe(profile.words, Path.cwd())
        if recipe is None or not profile.last_run:
            return profile
        why = learning.publish_error(self.shelf.runs / profile.last_run, recipe)
        if not why:
            return profile
        off = DisabledBooster(
            why=f"the last one failed: {why}",
            versions=self.versions,
            of=recipe_digest(recipe),
        )
        changed = self.shelf.update(self.job.id, lambda old: old.without(registry.PUBLISH, off))
        return changed or profile

    @property
    def hang_limit_s(self) -> float:
        """Seconds without a step by which a hang is judged."""
        return float(self.choice.set.get("hang_after", FLOOR_S))

    def cannot_publish(self, why: str) -> None:
        """The recipe is of no use; the job is run without it."""
        self.say(
            with_code(f"headway: auto: nothing will be published: {why}", code="auto-publish-off")
        )
        on = tuple(name for name in self.choice.on if name != registry.PUBLISH)
        off = {**self.choice.off, registry.PUBLISH: why}
        self.choice = self.pilot.choice = replace(self.choice, on=on, off=off, recipe=None)
        if self.recipe is not None:
            self.wrong[registry.PUBLISH] = DisabledBooster(
                why=why, versions=self.versions, of=recipe_digest(self.recipe)
            )

    def end(self, run: Path, status: int) -> None:
        """The run is over."""
        try:
            if status == 0:
                self.pilot.went_on(True)
            self._learn(run, status)
        except Exception as error:
            self.say(
                with_code(
                    f"headway: auto: nothing was learned ({type(error).__name__}: {error})",
                    code="auto-learning-failed",
                )
            )

    def _learn(self, run: Path, status: int) -> None:
        loaded = load(run)
        journals, _ = reader.read_journals(str(run / JOURNAL))
        if not learning.is_rank0_host(journals, os.uname().nodename):
            return  # the node of rank 0 does it
        seen = learning.run_findings(
            loaded, journals, status, self.pilot.settled, self.hang_limit_s
        )

        def change(known: JobProfile) -> JobProfile:
            changed = learning.updated_profile(known, seen, self.versions, self.job.words)
            for name, off in self.wrong.items():
                changed = changed.without(name, off)
            return changed

        changed = self.shelf.update(self.job.id, change)
        if changed is None:
            return
        for name, off in changed.off.items():
            if name not in self.profile.off:
                self.say(
                    with_code(
                        f"headway: auto: {name} is off for this job from now on: {off.why}",
                        code="booster-off",
                    )
                )
        content = learning.autotune_advice(loaded.name, journals)
        if content is not None:
            write_atomically(self.shelf.autotune(self.job.id), content)
