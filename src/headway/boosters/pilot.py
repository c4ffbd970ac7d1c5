"""Watches the attempts of one run: a booster that may be to blame is left out of the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from headway.boosters import names, suspects
from headway.boosters.choose import Choice
from headway.boosters.profile import Baseline
from headway.boosters.suspects import Suspicion
from headway.errors import with_code
from headway.journal.writer import now
from headway.launch import conclude
from headway.launch.attempt import AttemptResult
from headway.probe import fingerprint

Say = Callable[[str], object]


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
        self.left_out: dict[str, str] = {}  # from now on, and why
        self.settled: dict[str, str] = {}  # the same for the job, not for this run alone
        self._reasons: dict[str, str] = {}
        self._firm: set[str] = set()

    def begin(self, write: Callable[[dict[str, Any]], object]) -> None:
        """An attempt begins; its journal says with what."""
        on = [name for name in self.choice.on if name not in self.left_out]
        off = {**self.choice.off, **self.left_out}
        learned = self.parts.get(names.LEARN)
        told = {"job": self.job, "gpus": fingerprint.gpu_models(), "on": on, "off": off}
        told |= {"known": self.known, "learned": sorted(learned.env) if learned else []}
        write({"ev": "auto", "t": now(), **told})

    def withheld(self) -> set[str]:
        """Variables that the next attempt does not get."""
        return {key for name in self.left_out if (p := self.parts.get(name)) for key in p.env}

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
        ranks = [rank for ranks in ended.lives for rank in ranks]
        return suspects.find_suspects(
            on=self.choice.ours - self.left_out.keys(),
            facts=ended.facts,
            places=[str(error.get("where")) for rank in ranks for error in rank.errors],
            category=conclude.judge(ended.facts).category,
            stepped=ended.stepped,
            saving=suspects.async_save_state([rank.path for rank in ranks], now()),
            acted=[name for name, part in self.parts.items() if part.acted],
        )

    def without(self, suspected: Sequence[str]) -> None:
        """All nodes have agreed: these are left out from now on."""
        for name in suspected:
            why = self._reasons.get(name, "it may be to blame for how the job ended elsewhere")
            self.left_out.setdefault(name, why)
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
            self.settled.update(self.left_out)


class StaticBooster:
    """A part whose variables are known from the start."""

    def __init__(self, env: Mapping[str, str], *, acts: bool = True) -> None:
        self.env, self.acted = env, acts and bool(env)
