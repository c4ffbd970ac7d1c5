"""A sampler with one global order of samples: any number of ranks can continue from an offset."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sized
from typing import Literal, get_args

import torch
from torch.utils.data import Sampler

from headway.checkpoint.coordinator import rank_and_world
from headway.errors import UsageError

Tail = Literal["pad", "short", "drop"]
CHECKED_ENTRIES = 64  # entries of an order used to compare orders


class GlobalBatches(Sampler[list[int]]):
    """The batches of this rank, for DataLoader(batch_sampler=...).

    Samples have one global order by (seed, epoch). A step takes `batch_size * world` of them from
    the offset on, `batch_size` per rank, so any number of ranks can continue where another number
    stopped. `tail` says what happens to the last samples of an epoch, which are too few for a step:

    pad    each rank takes the same number; the first samples of the order fill up the rest
    short  each sample is used once: some ranks have one fewer, or no batch in that step
    drop   they are dropped
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        tail: Tail = "pad",
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        """By default, rank and world size are those of the process group or of torchrun."""
        self.length = len(dataset)
        if self.length < 1 or batch_size < 1:
            raise UsageError(
                f"a dataset of {self.length} samples cannot be read in batches of {batch_size!r}",
                code="batches-invalid",
            )
        if tail not in get_args(Tail):
            raise UsageError(
                f"tail must be one of {', '.join(get_args(Tail))}, not {tail!r}",
                code="tail-unknown",
            )
        self.batch_size, self.seed, self.shuffle, self.tail = batch_size, seed, shuffle, tail
        self.rank, self.world = rank_and_world(rank, world)
        self.epoch = self.offset = 0
        # epoch, and the order of its samples
        self._order_of_epoch: tuple[int, torch.Tensor] | None = None

    def seek(self, epoch: int, offset: int) -> None:
        """Set where the next pass begins: `offset` samples of the epoch are done on all ranks."""
        self.epoch, self.offset = epoch, offset

    def after(self, offset: int, batches: int) -> int:
        """The offset after every rank has trained on that many batches."""
        return min(offset + batches * self.batch_size * self.world, self.length)

    def order(self, epoch: int) -> torch.Tensor:
        """All samples in the order of an epoch."""
        if self._order_of_epoch is None or self._order_of_epoch[0] != epoch:
            self._order_of_epoch = epoch, self._make_order(epoch)
        return self._order_of_epoch[1]

    def check(self, epoch: int) -> int:
        """A checksum of the order, which differs if another torch version shuffles differently."""
        order = self.order(epoch)[:: max(1, self.length // CHECKED_ENTRIES)]
        return zlib.crc32(repr(order.tolist()).encode())

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches(self.order(self.epoch), self.offset, len(self))

    def __len__(self) -> int:
        """Batches of this rank from the offset on."""
        steps, rest = divmod(self.length - self.offset, self.batch_size * self.world)
        least = {"pad": 1, "short": self.rank + 1, "drop": rest + 1}[self.tail]
        return steps + (rest >= least)

    def _make_order(self, epoch: int) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(self.length, device="cpu")
        # With a sum, epoch 1 of seed 0 and epoch 0 of seed 1 would have the same order.
        mixed = hashlib.sha256(f"{self.seed} {epoch}".encode()).digest()
        generator = torch.Generator("cpu").manual_seed(int.from_bytes(mixed[:7], "big"))
        return torch.randperm(self.length, generator=generator, device="cpu")

    def _batches(self, order: torch.Tensor, offset: int, batches: int) -> Iterator[list[int]]:
        for number in range(batches):
            start = self.after(offset, number)
            low, high = self._share(self.after(start, 1) - start)
            batch: list[int] = order[start + low : start + high].tolist()
            repeated = range(start + low + len(batch), start + high)
            yield batch + [int(order[index % self.length]) for index in repeated]

    def _share(self, samples: int) -> tuple[int, int]:
        """This rank's part of the samples of a step."""
        if self.tail == "pad":
            per_rank = -(-samples // self.world)
            return self.rank * per_rank, (self.rank + 1) * per_rank
        per_rank, extra = divmod(samples, self.world)
        low = self.rank * per_rank + min(self.rank, extra)
        return low, low + per_rank + (self.rank < extra)
