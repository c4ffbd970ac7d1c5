"""Profiles on disk: beside the runs, in `.auto/<job>.json`; whole or not there at all."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.boosters.profile import SCHEMA, JobProfile, NewerProfile, from_dict, to_dict
from headway.errors import NewerSchema, UsageError, with_code
from headway.journal.folder import write_atomically

PROFILES_FOLDER = ".auto"
ARCHIVES_FOLDER = "compile"  # the archives of all jobs there
DAMAGED_SUFFIX = ".torn"  # what a file that cannot be read is renamed to

Say = Callable[[str], object]


class ProfileStore:
    """The profiles beside one folder of runs."""

    def __init__(self, runs: Path, say: Say = lambda text: None) -> None:
        self.runs, self.root, self.say = runs, runs / PROFILES_FOLDER, say

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

    def look(self, job: str) -> JobProfile:
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
            self.say(
                with_code(
                    f"headway: auto: {path} is of a newer Headway ({error}), and not used",
                    code="profile-newer-schema",
                )
            )
            return None
        except (OSError, ValueError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is damaged"
            self.say(
                with_code(
                    f"headway: auto: {path} is set aside, {why}; what it knew is learned again",
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
                known = self._read(job)
                if known is None:
                    return None
                changed = change(known)
                content = json.dumps(to_dict(changed), indent=1) + "\n"
                write_atomically(self.path(job), content)
                return changed
        except OSError as error:
            self.say(
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
