"""Assign tables to ranks: memory and lookups balanced, the same result in every process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from headway.errors import UsageError
from headway.startup.sharding.sharding_plan import Shard, ShardingPlan, Table, check_distinct

MIN_COLUMNS = 32  # columns: a part of fewer reads less than a cache line or two of each row
COLUMN_MULTIPLE = 4  # columns are cut at multiples of it
MAX_PIECE_SHARE = 1.1  # times the mean of a rank: what is heavier is cut before anything is placed
MIN_GAIN = 0.01  # of the fullest rank: a cut that gains less is not made
MAX_FRUITLESS_CUTS = 4  # cuts in a row that gained nothing
TRIALS = 300_000  # moves and swaps looked at; a limit on time would not be the same everywhere


@dataclass(frozen=True)
class Balance:
    """What each rank holds, and what a sample costs it."""

    memory: tuple[int, ...]
    load: tuple[float, ...]

    @property
    def memory_ratio(self) -> float:
        """The fullest rank over the mean; 1 is perfect."""
        return _over_mean(self.memory)

    @property
    def load_ratio(self) -> float:
        """The busiest rank over the mean; 1 is perfect."""
        return _over_mean(self.load)


def balance(plan: ShardingPlan) -> Balance:
    """Bytes held, and bytes read and sent for a sample, of each rank."""
    memory, load = [0] * plan.world_size, [0.0] * plan.world_size
    for table in plan.tables:
        for shard in plan.of(table.name):
            memory[shard.rank] += table.memory(shard.sizes)
            load[shard.rank] += table.load(shard.sizes)
    return Balance(tuple(memory), tuple(load))


def plan(
    tables: Sequence[Table], world_size: int, *, memory: int | Sequence[int] | None = None
) -> ShardingPlan:
    """A plan for these tables; `memory` is what a rank, or each of them, has for them in bytes."""
    check_distinct(tables)
    if not isinstance(world_size, int) or world_size < 1:
        raise UsageError(
            f"a plan is for 1 rank or more, not {world_size!r}", code="world-size-invalid"
        )
    limits = _limits(tables, world_size, memory)
    cuts = _first_cuts(tables, limits)
    best = tried = _place_pieces(tables, cuts, limits)
    fruitless = 0
    while fruitless < MAX_FRUITLESS_CUTS:
        hot = tried.heaviest(tables, cuts)
        if hot is None:
            break
        cuts[hot] += 1
        try:
            tried = _place_pieces(tables, cuts, limits)
        except UsageError:  # finer parts may lie worse
            break
        fruitless += 1
        if tried.fullest() < best.fullest() * (1 - MIN_GAIN):
            best, fruitless = tried, 0
    best.refine()
    best.in_order(tables)
    return best.plan(tables)


@dataclass(frozen=True)
class _Piece:
    table: int
    offsets: tuple[int, int]
    sizes: tuple[int, int]
    memory: int
    load: float


class _Placement:
    """Pieces on ranks; what a rank holds is counted in means, so that both can be compared."""

    def __init__(self, tables: Sequence[Table], limits: list[float]) -> None:
        ranks = len(limits)
        self.limits = limits
        self.pieces: list[list[_Piece]] = [[] for _ in range(ranks)]
        self.memory = [0] * ranks
        self.load = [0.0] * ranks
        whole = [(table, (table.rows, table.dim)) for table in tables]
        # Of the uncut tables: a cut that adds to the whole must not look better for it.
        self._memory = sum(table.memory(sizes) for table, sizes in whole) / ranks or 1.0
        self._load = sum(table.load(sizes) for table, sizes in whole) / ranks or 1.0

    def weight(self, piece: _Piece) -> float:
        return max(piece.memory / self._memory, piece.load / self._load)

    def fullest(self) -> float:
        return max(
            max(memory / self._memory, load / self._load)
            for memory, load in zip(self.memory, self.load, strict=True)
        )

    def _heat(self, memory: float, load: float) -> float:
        """A smooth stand-in for the maximum: the fuller a rank is, the more a byte counts."""
        memory, load = (memory / self._memory) ** 2, (load / self._load) ** 2
        return memory * memory + load * load

    def heat(self, rank: int) -> float:
        return self._heat(self.memory[rank], self.load[rank])

    def put(self, piece: _Piece) -> bool:
        """Place it where it adds least; False if it fits nowhere."""
        best = None
        for rank, held in enumerate(self.pieces):
            if self.memory[rank] + piece.memory > self.limits[rank] or _has(held, piece.table):
                continue
            added = self._heat(self.memory[rank] + piece.memory, self.load[rank] + piece.load)
            added -= self.heat(rank)
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

    def _drop(self, rank: int, piece: _Piece) -> None:
        self.pieces[rank].remove(piece)
        self.memory[rank] -= piece.memory
        self.load[rank] -= piece.load

    def heaviest(self, tables: Sequence[Table], cuts: Sequence[int]) -> int | None:
        """The table to be cut next, on the hottest rank; None if it has none that can be."""
        ranks = len(self.limits)
        rank = max(range(ranks), key=lambda rank: (self.heat(rank), -rank))
        able = [
            piece
            for piece in self.pieces[rank]
            if tables[piece.table].split == "auto"
            and cuts[piece.table] < ranks
            and _along(tables[piece.table], cuts[piece.table] + 1) is not None
        ]
        return (
            max(able, key=lambda piece: (self.weight(piece), -piece.table)).table if able else None
        )

    def refine(self) -> None:
        """Move pieces, or swap two, as long as it makes the hottest ranks cooler."""
        left = TRIALS
        while left > 0:
            for rank in sorted(range(len(self.limits)), key=self.heat, reverse=True):
                gain, change, looked = self._better(rank, left)
                left -= looked
                if change is not None and gain < -1e-9:
                    piece, other, back = change
                    self._drop(rank, piece)
                    if back is not None:
                        self._drop(other, back)
                        self._add(rank, back)
                    self._add(other, piece)
                    break
                if left <= 0:
                    return
            else:
                return

    def _better(
        self, rank: int, most: int
    ) -> tuple[float, tuple[_Piece, int, _Piece | None] | None, int]:
        """The best change of a rank's pieces, what it gains, and how many were looked at."""
        best: tuple[_Piece, int, _Piece | None] | None = None
        gain, looked = 0.0, 0
        before = self.heat(rank)
        others = sorted((r for r in range(len(self.limits)) if r != rank), key=self.heat)
        for piece in self.pieces[rank]:
            for other in others:
                held = self.pieces[other]
                if _has(held, piece.table):
                    continue
                was = before + self.heat(other)
                for back in (None, *held):
                    if looked >= most:
                        return gain, best, looked
                    looked += 1
                    memory = piece.memory - (back.memory if back else 0)
                    if self.memory[other] + memory > self.limits[other]:
                        continue
                    if self.memory[rank] - memory > self.limits[rank]:
                        continue
                    load = piece.load - (back.load if back else 0.0)
                    after = self._heat(self.memory[rank] - memory, self.load[rank] - load)
                    after += self._heat(self.memory[other] + memory, self.load[other] + load)
                    if after - was < gain and not (back and _has(self.pieces[rank], back.table)):
                        gain, best = after - was, (piece, other, back)
        return gain, best, looked

    def in_order(self, tables: Sequence[Table]) -> None:
        """Let a table that is on all ranks lie on them in their order, as DTensor has it."""
        for held in self._by_table(tables):
            if len(held) != len(self.limits):
                continue
            moved = [(piece, old, new) for new, (piece, old) in enumerate(held) if old != new]
            for piece, old, _ in moved:
                self._drop(old, piece)
            fits = all(self.memory[new] + p.memory <= self.limits[new] for p, _, new in moved)
            for piece, old, new in moved:
                self._add(new if fits else old, piece)

    def plan(self, tables: Sequence[Table]) -> ShardingPlan:
        """Where everything lies now."""
        shards = [
            Shard(table.name, piece.offsets, piece.sizes, rank)
            for table, held in zip(tables, self._by_table(tables), strict=True)
            for piece, rank in held
        ]
        return ShardingPlan(tuple(tables), tuple(shards), len(self.limits))

    def _by_table(self, tables: Sequence[Table]) -> list[list[tuple[_Piece, int]]]:
        found: list[list[tuple[_Piece, int]]] = [[] for _ in tables]
        for rank, pieces in enumerate(self.pieces):
            for piece in pieces:
                found[piece.table].append((piece, rank))
        for held in found:
            held.sort(key=lambda one: one[0].offsets)
        return found


