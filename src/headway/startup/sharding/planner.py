"""Assign tables to ranks with balanced memory and lookups; deterministic in every process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from headway.errors import UsageError
from headway.startup.sharding.sharding_plan import Shard, ShardingPlan, Table, check_distinct

MIN_COLUMNS = 32  # fewer columns read less than one or two cache lines per row
COLUMN_MULTIPLE = 4  # columns are cut at multiples of this
MAX_PIECE_SHARE = 1.1  # of a rank's mean: heavier tables are cut before anything is placed
MIN_GAIN = 0.01  # minimum gain of a cut, as a share of the fullest rank
MAX_FRUITLESS_CUTS = 4  # consecutive cuts without a gain
TRIALS = 300_000  # moves and swaps to check; a time limit would not be deterministic


@dataclass(frozen=True)
class Balance:
    """Memory of each rank, and its load per sample."""

    memory: tuple[int, ...]
    load: tuple[float, ...]

    @property
    def memory_ratio(self) -> float:
        """Largest memory over the mean; 1 is optimal."""
        return _over_mean(self.memory)

    @property
    def load_ratio(self) -> float:
        """Largest load over the mean; 1 is optimal."""
        return _over_mean(self.load)


def balance(plan: ShardingPlan) -> Balance:
    """Bytes stored, and bytes read and sent per sample, on each rank."""
    memory, load = [0] * plan.world_size, [0.0] * plan.world_size
    for table in plan.tables:
        for shard in plan.of(table.name):
            memory[shard.rank] += table.memory(shard.sizes)
            load[shard.rank] += table.load(shard.sizes)
    return Balance(tuple(memory), tuple(load))


def plan(
    tables: Sequence[Table], world_size: int, *, memory: int | Sequence[int] | None = None
) -> ShardingPlan:
    """Plan these tables; `memory` is the available bytes per rank, or a list with one per rank."""
    check_distinct(tables)
    if not isinstance(world_size, int) or world_size < 1:
        raise UsageError(
            f"world_size must be 1 or more, got {world_size!r}", code="world-size-invalid"
        )
    limits = _limits(tables, world_size, memory)
    cuts = _first_cuts(tables, limits)
    best = candidate = _place_pieces(tables, cuts, limits)
    fruitless = 0
    while fruitless < MAX_FRUITLESS_CUTS:
        table_index = candidate.heaviest(tables, cuts)
        if table_index is None:
            break
        cuts[table_index] += 1
        try:
            candidate = _place_pieces(tables, cuts, limits)
        except UsageError:  # smaller pieces may not fit either
            break
        fruitless += 1
        if candidate.fullest() < best.fullest() * (1 - MIN_GAIN):
            best, fruitless = candidate, 0
    best.refine()
    best.align_with_ranks(tables)
    return best.plan(tables)


@dataclass(frozen=True)
class _Piece:
    table: int
    offsets: tuple[int, int]
    sizes: tuple[int, int]
    memory: int
    load: float


class _Placement:
    """Pieces on ranks; memory and load are relative to their means, to make them comparable."""

    def __init__(self, tables: Sequence[Table], limits: list[float]) -> None:
        ranks = len(limits)
        self.limits = limits
        self.pieces: list[list[_Piece]] = [[] for _ in range(ranks)]
        self.memory = [0] * ranks
        self.load = [0.0] * ranks
        full_sizes = [(table, (table.rows, table.dim)) for table in tables]
        # Of uncut tables: a cut that increases the total must not look better because of it.
        self._memory = sum(table.memory(sizes) for table, sizes in full_sizes) / ranks or 1.0
        self._load = sum(table.load(sizes) for table, sizes in full_sizes) / ranks or 1.0

    def weight(self, piece: _Piece) -> float:
        return max(piece.memory / self._memory, piece.load / self._load)

    def fullest(self) -> float:
        return max(
            max(memory / self._memory, load / self._load)
            for memory, load in zip(self.memory, self.load, strict=True)
        )

    def _cost_of(self, memory: float, load: float) -> float:
        """A smooth approximation of the maximum: a byte counts more on a fuller rank."""
        memory, load = (memory / self._memory) ** 2, (load / self._load) ** 2
        return memory * memory + load * load

    def cost(self, rank: int) -> float:
        return self._cost_of(self.memory[rank], self.load[rank])

    def place(self, piece: _Piece) -> bool:
        """Place a piece where it adds the least cost; False if it fits nowhere."""
        best = None
        for rank, pieces in enumerate(self.pieces):
            if self.memory[rank] + piece.memory > self.limits[rank] or _has(pieces, piece.table):
                continue
            added = self._cost_of(self.memory[rank] + piece.memory, self.load[rank] + piece.load)
            added -= self.cost(rank)
            if best is None or added < best[0]:
                best = (added, rank)
        if best is None:
            return False
        self._add(best[1], piece)
        return True

    def _add(self, rank: int, piece: _Piece) -> None:
        self.pieces[rank].append(piece)
        self.memory[rank] += piece.memory
        self.load[rank] += piece.load

    def _remove(self, rank: int, piece: _Piece) -> None:
        self.pieces[rank].remove(piece)
        self.memory[rank] -= piece.memory
        self.load[rank] -= piece.load

    def heaviest(self, tables: Sequence[Table], cuts: Sequence[int]) -> int | None:
        """The table to cut next, from the rank with the highest cost; None if none can be cut."""
        ranks = len(self.limits)
        rank = max(range(ranks), key=lambda rank: (self.cost(rank), -rank))
        divisible = [
            piece
            for piece in self.pieces[rank]
            if tables[piece.table].split == "auto"
            and cuts[piece.table] < ranks
            and _along(tables[piece.table], cuts[piece.table] + 1) is not None
        ]
        return (
            max(divisible, key=lambda piece: (self.weight(piece), -piece.table)).table
            if divisible
            else None
        )

    def refine(self) -> None:
        """Move pieces or swap two while that reduces the cost."""
        remaining = TRIALS
        while remaining > 0:
            for rank in sorted(range(len(self.limits)), key=self.cost, reverse=True):
                gain, change, checked = self._best_move(rank, remaining)
                remaining -= checked
                if change is not None and gain < -1e-9:
                    piece, other, returned = change
                    self._remove(rank, piece)
                    if returned is not None:
                        self._remove(other, returned)
                        self._add(rank, returned)
                    self._add(other, piece)
                    break
                if remaining <= 0:
                    return
            else:
                return

    def _best_move(
        self, rank: int, limit: int
    ) -> tuple[float, tuple[_Piece, int, _Piece | None] | None, int]:
        """The best change for a rank's pieces, its gain, and the number of changes checked."""
        best: tuple[_Piece, int, _Piece | None] | None = None
        gain, checked = 0.0, 0
        own_cost = self.cost(rank)
        others = sorted((r for r in range(len(self.limits)) if r != rank), key=self.cost)
        for piece in self.pieces[rank]:
            for other in others:
                pieces = self.pieces[other]
                if _has(pieces, piece.table):
                    continue
                cost_before = own_cost + self.cost(other)
                for returned in (None, *pieces):
                    if checked >= limit:
                        return gain, best, checked
                    checked += 1
                    memory = piece.memory - (returned.memory if returned else 0)
                    if self.memory[other] + memory > self.limits[other]:
                        continue
                    if self.memory[rank] - memory > self.limits[rank]:
                        continue
                    load = piece.load - (returned.load if returned else 0.0)
                    cost_after = self._cost_of(self.memory[rank] - memory, self.load[rank] - load)
                    cost_after += self._cost_of(
                        self.memory[other] + memory, self.load[other] + load
                    )
                    if cost_after - cost_before < gain and not (
                        returned and _has(self.pieces[rank], returned.table)
                    ):
                        gain, best = cost_after - cost_before, (piece, other, returned)
        return gain, best, checked

    def align_with_ranks(self, tables: Sequence[Table]) -> None:
        """Put the pieces of tables that are on all ranks in rank order, as DTensor requires."""
        for pieces in self._by_table(tables):
            if len(pieces) != len(self.limits):
                continue
            moved = [(piece, old, new) for new, (piece, old) in enumerate(pieces) if old != new]
            for piece, old, _ in moved:
                self._remove(old, piece)
            fits = all(self.memory[new] + p.memory <= self.limits[new] for p, _, new in moved)
            for piece, old, new in moved:
                self._add(new if fits else old, piece)

    def plan(self, tables: Sequence[Table]) -> ShardingPlan:
        """The plan for the current placement."""
        shards = [
            Shard(table.name, piece.offsets, piece.sizes, rank)
            for table, pieces in zip(tables, self._by_table(tables), strict=True)
            for piece, rank in pieces
        ]
        return ShardingPlan(tuple(tables), tuple(shards), len(self.limits))

    def _by_table(self, tables: Sequence[Table]) -> list[list[tuple[_Piece, int]]]:
        pieces_by_table: list[list[tuple[_Piece, int]]] = [[] for _ in tables]
        for rank, pieces in enumerate(self.pieces):
            for piece in pieces:
                pieces_by_table[piece.table].append((piece, rank))
        for table_pieces in pieces_by_table:
            table_pieces.sort(key=lambda item: item[0].offsets)
        return pieces_by_table


