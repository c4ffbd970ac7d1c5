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
    lately: bool = False  # one was not done at the end, or just done
    any: bool = False


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Boosters, and why: `firm` is evidence, `trial` is found out by an attempt without them."""

    firm: dict[str, str] = field(default_factory=dict)
    trial: dict[str, str] = field(default_factory=dict)


def find_suspects(
    *,
    on: Collection[str],
    facts: Iterable[Fact],
    places: Iterable[str],
    category: str,
    stepped: bool,
    saving: AsyncSaveState,
    acted: Collection[str],
) -> Suspicion:
    """`places`: where each error was raised; `acted`: boosters that have changed the attempt."""
    found = Suspicion()
    frames = [fact.within.split()[-1] for fact in facts if fact.within and not fact.survived]
    for frame in (*places, *frames):
        for part, name in BOOSTER_PATHS:
            if part in frame and name in on:
                found.firm.setdefault(name, f"an error was raised in {frame[frame.index(part) :]}")
    if registry.ASYNC_SAVE in on:
        if saving.failed:
            found.firm[registry.ASYNC_SAVE] = f"a save could not be written: {saving.failed}"
        elif saving.lately and category in COPY_FAILURES:
            found.trial[registry.ASYNC_SAVE] = f"the job ended by {category} at a save behind it"
    if not stepped and category in MAYBE_OUR_FAULT:
        for name in acted:
            if name in on:
                why = f"with it the job ended by {category} before its first step"
                found.trial.setdefault(name, why)
    for name in found.firm:
        found.trial.pop(name, None)
    return found


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
    return AsyncSaveState(failed=failed, lately=lately, any=bool(last))


def _save_events(path: str) -> Iterable[dict[str, Any]]:
    """Saves that go on, and their ends."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for line in file:
            if line.startswith((b'{"ev":"saving"', b'{"ev":"behind"')):
                with contextlib.suppress(ValueError):
                    yield json.loads(line)
