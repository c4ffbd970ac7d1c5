"""Process groups between real ranks: created by their members, and recorded by the probe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.journal.reader import Journal
from headway.ledger.build import build_ledger
from headway.ledger.model import Ledger, PreStepCollectives, ProcessGroups
from tests.support import Probed

SOURCE = Path(__file__).parents[2] / "src"
RANKS = str(Path(__file__).with_name("ranks.py"))
ENV = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}

JOIN = """
import threading, torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds=30))
rank, world = dist.get_rank(), dist.get_world_size()
def total(group):
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=group)
    return int(x)
"""
STEP = """
w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)
optimizer = torch.optim.SGD([w], lr=0.1)
"""


def ranked(tmp_path: Path, ranks: int, script: str) -> str:
    file = tmp_path / "job.py"
    file.write_text(JOIN + "from headway.startup import process_groups as groups\n" + script)
    done = subprocess.run(
        [sys.executable, RANKS, str(ranks), "torch.distributed", str(file)],
        env={**os.environ, **ENV, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(100)
@pytest.mark.slow
def test_four_ranks_make_their_own_groups(tmp_path: Path) -> None:
    """Ranks that created other groups before, threads, and groups that are destroyed."""
    script = """
if rank < 2:
    assert total(groups.group([1, 0], purpose="pair").pg()) == 1
far = groups.group([3, 0], purpose="far")  # rank 3 has made nothing yet
if far.member:
    assert total(far.pg()) == 3
mesh = groups.partition({"dp": 2, "tp": 2})
groups.ensure(*(mesh.values() if rank % 2 else reversed(mesh.values())))
assert total(mesh["dp"].pg()) == (2 if rank % 2 == 0 else 4)
assert total(mesh["tp"].pg()) == (1 if rank < 2 else 5)
mesh["tp"].destroy()
assert total(mesh["tp"].pg()) == (1 if rank < 2 else 5)
assert total(groups.group([rank], purpose="own").pg()) == rank
assert groups.group(range(world)).pg() is dist.group.WORLD