def _first_cuts(tables: Sequence[Table], limits: list[float]) -> list[int]:
    """Initial number of parts per table: all ranks if requested, else by size."""
    ranks, means = len(limits), _Placement(tables, limits)
    cuts = []
    for index, table in enumerate(tables):
        cut = ranks if table.split in ("row", "column") else 1
        if table.split == "auto":
            piece = next(_pieces(index, table, 1))
            cut = max(1, min(ranks, ceil(means.weight(piece) / MAX_PIECE_SHARE)))
            while cut > 1 and _along(table, cut) is None:
                cut -= 1
        cuts.append(cut)
    return cuts


def _place_pieces(tables: Sequence[Table], cuts: list[int], limits: list[float]) -> _Placement:
    """Place the heaviest pieces first; increments `cuts` for a table that fits on no rank."""
    ranks = len(limits)
    while True:
        placement = _Placement(tables, limits)
        pieces = [p for index, cut in enumerate(cuts) for p in _pieces(index, tables[index], cut)]
        pieces.sort(key=lambda piece: (-placement.weight(piece), piece.table, piece.offsets))
        unplaced = next((piece for piece in pieces if not placement.place(piece)), None)
        if unplaced is None:
            return placement
        table, cut = tables[unplaced.table], cuts[unplaced.table]
        if table.split != "auto" or cut >= ranks or _along(table, cut + 1) is None:
            raise UsageError(_too_large(table, unplaced, placement), code="table-too-large")
        cuts[unplaced.table] = cut + 1


