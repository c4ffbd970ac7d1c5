"""What the probe notes in real processes, however they were started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Probed, names, steps

TRAIN = """
import torch
def train(count=5):
    w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)
    o = torch.optim.SGD([w], lr=0.1)
    for _ in range(count): o.step()
"""
GROUP = """
import os, torch.distributed as dist
def join(rank, world, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
"""


def test_a_process_that_only_imports_torch_leaves_nothing(probed: Probed) -> None:
    assert probed("import torch\n") == []


def test_helpers_leave_nothing(probed: Probed) -> None:
    """Loader workers and other children of a rank inherit its environment, not its rank."""
    script = TRAIN + (
        "import subprocess, sys\n"
        "from torch.utils.data import DataLoader\n"
        "if __name__ == '__main__':\n"
        "    train(2)\n"
        "    list(DataLoader(list(range(8)), num_workers=2))\n"
        "    child = 'import torch; torch.nn.Linear(2, 2); torch.save(1, \"x.pt\")'\n"
        "    subprocess.run([sys.executable, '-c', child], check=True)\n"
    )
    journals = probed(script, env={"RANK": "0", "WORLD_SIZE": "1"})
    assert [journal.rank for journal in journals] == [0]


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_ranks_of_multiprocessing(probed: Probed, method: str) -> None:
    script = (
        TRAIN
        + GROUP
        + (
            "import torch.multiprocessing as mp\n"
            "def work(rank, path):\n"
            "    join(rank, 2, path); train(3 + rank); dist.barrier()\n"
            "if __name__ == '__main__':\n"
            "    path = os.path.abspath('store')\n"
            f"    mp.start_processes(work, (path,), 2, start_method={method!r})\n"
        )
    )
    journals = probed(script)
    ranks = {journal.rank: steps(journal) for journal in journals if journal.rank is not None}
    assert ranks == {0: 3, 1: 4}
    assert all("process_group_init" in names(j) for j in journals if j.rank is not None)
    ended = [j for j in journals if j.rank is not None and list(j.named("exit"))]
    assert len(ended) == 2


def test_the_exception_that_ends_a_rank(probed: Probed) -> None:
    (journal,) = probed(TRAIN + "train(2)\nraise ValueError('bad batch')\n", code=1)
    (error,) = journal.named("error")
    assert (error["type"], error["message"]) == ("ValueError", "bad batch")
    assert error["where"].endswith("script.py:8")


def test_the_exception_that_mp_spawn_swallows(probed: Probed) -> None:
    script = (
        TRAIN
        + GROUP
        + (
            "import torch.multiprocessing as mp\n"
            "def work(rank, path):\n"
            "    join(rank, 1, path); train(); raise KeyError('lost')\n"
            "if __name__ == '__main__':\n"
            "    mp.spawn(work, (os.path.abspath('store'),), 1)\n"
        )
    )
    journals = probed(script, code=1)
    (rank,) = [journal for journal in journals if journal.rank == 0]
    assert [event["type"] for event in rank.named("error")] == ["KeyError"]


def test_the_users_own_sitecustomize_still_runs(probed: Probed, tmp_path: Path) -> None:
    from headway.launch.supervise import BOOT

    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys; sys.own_ran = True\n")
    script = TRAIN + "import sys\nassert sys.own_ran\ntrain()\n"
    (journal,) = probed(script, env={"PYTHONPATH": f"{BOOT}:{tmp_path / 'own'}"})
    assert steps(journal) == 5


def test_import_headway_auto(probed: Probed, tmp_path: Path) -> None:
    """Python with its environment cut off sees nothing until the script asks for it."""
    root = Path(__file__).parents[2] / "src"
    way_in = f"import sys; sys.path.insert(0, {str(root)!r})\nimport headway.auto\n"
    assert probed(TRAIN + "train()\n", python=("-I",)) == []
    (journal,) = probed(way_in + TRAIN + "train()\n", python=("-I",))
    assert steps(journal) == 5
    env = {"HEADWAY_DIR": "", "PYTHONPATH": ""}
    probed(TRAIN + way_in + "train()\n", env=env)  # and after torch, with no launcher at all
    from headway.ledger.run import load

    (made,) = (tmp_path / "headway").iterdir()
    assert load(made).ledger.steps == 5


def test_two_optimizers_are_one_step(probed: Probed) -> None:
    script = """
import torch
def make():
    w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)
    return torch.optim.SGD([w], lr=0.1)
a, b = make(), make()
for _ in range(10): a.step(); b.step()
"""
    (journal,) = probed(script)
    assert steps(journal) == 10


def test_the_optimizer_that_steps_most_leads(probed: Probed) -> None:
    """A GAN whose critic makes five steps for one of the generator."""
    script = """
import torch
def make():
    w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)
    return torch.optim.SGD([w], lr=0.1)
generator, critic = make(), make()
for _ in range(20):
    generator.step()
    for _ in range(5): critic.step()
"""
    (journal,) = probed(script)
    assert 90 <= steps(journal) <= 100


def test_the_sdk_for_loops_that_hooks_cannot_see(probed: Probed) -> None:
    script = """
import torch, time, headway
with headway.stage("preproc_creation"): time.sleep(0.01)
headway.progress(step=7)
def batches():
    for i in range(4):
        time.sleep(0.15)
        yield i
for batch in headway.track(batches()):
    headway.step()
    headway.progress(samples=batch)