def _first_cuts(tables: Sequence[Table], limits: list[float]) -> list[int]:
    """Parts per table: all ranks where that was asked for, else what no rank can take whole."""
    ranks, means = len(limits), _Placement(tables, limits)
    cuts = []
    for index, table in enumerate(tables):
        cut = ranks if table.split in ("row", "column") else 1
        if table.split == "auto":
            whole = next(_pieces(index, table, 1))
            cut = max(1, min(ranks, ceil(means.weight(whole) / MAX_PIECE_SHARE)))
            while cut > 1 and _along(table, cut) is None:
                cut -= 1
        cuts.append(cut)
    return cuts


def _place_pieces(tables: Sequence[Table], cuts: list[int], limits: list[float]) -> _Placement:
    """The heaviest first; `cuts` grows where a table fits on no rank otherwise."""
    ranks = len(limits)
    while True:
        placement = _Placement(tables, limits)
        pieces = [p for index, cut in enumerate(cuts) for p in _pieces(index, tables[index], cut)]
        pieces.sort(key=lambda piece: (-placement.weight(piece), piece.table, piece.offsets))
        stuck = next((piece for piece in pieces if not placement.put(piece)), None)
        if stuck is None:
            return placement
        table, cut = tables[stuck.table], cuts[stuck.table]
        if table.split != "auto" or cut >= ranks or _along(table, cut + 1) is None:
            raise UsageError(_too_large(table, stuck, placement), code="table-too-large")
        cuts[stuck.table] = cut + 1


