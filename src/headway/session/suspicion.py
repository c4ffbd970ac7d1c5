"""Decide which boosters may have caused the failure of an attempt."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.launch.failures import Fact
from headway.launch.verdict import MAYBE_OUR_FAULT
from headway.session import registry

# Files of Headway that only a booster loads in the job.
BOOSTER_PATHS = (
    ("headway/checkpoint/async_save/", registry.ASYNC_SAVE),
    ("headway/checkpoint/engine/buffers.py", registry.ASYNC_SAVE),
    ("headway/storage/atomic_file.py", registry.ASYNC_SAVE),
    ("headway/checkpoint/engine/buffers.py", registry.ASYNC_SAVE),
    ("headway/storage/atomic_file.py", registry.ASYNC_SAVE),
    ("headway/launch/warm/", registry.WARM),
    ("headway/launch/linux.py", registry.WARM),
    ("headway/compile/precompile/", registry.COMPILE_CACHE),
    ("headway/probe/hooks/compile_cache.py", registry.COMPILE_CACHE),
    ("headway/probe/autotune/", registry.AUTOTUNE),
)
# Failures that an async save may cause: it holds a copy of the state, in a thread.
COPY_FAILURES = frozenset({"native_crash", "host_oom", "gpu_oom", "cuda_fault"})
RECENT_NS = 5_000_000_000  # after the last write of an async save


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncSaveState:
    """Async saves of the ranks of an attempt."""

    failed: str = ""  # error of the first failed write
    recent: bool = False  # a write was in progress at the end, or had just finished


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Suspected boosters and the reason.

    `evident`: with evidence. `tentative`: to be confirmed by an attempt without the booster.
    """

    evident: dict[str, str] = field(default_factory=dict)
    tentative: dict[str, str] = field(default_factory=dict)


def find_suspects(
    *,
    enabled: Collection[str],
    facts: Iterable[Fact],
    error_frames: Iterable[str],
    category: str,
    stepped: bool,
    async_save: AsyncSaveState,
    active: Collection[str],
) -> Suspicion:
    """Suspected boosters of a failed attempt.

    `error_frames`: where each error was raised. `active`: boosters that changed the attempt.
    """
    suspicion = Suspicion()
    frames = [fact.within.split()[-1] for fact in facts if fact.within and not fact.survived]
    for frame in (*error_frames, *frames):
        for path, name in BOOSTER_PATHS:
            if path in frame and name in enabled:
                suspicion.evident.setdefault(
                    name, f"an error was raised in {frame[frame.index(path) :]}"
                )
    if registry.ASYNC_SAVE in enabled:
        if async_save.failed:
            suspicion.evident[registry.ASYNC_SAVE] = f"an async save failed: {async_save.failed}"
        elif async_save.recent and category in COPY_FAILURES:
            suspicion.tentative[registry.ASYNC_SAVE] = (
                f"the job ended with {category} during an async save"
            )
    if not stepped and category in MAYBE_OUR_FAULT:
        for name in active:
            if name in enabled:
                reason = f"with it, the job ended with {category} before its first step"
                suspicion.tentative.setdefault(name, reason)
    for name in suspicion.evident:
        suspicion.tentative.pop(name, None)
    return suspicion


def async_save_state(journals: Sequence[str], ended: int) -> AsyncSaveState:
    """State of async saves from the journals of the ranks; `ended` is on their clock."""
    failed, pending, last = "", 0, 0
    for path in journals:
        for event in _save_events(path):
            if event["ev"] == "saving":
                pending += 1
                last = max(last, event["t"])
            elif "bytes" in event:
                pending -= 1
                last = max(last, event["end"])
                failed = failed or str(event.get("error") or "")
    recent = pending > 0 or bool(last and ended - last < RECENT_NS)
    return AsyncSaveState(failed=failed, recent=recent)


def _save_events(path: str) -> Iterable[dict[str, Any]]:
    """Events of async saves: starts and ends."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for line in file:
            if line.startswith((b'{"ev":"saving"', b'{"ev":"behind"')):
                with contextlib.suppress(ValueError):
                    yield json.loads(line)