with headway.span("my own"): pass
@headway.span("evaluation")
def evaluate(): pass
evaluate()
"""
    (journal,) = probed(script)
    assert steps(journal) == 4
    assert journal.pulse is not None
    assert journal.pulse.samples == 3
    assert journal.pulse.batches == 4
    assert names(journal).count("data_wait") == 4
    assert {"preproc_creation", "blocked", "evaluation"} <= set(names(journal))
    assert [event["step"] for event in journal.named("progress")] == [7]


def test_sdk_without_a_recorder_does_nothing() -> None:
    import headway

    headway.step()
    headway.progress(samples=3)
    assert list(headway.track([1, 2])) == [1, 2]
    with headway.span("anything"), headway.stage("pre_train"):
        pass
    with pytest.raises(ValueError, match="no stage"):
        headway.stage("lunch")


def test_saves_and_loads_of_every_kind(probed: Probed) -> None:
    script = """
import os, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from safetensors.torch import save_file, load_file
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)
o = torch.optim.SGD([w], lr=0.1)
o.step(); o.step()
torch.save({"w": w}, "a.tmp"); os.replace("a.tmp", "a.pt")
with open("b.pt", "wb") as file: torch.save({"w": w}, file)
save_file({"w": w.detach()}, "c.safetensors")
dcp.save({"w": w}, checkpoint_id="d")
dcp.async_save({"w": w}, checkpoint_id="e").result()
torch.load("a.pt"); load_file("c.safetensors")
dcp.load({"w": w}, checkpoint_id="d")
"""
    (journal,) = probed(script)
    saves = [s for s in journal.spans if s.name == "checkpoint_save"]
    calls = [Path(s.fields["path"]).name for s in saves if not s.fields.get("background")]
    assert calls == ["a.tmp", "b.pt", "c.safetensors", "d", "e"]
    assert all(s.fields["step"] == 2 for s in saves)
    (upload,) = [s for s in saves if s.fields.get("background")]
    assert Path(upload.fields["path"]).name == "e"
    loads = [s for s in journal.spans if s.name == "checkpoint_load"]
    assert [Path(s.fields["path"]).name for s in loads] == ["a.pt", "c.safetensors", "d"]
    assert loads[0].fields["file"] == saves[0].fields["file"]  # known in spite of its new name


def test_a_failed_save_is_noted_as_failed(probed: Probed) -> None:
    script = TRAIN + "train()\ntry: torch.save(lambda: 0, 'x.pt')\nexcept Exception: pass\n"
    (journal,) = probed(script)
    (save,) = [s for s in journal.spans if s.name == "checkpoint_save"]
    assert save.fields["error"]


def test_compiles_and_recompiles_with_their_reason(probed: Probed) -> None:
    script = """
import torch
torch._dynamo.config.automatic_dynamic_shapes = False
w = torch.nn.Parameter(torch.zeros(1))
o = torch.optim.SGD([w], lr=0.1)
@torch.compile(backend="aot_eager")
def f(x): return (x * w).sum()
for n in (3, 3, 4, 5):
    f(torch.ones(n)).backward(); o.step()
"""
    (journal,) = probed(script)
    compiles = [s for s in journal.spans if s.name == "compile"]
    reasons = [s.fields["reason"] for s in compiles if s.fields.get("reason")]
    assert len(reasons) == 2
    assert all("size mismatch" in reason for reason in reasons)
    assert any("script.py" in s.fields["where"] for s in compiles if s.fields.get("where"))
    assert "compile_import" in names(journal)


def test_a_hook_that_finds_nothing_is_switched_off_alone(probed: Probed) -> None:
    script = (
        "from headway.probe import hooks\n"
        "hooks.TABLE['torch.serialization'] = 'checkpoint:not_in_this_torch'\n"
        + TRAIN
        + "train()\ntorch.save(1, 'x.pt')\n"
    )
    (journal,) = probed(script, env={"HEADWAY_STRICT": ""})
    assert steps(journal) == 5
    assert "checkpoint_save" not in names(journal)
    (note,) = journal.named("note")
    assert note["hook"] == "torch.serialization"
    assert "not_in_this_torch" in note["text"]


def test_every_hook_is_watched_for() -> None:
    from headway.probe.hooks import TABLE
    from headway.probe.imports import HOOKED

    assert set(TABLE) <= HOOKED


def test_a_kill_at_any_instant_loses_no_event(probed: Probed, tmp_path: Path) -> None:
    """Children that train as fast as they can, each killed at another instant."""
    script = """
import json, os, random, signal, time, torch, headway
w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)
o = torch.optim.SGD([w], lr=0.1)
random.seed(1)
told = {}
for _ in range(25):
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        done = 0
        while True:
            o.step(); done += 1
            if done % 7 == 0:
                with headway.span("blocked"): pass
            os.write(into, done.to_bytes(8, "little"))
    os.close(into)
    os.read(out, 8)
    end = time.monotonic() + random.uniform(0, 0.15)
    last = b""
    while time.monotonic() < end: last = os.read(out, 80000)
    os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
    while chunk := os.read(out, 1 << 20): last = chunk
    told[pid] = int.from_bytes(last[-8:], "little")
json.dump(told, open("told.json", "w"))
"""
    journals = probed(script)
    told = {int(k): v for k, v in json.loads((tmp_path / "told.json").read_text()).items()}
    assert {journal.pid for journal in journals} == set(told)
    for journal in journals:
        done = told[journal.pid]
        assert steps(journal) - done in (0, 1)  # the step in flight
        spans = [span for span in journal.spans if span.name == "blocked"]
        assert len(spans) - done // 7 in (0, 1)
        assert all(span.end is not None for span in spans[:-1])
        assert journal.damaged == 0
