"""How far the job has come, over its attempts: the step it is at, and the last durable one."""

from __future__ import annotations

from collections.abc import Iterable

from headway.launch.follow import Followed


class Progress:
    """Matches loads with the saves of earlier attempts, by file or by path, as the ledger does."""

    def __init__(self) -> None:
        self.durable = 0  # the highest step that was ever saved
        self._steps: dict[str, int] = {}  # file or path -> the step that was saved there

    def conclude(self, ranks: Iterable[Followed]) -> tuple[int | None, bool]:
        """An attempt is over: the step it came to, and whether it added a durable one.

        The step is None where nothing is known of what was loaded.
        """
        ranks = list(ranks)
        base = self._base(ranks)
        made = max((rank.pulse().steps for rank in ranks), default=0)
        saved = [(save, save.get("step") or 0) for rank in ranks for save in rank.saves]
        added = False
        for save, step in saved:
            if not step:
                continue
            at = step + (base or 0)
            for key in (save.get("file"), save.get("path")):
                if key:
                    self._steps[key] = at
            added = added or base is None or at > self.durable
        self.durable = max([self.durable, *(step + (base or 0) for _, step in saved)])
        return (None if base is None else base + made), added

    def _base(self, ranks: Iterable[Followed]) -> int | None:
        """The step that was resumed from; 0 if nothing was loaded."""
        loads = [load for rank in ranks for load in rank.loads]
        known = [base for rank in ranks if (base := self._loaded(rank)) is not None]
        if known:
            return max(known)
        return None if loads else 0

    def _loaded(self, rank: Followed) -> int | None:
        """The step of the last known checkpoint that a rank has loaded: others did not do."""
        for load in reversed(rank.loads):
            for key in (load.get("file"), load.get("path")):
                if str(key) in self._steps:
                    return self._steps[str(key)]
        return None
