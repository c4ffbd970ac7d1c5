"""Pair the names of a checkpoint with those of the live state, and report the differences."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headway.errors import CheckpointMismatch

WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
MAX_NAMES = 10  # names per side listed in an error
MAX_CANDIDATES = 1000  # names searched for the closest one


def pair_names(saved: Iterable[str], live: Iterable[str]) -> dict[str, str]:
    """The live name of each saved name: equal, or the only one that differs by wrappers."""
    saved, live = list(saved), dict.fromkeys(live)
    pairs = {name: name for name in saved if name in live}
    unmatched = _by_core(name for name in saved if name not in pairs)
    candidates = _by_core(name for name in live if name not in pairs)
    for core, names in unmatched.items():
        if len(names) == 1 and len(candidates.get(core, ())) == 1:
            pairs[names[0]] = candidates[core][0]
    return pairs


def _by_core(names: Iterable[str]) -> dict[tuple[str, ...], list[str]]:
    by_core: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        core = tuple(word for word in name.split(".") if word not in WRAPPERS)
        by_core.setdefault(core, []).append(name)
    return by_core


@dataclass
class Mismatch:
    """Differences between a checkpoint and the live state."""

    missing: list[str] = field(default_factory=list)  # missing in the checkpoint
    # in the checkpoint, but in the state of no rank
    unexpected: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)  # clauses about names that both have
    converted: list[str] = field(default_factory=list)  # the same, for dtypes that can be converted
    unreadable: list[str] = field(default_factory=list)  # live tensors that cannot be read in place

    def __bool__(self) -> bool:
        return bool(
            self.missing or self.unexpected or self.different or self.converted or self.unreadable
        )

    def error(self, checkpoint: str) -> CheckpointMismatch:
        """An error with the first names of each side."""
        text = (
            f"the checkpoint {checkpoint} does not fit the state: {'; '.join(self._clauses())}; "
            "to restore what fits, use restore(strict=False)"
        )
        return CheckpointMismatch(
            text,
            missing=self.missing,
            unexpected=self.unexpected,
            different=[*self.different, *self.converted, *self.unreadable],
        )

    def notes(self, checkpoint: str) -> list[str]:
        """What a non-strict restore has left out or converted."""
        return [f"{checkpoint}: {clause}" for clause in self._clauses()]

    def _clauses(self) -> list[str]:
        clauses = [
            _names_clause(
                self.missing, "not in the checkpoint", self.unexpected, "the checkpoint has"
            ),
            _names_clause(
                self.unexpected, "without a place in the state", self.missing, "the state has"
            ),
            _clause("of another shape", self.different),
            _clause("of another type", self.converted),
            _clause("that cannot be read into", self.unreadable),
        ]
        return [clause for clause in clauses if clause]


def merge_mismatches(ranks: Sequence[Mismatch]) -> Mismatch:
    """The mismatch of all ranks: a name has a place if it has one on any rank."""
    everywhere = set.intersection(*(set(mismatch.unexpected) for mismatch in ranks))
    return Mismatch(
        list(dict.fromkeys(name for mismatch in ranks for name in mismatch.missing)),
        [name for name in ranks[0].unexpected if name in everywhere],
        list(dict.fromkeys(text for mismatch in ranks for text in mismatch.different)),
        list(dict.fromkeys(text for mismatch in ranks for text in mismatch.converted)),
        list(dict.fromkeys(text for mismatch in ranks for text in mismatch.unreadable)),
    )


def _names_clause(names: Sequence[str], what: str, others: Sequence[str], have: str) -> str:
    """The names, with the closest name of the other side where there is one."""
    clauses = []
    for name in names[:MAX_NAMES]:
        matches = difflib.get_close_matches(name, others[:MAX_CANDIDATES], 1)
        clauses.append(f"{name} ({have} {matches[0]})" if matches else name)
    return _clause(what, clauses, len(names))


def _clause(what: str, items: Sequence[str], count: int | None = None) -> str:
    count = len(items) if count is None else count
    more = f" and {count - MAX_NAMES} more" if count > MAX_NAMES else ""
    return f"{count} {what}: {', '.join(items[:MAX_NAMES])}{more}" if items else ""
