"""Cache plans across restarts, by a hash of everything they depend on."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headway import __version__
from headway.errors import UsageError
from headway.startup.sharding import planner
from headway.startup.sharding.sharding_plan import ShardingPlan, Table, canonical_json, digest

SCHEMA = 1


class PlanCache:
    """A folder of plans; unreadable or modified entries are ignored."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser()
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(
                f"{folder} is a file; the plan cache needs a folder", code="plan-folder-is-a-file"
            )

    def plan(
        self, tables: Sequence[Table], world_size: int, *, memory: int | Sequence[int] | None = None
    ) -> ShardingPlan:
        """The cached plan for these tables, else a new one, which is stored. For rank 0."""
        request = {
            "planner": "headway",
            "tables": [asdict(table) for table in tables],
            "world_size": world_size,
            "memory": memory if memory is None or isinstance(memory, int) else list(memory),
            "versions": {"headway": __version__},
        }
        document = self.read(request)
        if document is not None:
            with contextlib.suppress(UsageError):
                cached = ShardingPlan.read(document)
                if cached.tables == tuple(tables) and cached.world_size == world_size:
                    return cached
        new_plan = planner.plan(tables, world_size, memory=memory)
        self.write(request, new_plan.document())
        return new_plan

    def read(self, request: Mapping[str, Any]) -> Any:
        """The plan stored for this request, or None."""
        try:
            entry = json.loads(_content(self._path(request)))
            is_valid = entry["schema"] == SCHEMA and entry["asked"] == digest(request)
            return entry["plan"] if is_valid and entry["hash"] == digest(entry["plan"]) else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def write(self, request: Mapping[str, Any], plan: Any) -> None:
        """Store a plan atomically; errors are ignored."""
        path = self._path(request)
        entry = {"schema": SCHEMA, "asked": digest(request), "hash": digest(plan), "plan": plan}
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(canonical_json(entry))
            os.replace(draft, path)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink()

    def _path(self, request: Mapping[str, Any]) -> Path:
        return self.folder / f"{digest(request)[:32]}.json"


def _content(path: Path) -> bytes:
    """Read a regular file; does not block if the path is a pipe."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()
