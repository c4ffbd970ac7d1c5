"""A small training that comes out the same, bit for bit, on any number of ranks.

Each rank reads its own share of the samples of a step and tells the others; the step itself is
done by all of them, from all samples.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed._shard.sharded_tensor import init_from_local_shards
from torch.distributed._shard.sharding_spec import ShardMetadata
from torch.utils.data import DataLoader

from headway.checkpoint import Checkpointer, Policy
from headway.checkpoint.data import GlobalBatches, Position
from headway.errors import HeadwayError, with_code

SAMPLES, BATCH = 96, 12
TABLES, WIDTH, LOOKUPS = (4000, 120), 8, 3  # of the small table nearly a third of the rows change


@dataclass(frozen=True, kw_only=True)
class Life:
    """One attempt of a training."""

    store: str
    log: str  # what each rank does goes to LOG.RANK
    world: int = 1
    until: int = 12  # the last step
    every: int = 1  # steps between two saves
    waits: int = 0  # every so many saves are waited for
    full_every: int = 4
    keep: int = 2
    images: int = 2
    job: str = ""  # with a name it is restored from memory, too
    linger_s: float = 30.0
    skew_s: float = 0.0  # how wrong the clock of its writers is


class Own:
    """What a rank has for itself."""

    def __init__(self, rank: int) -> None:
        self.rank, self.steps = rank, 0

    def state_dict(self) -> dict[str, int]:
        return {"rank": self.rank, "steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.rank, self.steps = state["rank"], state["steps"]


class Sharded(nn.Module):
    """A table of which each rank has some rows, and trains those alone."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__()
        each = TABLES[0] // world
        self.first, self.last = rank * each, (rank + 1) * each
        whole = torch.randn(TABLES[0], WIDTH)
        self.rows = nn.Parameter(whole[self.first : self.last].clone())
        self._saved: Tensor = self.rows.detach()
        if world > 1:
            where = ShardMetadata([self.first, 0], [each, WIDTH], f"rank:{rank}/cpu")
            shards = [LocalShard(self._saved, where)]
            self._saved = init_from_local_shards(shards, TABLES[0], WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        mine = ids[(ids >= self.first) & (ids < self.last)] - self.first
        return nn.functional.embedding(mine, self.rows, sparse=True)

    def state_dict(self) -> dict[str, Tensor]:  # type: ignore[override]
        return {"rows": self._saved}


class Training:
    """Tables and dense layers that all ranks have, a table in shards, and the place in the data."""

    def __init__(self, rank: int, world: int) -> None:
        torch.manual_seed(0)
        self.world = world
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, WIDTH, sparse=True, mode="sum") for rows in TABLES
        )
        self.dense = nn.Sequential(nn.Linear(WIDTH * len(TABLES), 16), nn.ReLU(), nn.Linear(16, 1))
        self.model = nn.ModuleDict({"tables": self.tables, "dense": self.dense})
        self.sparse = torch.optim.Adagrad(self.tables.parameters(), lr=0.1)
        self.adam = torch.optim.Adam(self.dense.parameters(), lr=0.01)
        self.ids = [torch.randint(rows, (SAMPLES, LOOKUPS)) for rows in TABLES]
        self.wanted = torch.randn(SAMPLES, 1)
        self.sharded = Sharded(rank, world)
        self.by_row = torch.optim.SGD(self.sharded.parameters(), lr=0.1)
        batches = GlobalBatches(range(SAMPLES), BATCH // world, seed=1, rank=rank, world=world)
        loader: Any = DataLoader(range(SAMPLES), batch_sampler=batches)  # type: ignore[arg-type]
        self.position = Position(loader, optimizer=self.adam, rank=rank, world=world)
        self.own = Own(rank)
        self._batches: Iterator[Tensor] | None = None

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "sparse": self.sparse,
            "adam": self.adam,
            "position": self.position,
            "sharded": self.sharded,
            "by-row": self.by_row,
        }

    def step(self) -> tuple[float, list[int]]:
        """The loss, and the samples of this rank."""
        if self._batches is None:
            self._batches = self._read()
        mine = next(self._batches)
        everyone = [torch.empty_like(mine) for _ in range(self.world)]
        if self.world > 1:
            dist.all_gather(everyone, mine)
        else:
            everyone = [mine]
        samples = torch.cat(everyone)
        found = [table(ids[samples]) for table, ids in zip(self.tables, self.ids, strict=True)]
        loss = (self.dense(torch.cat(found, 1)) - self.wanted[samples]).square().mean()
        (loss + self.sharded(self.ids[0][samples].flatten()).square().sum()).backward()
        for optimizer in (self.sparse, self.by_row, self.adam):
            optimizer.step()
            optimizer.zero_grad()
        self.own.steps += 1
        return loss.item(), mine.tolist()

    def _read(self) -> Iterator[Tensor]:
        while True:
            yield from self.position

    def digest(self) -> str:
        """Of everything that all ranks have."""
        told = hashlib.sha256()
        for name, part in self.parts().items():
            if name != "sharded":
                _tell(part.state_dict(), told)
        return told.hexdigest()

    def shards(self, world: int) -> list[str]:
        """Of the rows of this rank, in so many pieces."""
        found = []
        for rows in self.sharded.rows.chunk(world):
            found.append(hashlib.sha256(rows.detach().numpy().tobytes()).hexdigest())
        return found


