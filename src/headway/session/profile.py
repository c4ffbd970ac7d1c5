"""Profile of a job from its earlier runs, stored in `RUNS/.auto/JOB.json`."""

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
MAX_KINDS = 8  # the baselines of the newest kinds of run are kept
MAX_REASON_CHARS = 300
MIN_HANG_LIMIT_S = 30.0
HANG_LIMIT_FACTOR = 3.0  # times the longest time without a step in a successful run
PROFILES_FOLDER = ".auto"
ARCHIVES_FOLDER = "compile"  # compile archives of all jobs
DAMAGED_SUFFIX = ".torn"  # suffix of damaged files that were renamed

Log = Callable[[str], object]


class UnreadableProfile(ValueError):
    """The file is not a profile."""


class NewerProfile(Exception):
    """The profile was written by a newer Headway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisabledBooster:
    """Why a booster is off for the job, and the versions under which this was observed."""

    why: str
    versions: str
    of: str = ""  # digest of the recipe that failed; other recipes are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Seconds without boosters, for runs of one kind; None if not measured yet."""

    compile_s: float | None = None  # before the first step, without a compile archive
    recompile_s: float | None = None  # without learned sources
    autotune_s: float | None = None  # with all configs
    save_s: float | None = None  # blocked by one synchronous save
    recover_s: float | None = None  # cold restart, from the last progress to training

    def or_else(self, older: Baseline) -> Baseline:
        """This baseline, with missing values from an older one."""
        measured = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(older, **measured)

    def values(self) -> dict[str, float]:
        """The measured values."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """Profile of one job; `measured` is by kind of run: torch, accelerator, number of ranks."""

    job: str
    words: tuple[str, ...] = ()
    runs: int = 0
    last_run: str = ""
    off: Mapping[str, DisabledBooster] = field(default_factory=dict)
    measured: Mapping[str, Baseline] = field(default_factory=dict)
    refused: int = 0  # consecutive runs whose archive could not be used
    silence_s: float | None = None  # longest time without a step in a successful run

    def with_disabled(self, name: str, off: DisabledBooster) -> JobProfile:
        """Disable a booster; keeps the first reason per recipe."""
        if name in self.off and self.off[name].of == off.of:
            return self
        return replace(self, off={**self.off, name: off})

    def with_baseline(self, kind: str, new: Baseline) -> JobProfile:
        """Merge the baseline of a kind of run; keeps the newest MAX_KINDS kinds."""
        others = [(name, baseline) for name, baseline in self.measured.items() if name != kind]
        new = new.or_else(self.measured.get(kind, Baseline()))
        return replace(self, measured=dict([*others, (kind, new)][-MAX_KINDS:]))


def to_dict(profile: JobProfile) -> dict[str, Any]:
    return {"schema": SCHEMA, **asdict(profile)}


def from_dict(content: Any) -> JobProfile:
    """Parse a profile; raises UnreadableProfile or NewerProfile."""
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


def hang_limit(silence_s: float | None) -> float | None:
    """Hang limit in seconds, from the longest time without a step in a successful run."""
    return None if silence_s is None else max(MIN_HANG_LIMIT_S, HANG_LIMIT_FACTOR * silence_s)


class ProfileStore:
    """Profiles of the jobs in one folder of runs."""

    def __init__(self, runs: Path, log: Log = lambda text: None) -> None:
        self.runs, self.root, self.log = runs, runs / PROFILES_FOLDER, log

    @property
    def archives(self) -> Path:
        """The store of compile archives."""
        return self.root / ARCHIVES_FOLDER

    def path(self, job: str) -> Path:
        return self.root / f"{job}.json"

    def autotune(self, job: str) -> Path:
        """The autotune advice file of a job."""
        return self.root / f"{job}.autotune"

    def read(self, job: str) -> JobProfile:
        """The profile of a job; an empty one if it cannot be read."""
        return self._read(job) or JobProfile(job=job)

    def read_strict(self, job: str) -> JobProfile:
        """The profile of a job; raises if it cannot be read, and does not rename damaged files."""
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
        """None if a newer Headway wrote it: then it is neither used nor written."""
        path = self.path(job)
        try:
            return from_dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            pass
        except NewerProfile as error:
            self.log(
                with_code(
                    f"headway: auto: {path} was written by a newer Headway ({error}) "
                    "and is not used",
                    code="profile-newer-schema",
                )
            )
            return None
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged"
            self.log(
                with_code(
                    f"headway: auto: {path} is not used, {reason}; "
                    "the job starts with an empty profile",
                    code="profile-set-aside",
                )
            )
            if not isinstance(error, OSError):
                with contextlib.suppress(OSError):
                    os.replace(path, path.with_name(f"{path.name}{DAMAGED_SUFFIX}"))
        return JobProfile(job=job)

    def update(self, job: str, change: Callable[[JobProfile], JobProfile]) -> JobProfile | None:
        """Change the profile under a lock; returns None if it could not be written."""
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
                    f"headway: auto: the profile was not saved, {self.root}: {error.strerror}",
                    code="profile-unwritable",
                )
            )
            return None

    @contextlib.contextmanager
    def _locked(self, job: str) -> Iterator[None]:
        """Exclusive access, if the file system supports locks."""
        with (self.root / f".{job}.lock").open("wb") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def jobs(self) -> list[str]:
        """All jobs with a profile."""
        return sorted(path.name.removesuffix(".json") for path in self.root.glob("*.json"))

    def forget(self, job: str) -> None:
        """Delete the profile of a job; compile archives stay, as other jobs use them."""
        for path in (self.path(job), self.autotune(job), self.root / f".{job}.lock"):
            path.unlink(missing_ok=True)
