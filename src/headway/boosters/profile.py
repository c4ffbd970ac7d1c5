"""What is known of one job: what its runs have measured, and which boosters are off for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from headway.boosters.names import BOOSTERS

SCHEMA = 1
MAX_KINDS = 8  # kinds of run whose figures are kept: the newest
MAX_REASON_CHARS = 300  # characters of a reason


class UnreadableProfile(ValueError):
    """It is no profile."""


class NewerProfile(Exception):
    """A newer Headway has written it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisabledBooster:
    """Why a booster is off for the job, and under which versions that was found out."""

    why: str
    versions: str
    of: str = ""  # the recipe that could not be used; another one gets its own try


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Seconds, by runs of one kind; None where that was not seen yet."""

    compile_s: float | None = None  # before the first step, without an archive
    recompile_s: float | None = None  # without learned sources
    autotune_s: float | None = None  # with all configs
    save_s: float | None = None  # that one plain save blocks
    recover_s: float | None = None  # a cold restart, from the last progress to training again

    def or_else(self, older: Baseline) -> Baseline:
        """What is not measured here is taken from an older one."""
        mine = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(older, **mine)

    def known(self) -> dict[str, float]:
        """Those that were seen."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """One job; `measured` by the kind of run: torch, accelerator and number of ranks."""

    job: str
    words: tuple[str, ...] = ()
    runs: int = 0
    last_run: str = ""
    off: Mapping[str, DisabledBooster] = field(default_factory=dict)
    measured: Mapping[str, Baseline] = field(default_factory=dict)
    refused: int = 0  # runs in a row whose archive could not be used
    silence_s: float | None = None  # the longest in a run that went well

    def without(self, name: str, off: DisabledBooster) -> JobProfile:
        """That booster is off from now on; the first reason stays, of each recipe."""
        if name in self.off and self.off[name].of == off.of:
            return self
        return replace(self, off={**self.off, name: off})

    def with_measured(self, kind: str, new: Baseline) -> JobProfile:
        """The newest kinds are kept."""
        others = [(name, one) for name, one in self.measured.items() if name != kind]
        new = new.or_else(self.measured.get(kind, Baseline()))
        return replace(self, measured=dict([*others, (kind, new)][-MAX_KINDS:]))


def to_dict(profile: JobProfile) -> dict[str, Any]:
    """As it is written."""
    return {"schema": SCHEMA, **asdict(profile)}


def from_dict(found: Any) -> JobProfile:
    """Unreadable or Newer where it is none of ours."""
    try:
        schema = found["schema"]
        if type(schema) is int and schema > SCHEMA:
            raise NewerProfile(f"schema {schema}")
        if schema != SCHEMA:
            raise UnreadableProfile(f"schema {schema!r}")
        return JobProfile(
            job=str(found["job"]),
            words=tuple(map(str, found["words"])),
            runs=int(found["runs"]),
            last_run=str(found["last_run"]),
            off={
                name: _parse_disabled(found["off"][name])
                for name in BOOSTERS
                if name in found["off"]
            },
            measured={str(kind): _parse_baseline(one) for kind, one in found["measured"].items()},
            refused=int(found["refused"]),
            silence_s=_parse_seconds(found["silence_s"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnreadableProfile(f"{type(error).__name__}: {error}") from None


def _parse_disabled(found: Mapping[str, Any]) -> DisabledBooster:
    return DisabledBooster(
        why=str(found["why"])[:MAX_REASON_CHARS],
        versions=str(found["versions"]),
        of=str(found.get("of", "")),
    )


def _parse_baseline(found: Mapping[str, Any]) -> Baseline:
    return Baseline(**{one.name: _parse_seconds(found.get(one.name)) for one in fields(Baseline)})


def _parse_seconds(value: Any) -> float | None:
    good = type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1e7
    return float(value) if good else None
