"""How far the job has come, over its attempts: the step it is at, and the last durable one."""

from __future__ import annotations

from collections.abc import Sequence

from headway.launch.follow import Followed


class Progress:
    """Matches loads with the saves of earlier attempts, by file or by path, as the ledger does.

    What cannot be told is None: a job may save and load in ways that nobody sees.
    """

    def __init__(self) -> None:
        self.durable = 0  # the highest step that was ever saved
        # File or path -> the step that was saved there; None: by a life whose start is unknown.
        self._steps: dict[str, int | None] = {}

    def conclude(self, ranks: Sequence[Followed]) -> tuple[int | None, bool | None]:
        """A life of the ranks is over: the step it came to, and whether it added a durable one."""
        base = self._base(ranks)
        made = max((rank.pulse().steps for rank in ranks), default=0)
        added = False
        for rank in ranks:
            for save in rank.saves:
                added = self._saved(save, base) or added
        step = None if base is None else base + made
        if made and not self._steps:
            return step, None  # no save was ever seen
        return step, added

    def _saved(self, save: dict[str, object], base: int | None) -> bool:
        """Take a save in; whether it is further than all before it."""
        own = save.get("step")
        if not isinstance(own, int) or not own:
            return False
        step = None if base is None else base + own
        for key in (save.get("file"), save.get("path")):
            if key:
                self._steps[str(key)] = step
        further = step is None or step > self.durable
        self.durable = max(self.durable, step or 0)
        return further

    def _base(self, ranks: Sequence[Followed]) -> int | None:
        """The step that was resumed from."""
        known = [base for rank in ranks if (base := self._loaded(rank)) is not None]
        if known:
            return max(known)
        told = [rank.told_base for rank in ranks if rank.told_base is not None]
        if told:
            return max(told)
        unseen = bool(self._steps) or any(rank.loads for rank in ranks)
        return None if unseen else 0

    def _loaded(self, rank: Followed) -> int | None:
        """The step of the last known checkpoint that a rank has loaded: others did not do."""
        for load in reversed(rank.loads):
            for key in (load.get("file"), load.get("path")):
                if str(key) in self._steps:
                    return self._steps[str(key)]
        return None
