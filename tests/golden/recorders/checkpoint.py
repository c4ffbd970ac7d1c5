"""Checkpoints, by `headway.checkpoint.Checkpointer`, and what `--async-save` writes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from tests.golden import record

TREE = Path(__file__).parents[3]
JOB = """
import torch
import torch.distributed.checkpoint as dcp

model = torch.nn.Linear(3, 2)
for one in model.parameters():
    one.data = torch.arange(float(one.numel())).view(one.shape)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
model(torch.ones(4, 3)).sum().backward()
optimizer.step()
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
torch.save(state, "files/model.pt")
torch.save(torch.arange(10, dtype=torch.bfloat16), "files/tensor.pt")
dcp.save({"model": model.state_dict(), "epoch": 3}, checkpoint_id="files/dcp")
"""


def _checkpointer(store: Path | str, state: Any, **options: Any) -> Any:
    from headway.checkpoint import Checkpointer, Policy

    options = {"keep": Policy(last=10), "writer_idle_s": 0.1, **options}
    return Checkpointer(store, state.parts, per_rank=state.own, **options)


def _full(files: Path) -> None:
    from tests.golden.states import full

    checkpointer = _checkpointer(files / "store", full(filled=True))
    checkpointer.save(100, metrics={"loss": 0.5}, extra={"note": "a word", "list": [1, None]})
    checkpointer.close()


def _url(files: Path) -> None:
    """Behind a URL no folder is renamed: names and files are others."""
    from tests.golden.states import State, numbers

    tensor = numbers((64,))
    state = State(parts={"tensor": tensor, "epoch": 1})
    checkpointer = _checkpointer(f"local://{files}/store", state)
    for step in (100, 200):
        tensor += 1
        checkpointer.save(step)
        checkpointer.wait()
    checkpointer.close()


def _steps(files: Path, **options: Any) -> None:
    """A full save, and two deltas on it."""
    from tests.golden.states import table, train

    warnings.filterwarnings("ignore", message="Sparse invariant checks")
    state = table(filled=True)
    checkpointer = _checkpointer(files / "store", state, **options)
    for step in (1, 2, 3):
        train(state, step)
        checkpointer.save(step)
        checkpointer.wait()
    checkpointer.close()


def _packed(files: Path) -> None:
    _steps(files, compress="zstd")


def _anchor(files: Path) -> None:
    """With golden inputs and outputs of the model."""
    import torch

    from tests.golden.states import State, numbers

    model = torch.nn.Linear(3, 2)
    for one in model.parameters():
        one.data = numbers(tuple(one.shape))
    checkpointer = _checkpointer(files / "store", State(parts={"model": model, "epoch": 4}))
    checkpointer.save(10)
    checkpointer.wait()
    checkpointer.anchor(
        20,
        model_ref="model:build",
        model_arguments={"rows": 60},
        example_inputs=(numbers((2, 3)),),
        metrics={"auc": 0.75},
    )
    checkpointer.close()


def _interrupted(files: Path) -> None:
    """What saves leave that were killed at different instants, beside a good checkpoint."""
    import torch

    from headway.checkpoint.format.rank_file import BytesItem, write_part
    from headway.checkpoint.store import commit, layout
    from headway.checkpoint.store.commit import Draft
    from headway.checkpoint.store.layout import MANIFEST
    from tests.golden.states import State

    store = files / "store"
    for step in (1, 2):
        tensor = torch.full((64,), float(step))
        checkpointer = _checkpointer(store, State(parts={"tensor": tensor, "epoch": step}))
        checkpointer.save(step)
        checkpointer.close()
    data = store / layout.step_name(2) / "__0_0.distcp"
    os.truncate(data, data.stat().st_size // 2)  # a disk that lost the second half
    with Draft(store, 3, "half", 2) as draft:  # the part of rank 1 never came
        write_part(draft.folder, 0, [BytesItem("epoch", b"3")])
    with Draft(store, 4, "given-up", 2) as draft:
        assert commit.write_abort_mark(draft, commit.AbortMark(1, "the disk is full"))
    (store / layout.step_name(5)).mkdir()  # not of Headway
    (store / layout.step_name(5) / "model.pt").write_bytes(b"another program's")
    trash = store / layout.trash_name(0)  # a deletion that was cut short
    trash.mkdir()
    (trash / MANIFEST).write_bytes(b"")
    (store / ".new-latest").write_bytes(b"step-")


def _sharded(files: Path) -> None:
    """By two processes."""
    with tempfile.TemporaryDirectory() as place:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(files / "store"), f"{place}/meet", str(rank)],
                cwd=TREE,
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            )
            for rank in range(2)
        ]
        assert [rank.wait() for rank in ranks] == [0, 0]


def _rank(store: str, meet: str, rank: int) -> None:
    """One of the two: shards of every kind."""
    import torch
    import torch.distributed as dist
    from torch.distributed._shard.sharded_tensor import Shard as LocalShard
    from torch.distributed._shard.sharded_tensor import init_from_local_shards
    from torch.distributed._shard.sharding_spec import ShardMetadata
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from tests.golden.states import COLUMNS, ROWS, Held, State, numbers

    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = numbers((ROWS, COLUMNS))
    start, end = rank * ROWS // 2, (rank + 1) * ROWS // 2
    where = ShardMetadata([start, 0], [end - start, COLUMNS], f"rank:{rank}/cpu")
    table = init_from_local_shards([LocalShard(whole[start:end].clone(), where)], ROWS, COLUMNS)
    parts = {
        "rows": distribute_tensor(whole, mesh, [Shard(0)]),
        "columns": distribute_tensor(whole.bfloat16(), mesh, [Shard(1)]),
        "copies": distribute_tensor(whole, mesh, [Replicate()]),
        "table": Held(weight=table),
        "plain": whole.double(),
        "epoch": 3,
    }
    state = State(parts=parts, own={"random": Held(seed=torch.tensor([rank, 7]))})
    checkpointer = _checkpointer(store, state)
    checkpointer.save(100)
    checkpointer.close()
    dist.barrier()
    dist.destroy_process_group()


def _async_save(files: Path) -> None:
    """`headway run --async-save`, with saves of torch and of DCP."""
    Path("job.py").write_text(JOB)
    run = [sys.executable, "-m", "headway", "run", "-o", "run", "--async-save", "--"]
    done = subprocess.run([*run, sys.executable, "job.py"], capture_output=True, text=True)
    assert done.returncode == 0 and (files / "model.pt").is_file(), done.stderr
    journals = "".join(path.read_text() for path in Path("run/journal").glob("*.jsonl"))
    assert journals.count('"ev":"behind"') >= 3, "a save was not written by --async-save"


TORCH = ("torch",)
RECORDERS: dict[str, tuple[record.Recorder, str, tuple[str, ...]]] = {
    "full": (_full, "a state with everything that a training may have", TORCH),
    "url": (_url, "two checkpoints behind a URL of fsspec", ("torch", "fsspec")),
    "delta": (_steps, "a full checkpoint and two deltas on it", TORCH),
    "packed": (_packed, "the same, compressed by zstd", ("torch", "zstandard")),
    "sharded": (_sharded, "shards of two ranks: DTensor and ShardedTensor", TORCH),
    "anchor": (_anchor, "a checkpoint and an anchor with golden inputs", TORCH),
    "interrupted": (_interrupted, "saves that were killed, and a damaged checkpoint", TORCH),
    "async_save": (_async_save, "files of torch.save and of DCP, by --async-save", TORCH),
}

if __name__ == "__main__":
    _rank(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    os._exit(0)  # torch 2.13 with gloo sometimes aborts on the way out
