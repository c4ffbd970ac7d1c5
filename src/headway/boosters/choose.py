"""Which boosters a run gets: what the user has set comes first, then what the profile says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.boosters import names
from headway.boosters.profile import DisabledBooster, JobProfile
from headway.boosters.recipes import NO_RECIPE, recipe_digest

MAX_RESTARTS = 20  # the policy stops earlier where another attempt would fail too
MIN_HANG_LIMIT_S = 30.0
HANG_LIMIT_FACTOR = 3.0  # times the longest silence of a run that went well
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
        names.RESTARTS: MAX_RESTARTS,
        names.WARM: True,
        names.HANG_WATCH: True,
        names.COMPILE_CACHE: str(archives),
        names.LEARN: True,
        names.AUTOTUNE: str(autotune) if autotune.is_file() else None,
        names.ASYNC_SAVE: True,
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
    chosen, why = _choose_recipe(profile.off.get(names.PUBLISH), recipe, no_recipe, publish)
    if chosen:
        on.append(names.PUBLISH)
    else:
        off[names.PUBLISH] = why
    limit = hang_limit(profile.silence_s)
    if limit is not None and names.HANG_WATCH in on and resolved["hang_after"][1] == "default":
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


def hang_limit(silence_s: float | None) -> float | None:
    """Seconds without a step that are still well, by the longest that went well."""
    return None if silence_s is None else max(MIN_HANG_LIMIT_S, HANG_LIMIT_FACTOR * silence_s)