def _pieces(index: int, table: Table, cut: int) -> Iterator[_Piece]:
    along = _along(table, cut)
    if along is None:
        raise UsageError(
            f"table {table.name!r} of {table.rows} x {table.dim} cannot be cut",
            code="table-not-divisible",
        )
    full_sizes = (table.rows, table.dim)
    step = -(-full_sizes[along] // cut)
    if along == 1 and cut > 1:
        step = -(-step // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
    for start in range(0, full_sizes[along], step):
        size = min(step, full_sizes[along] - start)
        sizes = (size, table.dim) if along == 0 else (table.rows, size)
        offsets = (start, 0) if along == 0 else (0, start)
        yield _Piece(index, offsets, sizes, table.memory(sizes), table.load(sizes))


def _along(table: Table, cut: int) -> int | None:
    """The dimension to cut a table along: columns if the parts stay wide enough."""
    if table.split in ("row", "column"):
        return 0 if table.split == "row" else 1
    if cut == 1:
        return 0
    if table.pooled and table.dim // cut >= MIN_COLUMNS:
        return 1
    return 0 if table.rows >= cut else None


def _limits(
    tables: Sequence[Table], world_size: int, memory: int | Sequence[int] | None
) -> list[float]:
    if memory is None:
        return [float("inf")] * world_size
    limits = [float(memory)] * world_size if isinstance(memory, int) else list(map(float, memory))
    if len(limits) != world_size:
        raise UsageError(
            f"memory has {len(limits)} values for {world_size} ranks",
            code="memory-count-mismatch",
        )
    needed = sum(table.memory((table.rows, table.dim)) for table in tables)
    if needed > sum(limits):
        largest = max(tables, key=lambda table: table.memory((table.rows, table.dim)))
        raise UsageError(
            f"the tables need {_bytes_text(needed)} and the {world_size} ranks have "
            f"{_bytes_text(sum(limits))}: {_bytes_text(needed - sum(limits))} too little; "
            f"the largest is {largest.name!r} with "
            f"{_bytes_text(largest.memory((largest.rows, largest.dim)))}",
            code="tables-too-large",
        )
    return limits


def _too_large(table: Table, piece: _Piece, placement: _Placement) -> str:
    free = max(limit - used for limit, used in zip(placement.limits, placement.memory, strict=True))
    part = "" if piece.sizes == (table.rows, table.dim) else "a part of "
    split = f" (split is {table.split!r})" if table.split != "auto" else ""
    return (
        f"{part}table {table.name!r} needs {_bytes_text(piece.memory)} on one rank{split}, but at "
        f"most {_bytes_text(free)} are free: {_bytes_text(piece.memory - free)} too little"
    )


def _has(pieces: Sequence[_Piece], table: int) -> bool:
    return any(piece.table == table for piece in pieces)


def _over_mean(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return max(values) / mean if mean else 1.0


def _bytes_text(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.1f} TB"
