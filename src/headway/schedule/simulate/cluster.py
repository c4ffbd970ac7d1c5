"""Nodes and what is free on them: a gang gets whole nodes, and the rest of it sits on one more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from headway.schedule.simulate.job import Job

Placement = tuple[tuple[int, int], ...]


class Cluster:
    """Accelerators on nodes of one size; only the last node may be smaller."""

    def __init__(self, gpus: int, per_node: int) -> None:
        self.gpus, self.size = gpus, min(per_node, gpus)
        whole, rest = divmod(gpus, self.size)
        self.free = [self.size] * whole + ([rest] if rest else [])
        self.total = gpus  # free ones, on nodes that are up
        self.up = [True] * len(self.free)
        self.shut: set[int] = set()  # held back for one gang: nobody else is placed there
        self.jobs: list[dict[int, Job]] = [{} for _ in self.free]
        # Nodes by what is free on them; dicts, as those keep their order.
        self._level: list[dict[int, None]] = [{} for _ in range(self.size + 1)]
        self._mask = 0  # bit n: some node has n free
        for node, free in enumerate(self.free):
            self._enter(node, free)

    @property
    def whole(self) -> int:
        """How many nodes are free as a whole."""
        return len(self._level[self.size])

    def place(self, gpus: int) -> Placement | None:
        """Where a gang fits now: the fullest node that will do."""
        if gpus > self.total:
            return None
        if gpus < self.size:
            node = self._fullest(gpus)
            return None if node is None else ((node, gpus),)
        nodes, rest = divmod(gpus, self.size)
        if self.whole < nodes:
            return None
        found = [(node, self.size) for node in islice(self._level[self.size], nodes)]
        if rest:
            partly = self._fullest(rest, below=self.size)
            if partly is None:
                if self.whole == nodes:
                    return None
                *_, partly = islice(self._level[self.size], nodes + 1)
            found.append((partly, rest))
        return tuple(found)

    def place_with(self, gpus: int, extra: Mapping[int, int]) -> Placement | None:
        """Where a gang would fit if so much more were free on these nodes."""
        nodes, rest = divmod(gpus, self.size)
        free = self.free
        seen = [node for node in extra if node not in self.shut] if self.shut else extra
        touched = sorted(seen, key=lambda node: (free[node] + extra[node], node))
        if not nodes or gpus == self.size:
            for node in touched:
                if free[node] + extra[node] >= gpus:
                    return ((node, gpus),)
            return self.place(gpus)
        fresh = [node for node in touched if free[node] + extra[node] == self.size]
        fresh = [node for node in fresh if free[node] < self.size]
        wanted = nodes - len(fresh)
        if wanted > self.whole:
            return None
        old = list(islice(self._level[self.size], max(wanted, 0)))
        found = [(node, self.size) for node in (*fresh, *old)[:nodes]]
        if rest:
            partly = self._rest(rest, {node for node, _ in found}, touched, extra)
            if partly is None:
                return None
            found.append((partly, rest))
        return tuple(found)

    def _rest(
        self, rest: int, taken: set[int], touched: Iterable[int], extra: Mapping[int, int]
    ) -> int | None:
        for node in touched:
            if node not in taken and self.free[node] + extra[node] >= rest:
                return node
        for level in range(rest, self.size + 1):
            for node in self._level[level]:
                if node not in taken:
                    return node
        return None

    def take(self, places: Placement) -> None:
        """These are used from now on."""
        for node, count in places:
            self._move(node, -count)

    def give(self, node: int, count: int) -> None:
        """So many are free again."""
        self._move(node, count)

    def fail(self, node: int) -> None:
        """The node is gone; what ran there must be taken off it before, and nothing held back."""
        self._leave(node, self.free[node])
        self.total -= self.free[node]
        self.up[node] = False

    def repair(self, node: int) -> None:
        """The node is back."""
        self.up[node] = True
        self.total += self.free[node]
        self._enter(node, self.free[node])

    def emptiest(self, count: int) -> list[int]:
        """So many whole nodes with the least to wait for; fewer if there are not so many."""
        whole = [
            node
            for node in range(len(self.free))
            if self.up[node] and node * self.size + self.size <= self.gpus
        ]
        return sorted(whole, key=lambda node: (-self.free[node], node))[:count]

    def hold(self, nodes: Iterable[int]) -> None:
        """Place nobody there from now on; what runs there stays."""
        for node in nodes:
            self._leave(node, self.free[node])
            self.shut.add(node)

    def open(self) -> None:
        """Hold nothing back any more."""
        for node in sorted(self.shut):
            self._enter(node, self.free[node])
        self.shut.clear()

    def _fullest(self, gpus: int, below: int | None = None) -> int | None:
        mask = self._mask >> gpus << gpus
        if below is not None:
            mask &= (1 << below) - 1
        if not mask:
            return None
        level = (mask & -mask).bit_length() - 1
        return next(iter(self._level[level]))

    def _move(self, node: int, count: int) -> None:
        free = self.free[node]
        self.free[node] = free + count
        if self.up[node]:
            self.total += count
            if node not in self.shut:
                self._leave(node, free)
                self._enter(node, free + count)

    def _enter(self, node: int, free: int) -> None:
        self._level[free][node] = None
        self._mask |= 1 << free

    def _leave(self, node: int, free: int) -> None:
        level = self._level[free]
        del level[node]
        if not level:
            self._mask &= ~(1 << free)
