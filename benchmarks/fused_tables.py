"""What saving a TorchRec model costs: its tables change in the backward pass, unseen by autograd.

    .venv-torchrec/bin/python benchmarks/fused_tables.py [--megabytes 1024] [--keep]

`make test-torchrec` makes that environment. One rank on a CPU. Every way saves the same model
after the same number of steps; the first two saves of each make buffers and are not counted. The
true cost is the call and what the steps take longer than without a save until the bytes are on
disk. Beside it the limit, measured in the same run: a copy of the state in warm memory. A way that
does not work is a row that says why.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
sys.path.insert(0, str(Path(__file__).parent))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from keep import keep, machine  # noqa: E402
from torchrec.distributed import DistributedModelParallel  # noqa: E402
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward  # noqa: E402
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad  # noqa: E402

from headway.checkpoint import Checkpointer  # noqa: E402
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor  # noqa: E402

TABLES, DIM, BATCH = 8, 64, 1024
BETWEEN, WARM, COUNTED = 40, 2, 4


class Training:
    def __init__(self, megabytes: int) -> None:
        torch.manual_seed(0)
        self.rows = megabytes * 1_000_000 // (TABLES * (DIM + 1) * 4)
        self.keys = [f"f{number}" for number in range(TABLES)]
        configs = [
            EmbeddingBagConfig(
                name=f"t{key}", embedding_dim=DIM, num_embeddings=self.rows, feature_names=[key]
            )
            for key in self.keys
        ]
        tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), {"lr": 0.1})
        self.model = DistributedModelParallel(tables, device=torch.device("cpu"))
        self.lengths = torch.ones(TABLES * BATCH, dtype=torch.int32)

    def step(self) -> float:
        """Seconds."""
        ids = (torch.rand(TABLES * BATCH) ** 4 * self.rows).long()
        batch = KeyedJaggedTensor.from_lengths_sync(self.keys, ids, self.lengths)
        begun = time.monotonic()
        self.model(batch).values().square().sum().backward()
        return time.monotonic() - begun

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.model.fused_optimizer}

    def state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts().items()}

    def tensors(self) -> list[torch.Tensor]:
        kept = self.model.fused_optimizer.state_dict()["state"].values()
        found = [*self.model.state_dict().values(), *(v for one in kept for v in one.values())]
        return [shard.tensor.detach() for one in found for shard in one.local_shards()]


Save = Callable[[int], Callable[[], bool]]  # gives what says whether it is on disk


def headway(training: Training, folder: Path, full_every: int) -> tuple[Save, Callable[[], None]]:
    checkpointer = Checkpointer(folder, training.parts(), full_every=full_every)

    def save(number: int) -> Callable[[], bool]:
        checkpointer.save(number)
        return lambda: any(one["step"] == number for one in checkpointer.outcomes())

    return save, checkpointer.close


def with_dcp(training: Training, folder: Path, is_async: bool) -> tuple[Save, Callable[[], None]]:
    def save(number: int) -> Callable[[], bool]:
        if number > 1:
            shutil.rmtree(folder / str(number - 1))
        if is_async:
            return dcp.async_save(training.state(), checkpoint_id=folder / str(number)).done
        dcp.save(training.state(), checkpoint_id=folder / str(number))
        return lambda: True

    return save, lambda: None


WAYS: dict[str, Callable[[Training, Path], tuple[Save, Callable[[], None]]]] = {
    "headway, rows": lambda training, folder: headway(training, folder, 100),
    "headway, whole": lambda training, folder: headway(training, folder, 1),
    "dcp save": lambda training, folder: with_dcp(training, folder, False),
    "dcp async": lambda training, folder: with_dcp(training, folder, True),
}


def measured(training: Training, way: str, folder: Path) -> dict[str, Any]:
    save, close = WAYS[way](training, folder)
    rows = []
    for number in range(1, WARM + COUNTED + 1):
        quiet = [training.step() for _ in range(BETWEEN)]
        begun = time.monotonic()
        on_disk = save(number)
        call = time.monotonic() - begun
        took = []
        while not on_disk():
            took.append(training.step())
        durable = time.monotonic() - begun
        longer = sum(took) - len(took) * statistics.mean(quiet)
        newest = max(folder.glob("*[0-9]"), key=os.path.getmtime)
        size = sum(path.stat().st_size for path in newest.iterdir())
        rows.append({"call_s": call, "cost_s": call + max(0.0, longer), "durable_s": durable})
        rows[-1] |= {"bytes": size, "step_s": statistics.mean(quiet)}
    close()
    counted = rows[WARM:]
    return {"way": way} | {key: statistics.median(row[key] for row in counted) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--keep", action="store_true", help="write results/fused_tables.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    training = Training(args.megabytes)
    tensors = training.tensors()
    copies = [tensor.clone() for tensor in tensors]
    copied = []
    for _ in range(5):
        begun = time.monotonic()
        torch._foreach_copy_(copies, tensors)
        copied.append(time.monotonic() - begun)
    copies.clear()
    size = sum(tensor.nbytes for tensor in tensors)
    print(f"{size / 1e6:.0f} MB: copy {min(copied) * 1e3:.1f} ms", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-fused-") as folder:
        for way in WAYS:
            try:
                row = measured(training, way, Path(folder) / way.replace(", ", "-"))
            except RuntimeError as error:
                rows.append({"way": way, "failed": str(error).partition(",")[0]})
                print(f"  {way:<16} not here: {rows[-1]['failed']}", flush=True)
                continue
            row["cost_of_copy"] = row["cost_s"] / min(copied)
            rows.append(row)
            print(
                f"  {way:<16} call {row['call_s'] * 1e3:7.1f} ms"
                f"   cost {row['cost_s'] * 1e3:7.1f} ms ({row['cost_of_copy']:.2f} of a copy)"
                f"   {row['bytes'] / 1e6:6.0f} MB on disk after {row['durable_s']:.2f} s",
                flush=True,
            )
    versions = {name: version(name) for name in ("torch", "torchrec", "fbgemm-gpu-cpu")}
    result = {"machine": machine(), "versions": versions, "megabytes": args.megabytes}
    keep("fused_tables", {**result, "copy_s": min(copied), "rows": rows})
    os._exit(0)  # past threads that DCP has left


if __name__ == "__main__":
    main()