def _pieces(index: int, table: Table, cut: int) -> Iterator[_Piece]:
    along = _along(table, cut)
    if along is None:
        raise UsageError(
            f"table {table.name!r} of {table.rows} x {table.dim} cannot be cut",
            code="table-not-divisible",
        )
    whole = (table.rows, table.dim)
    step = -(-whole[along] // cut)
    if along == 1 and cut > 1:
        step = -(-step // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
    for start in range(0, whole[along], step):
        size = min(step, whole[along] - start)
        sizes = (size, table.dim) if along == 0 else (table.rows, size)
        offsets = (start, 0) if along == 0 else (0, start)
        yield _Piece(index, offsets, sizes, table.memory(sizes), table.load(sizes))


def _along(table: Table, cut: int) -> int | None:
    """The dimension that a table is cut along: columns where their parts stay wide enough."""
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
            f"memory is given for {len(limits)} ranks, and there are {world_size}",
            code="memory-count-mismatch",
        )
    needed = sum(table.memory((table.rows, table.dim)) for table in tables)
    if needed > sum(limits):
        largest = max(tables, key=lambda table: table.memory((table.rows, table.dim)))
        raise UsageError(
            f"the tables need {_bytes_text(needed)} and the {world_size} ranks have "
            f"{_bytes_text(sum(limits))}: {_bytes_text(needed - sum(limits))} are missing; "
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
        f"{part}table {table.name!r} needs {_bytes_text(piece.memory)} on one rank{split}, and the "
        f"emptiest has {_bytes_text(free)}: {_bytes_text(piece.memory - free)} are missing"
    )


def _has(held: Sequence[_Piece], table: int) -> bool:
    return any(piece.table == table for piece in held)


def _over_mean(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return max(values) / mean if mean else 1.0


def _bytes_text(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.1f} TB"
