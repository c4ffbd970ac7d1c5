"""One run under `--auto`, from what earlier runs have taught to what it leaves for the next.

Nothing in here can cost the job its start or its exit code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.boosters import learn, names, recipes
from headway.boosters.choose import choose_boosters
from headway.boosters.job import identify
from headway.boosters.kept import ProfileStore
from headway.boosters.pilot import BoosterMonitor
from headway.boosters.profile import Baseline, DisabledBooster, JobProfile
from headway.compile.autotune import advice
from headway.errors import HeadwayError, with_code
from headway.journal import reader
from headway.journal.folder import JOURNAL, write_atomically
from headway.launch import target
from headway.launch.hang import FLOOR_S
from headway.ledger.run import load
from headway.probe import fingerprint

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
        found = target.installed_versions()
        self.versions = f"headway {found['headway']}, torch {found.get('torch', '?')}"
        self.profile = self._published_last(self.shelf.read(self.job.id))
        self.recipe, no_recipe = recipes.find_recipe(command, Path.cwd())
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
        if publish is None and no_recipe not in ("", recipes.NO_RECIPE):
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
        for kind, plain in learn.other_baselines(
            self.shelf.runs, self.job.id, fingerprint.gpu_models()
        ):
            known[kind] = known.get(kind, Baseline()).or_else(plain)
        return known

    def _published_last(self, profile: JobProfile) -> JobProfile:
        """What became of the last publish is known only now."""
        recipe, _ = recipes.find_recipe(profile.words, Path.cwd())
        if recipe is None or not profile.last_run:
            return profile
        why = learn.publish_error(self.shelf.runs / profile.last_run, recipe)
        if not why:
            return profile
        off = DisabledBooster(
            why=f"the last one failed: {why}",
            versions=self.versions,
            of=recipes.recipe_digest(recipe),
        )
        changed = self.shelf.update(self.job.id, lambda old: old.without(names.PUBLISH, off))
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
        on = tuple(name for name in self.choice.on if name != names.PUBLISH)
        off = {**self.choice.off, names.PUBLISH: why}
        self.choice = self.pilot.choice = replace(self.choice, on=on, off=off, recipe=None)
        if self.recipe is not None:
            self.wrong[names.PUBLISH] = DisabledBooster(
                why=why, versions=self.versions, of=recipes.recipe_digest(self.recipe)
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
        if not learn.is_rank0_host(journals, os.uname().nodename):
            return  # the node of rank 0 does it
        seen = learn.run_findings(loaded, journals, status, self.pilot.settled, self.hang_limit_s)

        def change(known: JobProfile) -> JobProfile:
            changed = learn.updated_profile(known, seen, self.versions, self.job.words)
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
        content = learn.autotune_advice(loaded.name, journals)
        if content is not None:
            write_atomically(self.shelf.autotune(self.job.id), content)