def _tell(value: Any, told: Any) -> None:
    if isinstance(value, Tensor):
        told.update(value.detach().contiguous().numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            told.update(str(key).encode())
            _tell(value[key], told)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _tell(one, told)
    else:
        told.update(repr(value).encode())


class Log:
    """Lines that are there once they are written, also if the writer is killed right after."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def __call__(self, what: str, **more: Any) -> None:
        os.write(
            self._fd,
            json.dumps({"what": what, **more}).encode() + b"\n",
        )


def reference(log: Log, steps: int) -> None:
    """The training on one rank, without any checkpoint."""
    training = Training(0, 1)
    for step in range(steps + 1):
        told: dict[str, Any] = {}
        if step:
            loss, ids = training.step()
            told = {"loss": loss.hex(), "ids": ids}
        told["shards"] = {world: training.shards(world) for world in (1, 2, 4)}
        log("at", step=step, digest=training.digest(), **told)


def train(life: Life, rank: int, log: Log) -> int:
    """One rank of one life; the exit code."""
    warnings.simplefilter("always")
    for usual in ("Sparse invariant checks", "Please use DTensor instead"):
        warnings.filterwarnings("ignore", message=usual)
    warnings.showwarning = lambda message, *_: log("warned", text=str(message))  # type: ignore
    training = Training(rank, life.world)
    checkpointer = Checkpointer(
        life.store,
        training.parts(),
        per_rank={"own": training.own},
        keep=Policy(last=life.keep),
        full_every=life.full_every,
        buffers=life.images,
        writer_idle_s=life.linger_s,
    )
    log("restoring")
    restored = checkpointer.restore()
    step = restored.step if restored else 0
    told: dict[str, Any] = {}
    if restored:
        told = {"source": restored.source, "notes": restored.notes}
    told |= {"own": training.own.state_dict(), "shard": training.shards(1)[0]}
    log("restored", step=step, digest=training.digest(), **told)
    try:
        while step < life.until:
            loss, ids = training.step()
            step += 1
            log("step", step=step, loss=loss.hex(), ids=ids)
            if step % life.every == 0:
                log("saving", step=step)
                checkpointer.save(step)
                log("saved", step=step)
                if life.waits and step // life.every % life.waits == 0:
                    checkpointer.wait()
                    log("durable", step=step)
        log("closing")
        checkpointer.close()
    except HeadwayError as error:
        text = with_code(str(error), code=error.code)
        log("failed", kind=type(error).__name__, text=text)
        return 1
    log("done", step=step, digest=training.digest())
    return 0
