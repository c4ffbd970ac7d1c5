"""What is known of one job: what its runs have measured, and which boosters are off for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from headway.boosters.names import BOOSTERS

SCHEMA = 1
SETTINGS = 8  # kinds of run whose figures are kept: the newest
TEXT = 300  # characters of a reason


class Unreadable(ValueError):
    """It is no profile."""


class Newer(Exception):
    """A newer Headway has written it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """Why a booster is off for the job, and under which versions that was found out."""

    why: str
    versions: str
    of: str = ""  # the recipe that could not be used; another one gets its own try


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds, by runs of one kind; None where that was not seen yet."""

    compile_s: float | None = None  # before the first step, without an archive
    recompile_s: float | None = None  # without learned sources
    autotune_s: float | None = None  # with all configs
    save_s: float | None = None  # that one plain save blocks
    recover_s: float | None = None  # a cold restart, from the last progress to training again

    def or_else(self, older: Measured) -> Measured:
        """What is not measured here is taken from an older one."""
        mine = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(older, **mine)

    def known(self) -> dict[str, float]:
        """Those that were seen."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One job; `measured` by the kind of run: torch, accelerator and number of ranks."""

    job: str
    words: tuple[str, ...] = ()
    runs: int = 0
    last_run: str = ""
    off: Mapping[str, Off] = field(default_factory=dict)
    measured: Mapping[str, Measured] = field(default_factory=dict)
    refused: int = 0  # runs in a row whose archive could not be used
    silence_s: float | None = None  # the longest in a run that went well

    def without(self, name: str, off: Off) -> Profile:
        """That booster is off from now on; the first reason stays, of each recipe."""
        if name in self.off and self.off[name].of == off.of:
            return self
        return replace(self, off={**self.off, name: off})

    def with_measured(self, kind: str, new: Measured) -> Profile:
        """The newest kinds are kept."""
        others = [(name, one) for name, one in self.measured.items() if name != kind]
        new = new.or_else(self.measured.get(kind, Measured()))
        return replace(self, measured=dict([*others, (kind, new)][-SETTINGS:]))


def to_dict(profile: Profile) -> dict[str, Any]:
    """As it is written."""
    return {"schema": SCHEMA, **asdict(profile)}


def from_dict(found: Any) -> Profile:
    """Unreadable or Newer where it is none of ours."""
    try:
        schema = found["schema"]
        if type(schema) is int and schema > SCHEMA:
            raise Newer(f"schema {schema}")
        if schema != SCHEMA:
            raise Unreadable(f"schema {schema!r}")
        return Profile(
            job=str(found["job"]),
            words=tuple(map(str, found["words"])),
            runs=int(found["runs"]),
            last_run=str(found["last_run"]),
            off={name: _off(found["off"][name]) for name in BOOSTERS if name in found["off"]},
            measured={str(kind): _measured(one) for kind, one in found["measured"].items()},
            refused=int(found["refused"]),
            silence_s=_seconds(found["silence_s"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from None


def _off(found: Mapping[str, Any]) -> Off:
    return Off(
        why=str(found["why"])[:TEXT], versions=str(found["versions"]), of=str(found.get("of", ""))
    )


def _measured(found: Mapping[str, Any]) -> Measured:
    return Measured(**{one.name: _seconds(found.get(one.name)) for one in fields(Measured)})


def _seconds(value: Any) -> float | None:
    good = type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1e7
    return float(value) if good else None
