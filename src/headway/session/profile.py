"""What is known of a job from earlier runs, and its file in `RUNS/.auto/JOB.json`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from headway.errors import NewerSchema, UsageError, with_code
from headway.session.registry import BOOSTERS
from headway.storage.atomic_write import write_atomically

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
        measured = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(older, **measured)

    def values(self) -> dict[str, float]:
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

    def with_disabled(self, name: str, off: DisabledBooster) -> JobProfile:
        """That booster is off from now on; the first reason stays, of each recipe."""
        if name in self.off and self.off[name].of == off.of:
            return self
        return replace(self, off={**self.off, name: off})

    def with_baseline(self, kind: str, new: Baseline) -> JobProfile:
        """The newest kinds are kept."""
        others = [(name, baseline) for name, baseline in self.measured.items() if name != kind]
        new = new.or_else(self.measured.get(kind, Baseline()))
        return replace(self, measured=dict([*others, (kind, new)][-MAX_KINDS:]))


def to_dict(profile: JobProfile) -> dict[str, Any]:
    """As it is written."""
    return {"schema": SCHEMA, **asdict(profile)}


def from_dict(content: Any) -> JobProfile:
    """UnreadableProfile or NewerProfile where it is none of ours."""
    try:
        schema = content["schema"]
        if type(schema) is int and schema > SCHEMA:
            raise NewerProfile(f"schema {schema}")
        if schema != SCHEMA:
            raise UnreadableProfile(f"schema {schema!r}")
        return JobProfile(
            job=str(content["job"]),
            words=tuple(map(str, content["words"])),
            runs=int(content["runs"]),
            last_run=str(content["last_run"]),
            off={
                name: _parse_disabled(content["off"][name])
                for name in BOOSTERS
                if name in content["off"]
            },
            measured={
                str(kind): _parse_baseline(item) for kind, item in content["measured"].items()
            },
            refused=int(content["refused"]),
            silence_s=_parse_seconds(content["silence_s"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnreadableProfile(f"{type(error).__name__}: {error}") from None


def _parse_disabled(content: Mapping[str, Any]) -> DisabledBooster:
    return DisabledBooster(
        why=str(content["why"])[:MAX_REASON_CHARS],
        versions=str(content["versions"]),
        of=str(content.get("of", "")),
    )


def _parse_baseline(content: Mapping[str, Any]) -> Baseline:
    return Baseline(
        **{seconds.name: _parse_seconds(content.get(seconds.name)) for seconds in fields(Baseline)}
    )


def _parse_seconds(value: Any) -> float | None:
    valid = type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1e7
    return float(value) if valid else None


MIN_HANG_LIMIT_S = 30.0
HANG_LIMIT_FACTOR = 3.0  # times the longest silence of a run that went well


def hang_limit(silence_s: float | None) -> float | None:
    """Seconds without a step that are still well, by the longest that went well."""
    return None if silence_s is None else max(MIN_HANG_LIMIT_S, HANG_LIMIT_FACTOR * silence_s)


PROFILES_FOLDER = ".auto"
ARCHIVES_FOLDER = "compile"  # the archives of all jobs there
DAMAGED_SUFFIX = ".torn"  # what a file that cannot be read is renamed to

Say = Callable[[str], object]


class ProfileStore:
    """The profiles beside one folder of runs."""

    def __init__(self, runs: Path, log: Say = lambda text: None) -> None:
        self.runs, self.root, self.log = runs, runs / PROFILES_FOLDER, log

    @property
    def archives(self) -> Path:
        """Where compiled code is kept."""
        return self.root / ARCHIVES_FOLDER

    def path(self, job: str) -> Path:
        """The profile of a job."""
        return self.root / f"{job}.json"

    def autotune(self, job: str) -> Path:
        """The configs that are worth trying again."""
        return self.root / f"{job}.autotune"

    def read(self, job: str) -> JobProfile:
        """What is known of it; nothing where there is nothing that can be read."""
        return self._read(job) or JobProfile(job=job)

    def read_strict(self, job: str) -> JobProfile:
        """The same for people: what cannot be read is one sentence, and left as it is."""
        path = self.path(job)
        try:
            return from_dict(json.loads(path.read_text(encoding="utf-8")))
        except NewerProfile as error:
            raise NewerSchema(
                f"{path} has {error}, newer than {SCHEMA}, which this version reads; "
                "install a newer Headway"
            ) from None
        except (OSError, ValueError, RecursionError):
            raise UsageError(
                f"{path} is damaged; type: headway auto forget {job} --runs {self.runs}",
                code="profile-damaged",
            ) from None

    def _read(self, job: str) -> JobProfile | None:
        """None where a newer Headway keeps it: then it is neither used nor written."""
        path = self.path(job)
        try:
            return from_dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            pass
        except NewerProfile as error:
            self.log(
                with_code(
                    f"headway: auto: {path} is of a newer Headway ({error}), and not used",
                    code="profile-newer-schema",
                )
            )
            return None
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged"
            self.log(
                with_code(
                    f"headway: auto: {path} is set aside, {reason}; what it knew is learned again",
                    code="profile-set-aside",
                )
            )
            if not isinstance(error, OSError):
                with contextlib.suppress(OSError):
                    os.replace(path, path.with_name(f"{path.name}{DAMAGED_SUFFIX}"))
        return JobProfile(job=job)

    def update(self, job: str, change: Callable[[JobProfile], JobProfile]) -> JobProfile | None:
        """What another run has written meanwhile is kept; None if it could not be written."""
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o755)
            with self._locked(job):
                profile = self._read(job)
                if profile is None:
                    return None
                changed = change(profile)
                content = json.dumps(to_dict(changed), indent=1) + "\n"
                write_atomically(self.path(job), content)
                return changed
        except OSError as error:
            self.log(
                with_code(
                    f"headway: auto: nothing is kept, {self.root}: {error.strerror}",
                    code="profile-unwritable",
                )
            )
            return None

    @contextlib.contextmanager
    def _locked(self, job: str) -> Iterator[None]:
        """One at a time, where the file system knows locks."""
        with (self.root / f".{job}.lock").open("wb") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def jobs(self) -> list[str]:
        """All that have a profile."""
        return sorted(path.name.removesuffix(".json") for path in self.root.glob("*.json"))

    def forget(self, job: str) -> None:
        """What was learned of it; archives of compiled code are left, as other jobs use them."""
        for path in (self.path(job), self.autotune(job), self.root / f".{job}.lock"):
            path.unlink(missing_ok=True)
