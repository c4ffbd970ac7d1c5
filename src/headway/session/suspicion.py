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

# Files of ours that only a booster brings into the job.
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
# Ends that a save behind the training may have brought about: it holds a copy, in a thread.
COPY_FAILURES = frozenset({"native_crash", "host_oom", "gpu_oom", "cuda_fault"})
RECENT_NS = 5_000_000_000  # after its write


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncSaveState:
    """What the ranks of an attempt have written behind their training."""

    failed: str = ""  # the first write that could not be made
    recent: bool = False  # one was not done at the end, or just done
    any: bool = False


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Boosters, and why: `firm` is evidence, `trial` is found out by an attempt without them."""

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
    """`places`: where each error was raised; `acted`: boosters that have changed the attempt."""
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
            suspicion.evident[registry.ASYNC_SAVE] = (
                f"a save could not be written: {async_save.failed}"
            )
        elif async_save.recent and category in COPY_FAILURES:
            suspicion.tentative[registry.ASYNC_SAVE] = (
                f"the job ended by {category} at a save behind it"
            )
    if not stepped and category in MAYBE_OUR_FAULT:
        for name in active:
            if name in enabled:
                reason = f"with it the job ended by {category} before its first step"
                suspicion.tentative.setdefault(name, reason)
    for name in suspicion.evident:
        suspicion.tentative.pop(name, None)
    return suspicion


def async_save_state(journals: Sequence[str], ended: int) -> AsyncSaveState:
    """From what the ranks' journals say; `ended` is on their clock."""
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
    lately = pending > 0 or bool(last and ended - last < RECENT_NS)
    return AsyncSaveState(failed=failed, recent=lately, any=bool(last))


def _save_events(path: str) -> Iterable[dict[str, Any]]:
    """Saves that go on, and their ends."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for line in file:
            if line.startswith((b'{"ev":"saving"', b'{"ev":"behind"')):
                with contextlib.suppress(ValueError):
                    yield json.loads(line)