both = groups.group(range(4), purpose="threads", timeout=timedelta(seconds=30))
made = []
threads = [threading.Thread(target=lambda: made.append(both.pg())) for _ in range(2)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
assert made[0] is made[1] and total(made[0]) == 6

left_out = groups.split([[0, 2]], purpose="part")
groups.ensure(left_out)
assert left_out.is_created == (rank in (0, 2))
cpu = groups.group([0, 1], backend="gloo", purpose="pair")
assert (cpu.is_created, cpu.member) == (rank < 2, rank < 2)
groups.destroy()
assert list(dist.distributed_c10d._world.pg_map) == [dist.group.WORLD]
dist.destroy_process_group()
print("done")
"""
    assert ranked(tmp_path, 4, script).count("done") == 4


@pytest.mark.timeout(100)
def test_a_job_that_starts_anew_in_the_same_processes(tmp_path: Path) -> None:
    script = """
for life in range(2):
    one = groups.group([0, 1], purpose="tensor", timeout=timedelta(seconds=30))
    assert not one.is_created and total(one.pg()) == 1
    dist.destroy_process_group()
    store = dist.FileStore(f"{__file__}.{life}", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
print("done")
"""
    assert ranked(tmp_path, 2, script).count("done") == 2


def probe(probed: Probed, ranks: int, script: str, **env: str) -> Ledger:
    journals = probed(
        JOIN + STEP + script, python=(RANKS, str(ranks), "torch._dynamo"), env={**ENV, **env}
    )
    return build_ledger([journal for journal in journals if journal.rank is not None])


def made(ledger: Ledger) -> dict[str, ProcessGroups]:
    return {group.desc: group for group in ledger.process_groups}


def calls(ledger: Ledger) -> dict[str, PreStepCollectives]:
    return {call.what: call for call in ledger.pre_step_collectives}


def line(script: str, text: str) -> int:
    """The first line after the preamble that has this text."""
    before = (JOIN + STEP).count("\n")
    return before + 1 + next(n for n, line in enumerate(script.split("\n")) if text in line)


def counts(group: ProcessGroups) -> tuple[int, int, int, int, int]:
    return group.calls, group.made, group.used, group.unused, group.duplicate


@pytest.mark.timeout(100)
def test_the_probe_sees_which_groups_are_used_and_what_is_said_early(probed: Probed) -> None:
    script = """
from torch.distributed.device_mesh import init_device_mesh
def setup():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
mesh = setup()
again = dist.new_group(range(world), group_desc="again")
late = dist.new_group([0, 1], group_desc="late")
short = dist.new_group([0, 1], group_desc="short")
if rank < 2:
    total(short)
    dist.destroy_process_group(short)
dist.new_group([0, 1], group_desc="unused")
for table in range(3):
    dist.all_gather_object([None] * world, {"table": table, "rows": "x" * 1000})
dist.barrier()
total(again)
net = torch.nn.Linear(4, 4)
net = torch.nn.parallel.DistributedDataParallel(net, process_group=mesh.get_group("dp"))
net(torch.ones(2, 4)).sum().backward()
optimizer.step()
dist.barrier()  # after the first step: not early
if rank < 2:
    peer = 1 - rank
    (dist.send if rank else dist.recv)(torch.ones(1), peer, late)
optimizer.step()
dist.destroy_process_group()
"""
    ledger = probe(probed, 4, script)
    groups = made(ledger)
    assert {group.ranks for group in groups.values()} == {4}
    assert counts(groups["mesh_dp"]) == (2, 1, 1, 0, 0)  # by DDP, in C++
    assert counts(groups["mesh_tp"]) == (2, 1, 0, 1, 0)
    assert counts(groups["again"]) == (1, 1, 1, 0, 1)
    assert counts(groups["late"])[2] == 1
    assert counts(groups["short"])[2] == 1  # it was asked before it went
    assert counts(groups["unused"]) == (1, 1, 0, 1, 0)
    assert all(group.complete and group.backend == "gloo" for group in groups.values())
    assert groups["mesh_dp"].where.endswith(f"script.py:{line(script, 'return')} setup")
    assert 0 < groups["mesh_tp"].avoidable <= groups["mesh_tp"].ns
    assert groups["mesh_dp"].avoidable < groups["mesh_dp"].ns
    early = calls(ledger)
    assert set(early) == {"all_gather_object", "barrier"}
    objects = early["all_gather_object"]
    assert (objects.times, objects.ranks) == (3, 4) and objects.bytes > 3000
    assert 0 < objects.min_time <= objects.ns
    assert early["barrier"].times == 1
    assert early["barrier"].where.endswith(f"script.py:{line(script, 'barrier()')} <module>")


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_a_partition_makes_what_the_mesh_made_with_fewer_calls(probed: Probed) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(SOURCE)!r})
from headway.startup import process_groups as groups
def setup():
    mesh = groups.partition({{"dp": 2, "tp": 2}})
    groups.ensure(*mesh.values())
    return mesh
mesh = setup()
total(mesh["dp"].pg()); total(mesh["tp"].pg())
optimizer.step()
"""
    groups = made(probe(probed, 4, script))
    assert counts(groups["dp"]) == counts(groups["tp"]) == (1, 1, 1, 0, 0)
    assert all(group.avoidable == 0 for group in groups.values())
    assert groups["dp"].where.endswith(" setup")


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_collectives_of_compiled_code_are_a_use(probed: Probed) -> None:
    script = """
import torch.distributed._functional_collectives as functional
group = dist.new_group([0, 1], group_desc="compiled")
@torch.compile(backend="aot_eager")
def work(x):
    return functional.all_reduce(x, "sum", group) + 1
assert work(torch.ones(1)).item() == 3
optimizer.step()
"""
    assert counts(made(probe(probed, 2, script))["compiled"])[2:4] == (1, 0)


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_torchs_debug_mode_counts_too(probed: Probed) -> None:
    script = """
one, two = (dist.new_group([0, 1], group_desc=name) for name in ("one", "two"))
total(one); optimizer.step()
"""
    groups = made(probe(probed, 2, script, TORCH_DISTRIBUTED_DEBUG="DETAIL"))
    assert (groups["one"].used, groups["two"].unused) == (1, 1)


@pytest.mark.timeout(100)
def test_what_a_killed_rank_did_not_use_is_not_called_needless(probed: Probed) -> None:
    script = """
import os
dist.new_group([0], group_desc="unused")
optimizer.step()
os._exit(0)
"""
    unused = made(probe(probed, 1, script))["unused"]
    assert (unused.unused, unused.complete, unused.avoidable) == (1, False, 0)


def events(journals: list[Journal]) -> list[dict[str, Any]]:
    return [event for journal in journals for event in journal.named("communication")]


@pytest.mark.timeout(100)
def test_thousands_of_calls_are_one_event(probed: Probed) -> None:
    script = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for line in range(60):
    exec(f"def call{line}():\\n    dist.barrier()", {"dist": dist}, made := {})
    [made[f"call{line}"]() for _ in range(50)]
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.destroy_process_group()
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
from torch.distributed.device_mesh import init_device_mesh
init_device_mesh("cpu", (4, 4, 4))
"""
    journals = probed(script + STEP + "optimizer.step()\n")
    first, last = events(journals)
    assert (first["at"], last["at"]) == ("first_step", "exit")
    assert [(call["times"], call["what"]) for call in last["calls"]] == [(3000, "barrier")]
    assert [row["calls"] for row in last["groups"]] == [16, 16, 16]
    assert sum(row["made"] for row in last["groups"]) == 3
    assert sum(row["used"] + row["unused"] for row in last["groups"]) == 0  # it does not count
