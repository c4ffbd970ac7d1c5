"""What the probe notes in real processes, however they were started.

Most scripts run in a fork of a process that has imported torch with the probe (`forked`); those
that are about the start of a process or about imports start an interpreter (`probed`).
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from headway.journal.reader import read_journals
from headway.journal.run_files import JOURNAL
from tests.support import Probed, names, steps

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


@pytest.mark.parametrize("env", [{}, {"RANK": "1", "WORLD_SIZE": "2"}], ids=["job", "rank"])
def test_the_error_of_a_job_that_does_not_come_to_torch(
    probed: Probed, env: dict[str, str]
) -> None:
    (journal,) = probed("import not_there\n", env=env, code=1)
    (error,) = journal.named("error")
    assert (error["type"], journal.rank) == ("ModuleNotFoundError", 1 if env else None)
    assert [event["ev"] for event in journal.events][-1] == "exit"
    assert "torch" not in {event.get("module") for event in journal.events}


def test_a_program_that_ends_by_an_exception_is_not_the_job_that_has_begun_it(
    probed: Probed,
) -> None:
    script = (
        "import subprocess, sys\n"
        "if len(sys.argv) > 1: raise ValueError\n"
        "subprocess.run([sys.executable, __file__, 'x'])\n"
        "subprocess.run(f'{sys.executable} {__file__} x', shell=True)\n"
    )
    assert probed(script) == []
    assert probed(script, env={"RANK": "0", "WORLD_SIZE": "1"}) == []


def test_helpers_leave_nothing(forked: Probed) -> None:
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
    journals = forked(script, env={"RANK": "0", "WORLD_SIZE": "1"})
    assert [journal.rank for journal in journals] == [0]


@pytest.mark.parametrize(
    "method", ["spawn", "fork", pytest.param("forkserver", marks=pytest.mark.slow)]
)
def test_ranks_of_multiprocessing(forked: Probed, method: str) -> None:
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
    journals = forked(script)
    ranks = {journal.rank: steps(journal) for journal in journals if journal.rank is not None}
    assert ranks == {0: 3, 1: 4}
    assert all("process_group_init" in names(j) for j in journals if j.rank is not None)
    ended = [j for j in journals if j.rank is not None and list(j.named("exit"))]
    assert len(ended) == 2


def test_the_exception_that_ends_a_rank(forked: Probed) -> None:
    (journal,) = forked(TRAIN + "train(2)\nraise ValueError('bad batch')\n", code=1)
    (error,) = journal.named("error")
    assert (error["type"], error["message"]) == ("ValueError", "bad batch")
    assert error["where"].endswith("script.py:8")


def test_the_exception_that_mp_spawn_swallows(forked: Probed) -> None:
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
    journals = forked(script, code=1)
    (rank,) = [journal for journal in journals if journal.rank == 0]
    assert [event["type"] for event in rank.named("error")] == ["KeyError"]


def test_the_users_own_sitecustomize_still_runs(probed: Probed, tmp_path: Path) -> None:
    from headway.launch.attempt import BOOT

    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys; sys.own_ran = True\n")
    script = "import sys, headway\nassert sys.own_ran\nheadway.step()\n"
    (journal,) = probed(script, env={"PYTHONPATH": f"{BOOT}:{tmp_path / 'own'}"})
    assert steps(journal) == 1


def test_import_headway_auto(probed: Probed, tmp_path: Path) -> None:
    """Python with its environment cut off sees nothing until the script asks for it."""
    root = Path(__file__).parents[2] / "src"
    way_in = f"import sys; sys.path.insert(0, {str(root)!r})\nimport headway.auto\n"
    unseen = "import sys\nassert 'headway.probe' not in sys.modules\n"
    (journal,) = probed(unseen + way_in + TRAIN + "train()\n", python=("-I",))
    assert steps(journal) == 5
    env = {"HEADWAY_DIR": "", "PYTHONPATH": ""}
    probed(TRAIN + way_in + "train()\n", env=env)  # and after torch, with no launcher at all
    from headway.run import load

    (folder,) = (tmp_path / "headway").iterdir()
    assert load(folder).ledger.steps == 5


POINT_TO_POINT = """
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
pair = dist.new_group([0, 1])
x = torch.ones(1)
for work in dist.batch_isend_irecv([P2POp(isend, x, 1, pair), P2POp(irecv, x, 1, pair)]):
    work.wait()
from headway.probe.hooks.process_groups import communication
assert [group.used for group in communication.records] == [True]
torch.save(x, "x.pt")
"""
P2P_NAMES = """
import torch, torch.distributed as dist
from torch.distributed import P2POp, irecv, isend
assert (isend, irecv) == (dist.isend, dist.irecv)
"""


def test_pipelines_run_with_the_probe(forked: Probed) -> None:
    (journal,) = forked(P2P_NAMES + POINT_TO_POINT)
    assert {"process_group_init", "checkpoint_save"} <= set(names(journal))


def test_pipelines_run_where_the_probe_comes_after_torch(probed: Probed, tmp_path: Path) -> None:
    """torch compares `isend` and `irecv` by identity; names it has exported before are hooked."""
    root = Path(__file__).parents[2] / "src"
    way_in = f"import sys; sys.path.insert(0, {str(root)!r})\nimport headway.auto\n"
    probed(P2P_NAMES + way_in + POINT_TO_POINT, env={"HEADWAY_DIR": "", "PYTHONPATH": ""})
    (folder,) = (tmp_path / "headway").iterdir()
    (journal,) = read_journals(str(folder / JOURNAL))[0]
    assert {"process_group_init", "checkpoint_save"} <= set(names(journal))


def test_two_optimizers_are_one_step(forked: Probed) -> None:
    script = """
import torch
def make():
    w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)
    return torch.optim.SGD([w], lr=0.1)
a, b = make(), make()
for _ in range(10): a.step(); b.step()
"""
    (journal,) = forked(script)
    assert steps(journal) == 10


def test_the_optimizer_that_steps_most_leads(forked: Probed) -> None:
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
    (journal,) = forked(script)
    assert steps(journal) == 101  # the generator's first, and then the critic's


def test_the_sdk_for_loops_that_hooks_cannot_see(forked: Probed) -> None:
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
    (journal,) = forked(script)
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
    with pytest.raises(ValueError, match="lunch"):
        headway.stage("lunch")


def test_saves_and_loads_of_every_kind(forked: Probed) -> None:
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
"""
    loading = """
import torch, torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
torch.load("a.pt"); load_file("c.safetensors")
dcp.load({"w": torch.zeros(1)}, checkpoint_id="d", no_dist=True)
"""
    (journal,) = forked(script)
    saves = [s for s in journal.spans if s.name == "checkpoint_save"]
    calls = [Path(s.fields["path"]).name for s in saves if not s.fields.get("background")]
    assert calls == ["a.tmp", "b.pt", "c.safetensors", "d", "e"]
    assert all(s.fields["step"] == 2 for s in saves)
    (upload,) = [s for s in saves if s.fields.get("background")]
    assert Path(upload.fields["path"]).name == "e"
    (resumed,) = [other for other in forked(loading) if other.pid != journal.pid]
    loads = [s for s in resumed.spans if s.name == "checkpoint_load"]
    assert [Path(s.fields["path"]).name for s in loads] == ["a.pt", "c.safetensors", "d"]
    assert loads[0].fields["file"] == saves[0].fields["file"]  # known in spite of its new name


def test_a_failed_save_is_noted_as_failed(forked: Probed) -> None:
    script = TRAIN + "train()\ntry: torch.save(lambda: 0, 'x.pt')\nexcept Exception: pass\n"
    (journal,) = forked(script)
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


def test_compiles_are_seen_after_a_reset(forked: Probed) -> None:
    script = """
import torch
w = torch.nn.Parameter(torch.zeros(1))
o = torch.optim.SGD([w], lr=0.1)
for n in range(2):
    torch._dynamo.reset()
    torch.compile(lambda x: (x * w).sum(), backend="aot_eager")(torch.ones(3)).backward()
    o.step()
"""
    (journal,) = forked(script)
    compiles = [s for s in journal.spans if s.name == "compile"]
    assert len(compiles) >= 2
    assert all(s.end is not None for s in compiles)


def test_a_hook_that_finds_nothing_is_switched_off_alone(probed: Probed) -> None:
    script = (
        "from headway.probe import import_hook\n"
        "import_hook.HOOKS['torch.serialization'] = 'checkpoint:not_in_this_torch'\n"
        + TRAIN
        + "train()\ntorch.save(1, 'x.pt')\n"
    )
    (journal,) = probed(script, env={"HEADWAY_STRICT": ""})
    assert steps(journal) == 5
    assert "checkpoint_save" not in names(journal)
    (note,) = journal.named("note")
    assert (note["hook"], note["code"]) == ("torch.serialization", "hook-off")
    assert "not_in_this_torch" in note["text"]


def test_every_hook_is_watched_for() -> None:
    from headway.probe.import_hook import AUTOTUNE_HOOKS, HOOKED_MODULES, HOOKS

    for package, table in (("hooks", HOOKS), ("autotune", AUTOTUNE_HOOKS)):
        assert set(table) <= HOOKED_MODULES
        for where in table.values():
            file, _, function = where.partition(":")
            assert callable(getattr(import_module(f"headway.probe.{package}.{file}"), function))


def test_a_kill_at_any_instant_loses_no_event(forked: Probed, tmp_path: Path) -> None:
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
    journals = forked(script)
    steps_done = {int(k): v for k, v in json.loads((tmp_path / "told.json").read_text()).items()}
    assert {journal.pid for journal in journals} == set(steps_done)
    for journal in journals:
        done = steps_done[journal.pid]
        assert steps(journal) - done in (0, 1)  # the step in flight
        spans = [span for span in journal.spans if span.name == "blocked"]
        assert len(spans) - done // 7 in (0, 1)
        assert all(span.end is not None for span in spans[:-1])
        assert journal.damaged == 0


NEW_OPTIMIZER = """
import torch
for client in range(10):
    w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)
    o = torch.optim.SGD([w], lr=0.1)
    o.step(); o.step()
"""


def test_a_new_optimizer_takes_over_from_one_that_is_gone(forked: Probed) -> None:
    (journal,) = forked(NEW_OPTIMIZER)
    assert steps(journal) == 20


def test_evaluation_through_a_loader_while_training_has_none(forked: Probed) -> None:
    script = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
o = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    model(torch.ones(2, 4)).sum().backward(); o.step()
    if step % 10 == 9:
        model.eval()
        with torch.no_grad():
            for batch in DataLoader(torch.ones(6, 4), batch_size=2): model(batch)
        model.train()
"""
    (journal,) = forked(script)
    assert steps(journal) == 30
    assert names(journal).count("evaluation") == 3
    assert all(window.batches == 0 for window in journal.windows)


def test_evaluation_without_eval_and_with_gradients(forked: Probed) -> None:
    script = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
o = torch.optim.SGD(model.parameters(), lr=0.1)
for step, batch in enumerate(DataLoader(torch.ones(30, 4))):
    model(batch).sum().backward(); o.step()
    if step % 10 == 9:
        for test in DataLoader(torch.ones(6, 4), batch_size=2): model(test)
"""
    (journal,) = forked(script)
    assert steps(journal) == 30
    assert names(journal).count("evaluation") == 3
    assert sum(window.batches for window in journal.windows) == 30


EVALUATED = {
    "eval, decorated": "torch.no_grad()(lambda: (model.eval(), model(x), model.train()))()",
    "eval, then train": "model.eval(); torch.no_grad()(lambda: model(x))(); model.train()",
    "by batches": "with torch.no_grad(): [model(x) for x in DataLoader(torch.ones(6, 4))]",
}


@pytest.mark.parametrize("kind", EVALUATED)
def test_the_next_step_is_no_evaluation_in_a_loop_without_a_loader(
    forked: Probed, tmp_path: Path, kind: str
) -> None:
    """Its teacher and the clipping of gradients run without gradients too."""
    script = f"""
import json, time, torch
from torch.utils.data import DataLoader
model, teacher = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
o = torch.optim.SGD(model.parameters(), lr=0.1)
x, ends = torch.ones(2, 4), []
for step in range(9):
    if step % 3 == 2:
        {EVALUATED[kind]}
        ends.append(time.monotonic_ns())
    with torch.no_grad(): wanted = teacher(x)
    (model(x) - wanted).pow(2).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    o.step()
json.dump(ends, open("ends.json", "w"))
"""
    (journal,) = forked(script)
    ends = json.loads((tmp_path / "ends.json").read_text())
    spans = [span.end for span in journal.spans if span.name == "evaluation"]
    assert len(spans) == len(ends) == 3
    for span_end, end in zip(spans, ends, strict=True):
        assert span_end is not None and span_end <= end


ACCUMULATED = {
    "over loaders": "for _ in range(3):\n        for batch in loader(): back(batch)\n    o.step()",
    "over iterators": "for _ in range(3): back(next(iter(loader())))\n    o.step()",
    "in a closure": "o.step(lambda: sum(map(back, loader())))",
}


@pytest.mark.parametrize("kind", ACCUMULATED)
def test_a_loader_over_which_gradients_are_accumulated_is_no_evaluation(
    forked: Probed, kind: str
) -> None:
    """Whatever is read before the next step; a test of the model between steps stays one."""
    script = f"""
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
o = torch.optim.{"LBFGS" if kind == "in a closure" else "SGD"}(model.parameters(), lr=1e-6)
def loader(): return DataLoader(torch.ones(6, 4), batch_size=6 if step % 2 else 2)
def back(batch):
    loss = model(batch).pow(2).sum()
    loss.backward()
    return loss.detach()
for step in range(6):
    o.zero_grad()
    {ACCUMULATED[kind]}
    if step == 2:
        for test in DataLoader(torch.ones(6, 4)): model(test)
"""
    (journal,) = forked(script)
    assert steps(journal) == 6
    assert names(journal).count("evaluation") == 1


def test_a_load_in_the_loop_ends_a_line_of_steps(forked: Probed) -> None:
    script = """
import torch
model = torch.nn.Linear(4, 1)
o = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    model(torch.ones(2, 4)).sum().backward(); o.step()
    if step == 9: torch.save(model.state_dict(), "a.pt")
    if step == 19: model.load_state_dict(torch.load("a.pt"))
"""
    (journal,) = forked(script)
    assert [window.last for window in journal.windows] == [1, 10, 20, 30]
    (load,) = (span for span in journal.spans if span.name == "checkpoint_load")
    (save,) = (span for span in journal.spans if span.name == "checkpoint_save")
    assert load.fields["file"] == save.fields["file"] is not None


FULL_GRAPHS = {
    "a buffer set in forward": "self.buf = self.buf * 0.9 + x.mean()",
    "a frozen teacher": "self.teacher.eval()",
    "a move in forward": "self.teacher.to(x.device)",
    "a module built in forward": "x = torch.nn.ReLU()(x)",
    "gradients off in forward": "with torch.no_grad(): self.teacher(x)",
}


@pytest.mark.parametrize("line", FULL_GRAPHS.values(), ids=list(FULL_GRAPHS))
def test_graphs_are_whole_and_compiled_once(forked: Probed, line: str) -> None:
    """The same graph as without the probe: no break, and no recompile after the first step."""
    script = f"""
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("buf", torch.zeros(()))
        self.teacher, self.layer = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    def forward(self, x):
        {line}
        return self.layer(x).sum()
model = Model()
compiled = torch.compile(model, backend="eager", fullgraph=True)
o = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    compiled(torch.ones(2, 4)).backward(); o.step()
from torch._dynamo.utils import counters
assert counters["stats"]["unique_graphs"] == 1, counters
"""
    (journal,) = forked(script)
    assert steps(journal) == 4


def test_an_exception_of_the_jobs_own_signal_handler_is_the_jobs(forked: Probed) -> None:
    script = """
import signal, torch
class Alarm(Exception): pass
def ring(*_): raise Alarm
signal.signal(signal.SIGALRM, ring)
torch.save(torch.zeros(1), "x.pt")
caught = 0
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while True: torch.load("x.pt")
    except Alarm: caught += 1
assert caught == 300
torch.nn.Linear(2, 2)
"""
    forked(script)


def test_files_of_the_job_stay_its_own(forked: Probed, tmp_path: Path) -> None:
    """A job that closes every descriptor gets ours again, for a file of its own."""
    script = TRAIN + (
        "import os\ntorch.nn.Linear(2, 2)\nos.closerange(3, 64)\n"
        "mine = [open(f'mine{i}', 'w') for i in range(8)]\ntrain()\n"
    )
    (journal,) = forked(script)
    assert steps(journal) == 5
    assert all(not (tmp_path / f"mine{i}").read_text() for i in range(8))


def test_odd_loaders_load(probed: Probed, tmp_path: Path) -> None:
    """Many modules from one zip share one loader; some loaders take no new attribute."""
    import zipfile

    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        archive.writestr("slow.py", "import time\ntime.sleep(0.05)\n")
        for index in range(400):
            archive.writestr(f"m{index}.py", "x = 1\n")
    script = (
        "import sys, importlib, importlib.util, importlib.machinery\n"
        "sys.path.insert(0, 'many.zip')\n"
        "import slow\n"
        "for i in range(400): assert importlib.import_module(f'm{i}').x == 1\n"
        "assert type(sys.modules['m3'].__spec__.loader).__name__ == 'zipimporter'\n"
        "class Slotted:\n"
        "    __slots__ = ()\n"
        "    def create_module(self, spec): return None\n"
        "    def exec_module(self, module): module.x = 2\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'slotted':\n"
        "            return importlib.machinery.ModuleSpec(name, Slotted())\n"
        "sys.meta_path.append(Finder())\n"
        "import slotted\n"
        "assert slotted.x == 2 and type(slotted.__loader__) is Slotted\n"
        "assert importlib.util.find_spec('torch') is not None\n"
        "import headway\n"
        "headway.step()\n"
    )
    (journal,) = probed(script)
    assert steps(journal) == 1
    assert "slow" in [s.fields["module"] for s in journal.spans if s.name == "import"]


def test_steps_of_a_thread_that_python_does_not_know_are_the_loops(forked: Probed) -> None:
    """As autograd's, which make the steps of optimizers in backward hooks on a GPU."""
    script = """
import _thread, time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        time.sleep(0.15)
        return index
w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)
o = torch.optim.SGD([w], lr=0.1)
done = _thread.allocate_lock()
def step():
    o.step()
    done.release()
for batch in DataLoader(Slow(), batch_size=1):
    done.acquire()
    _thread.start_new_thread(step, ())
    done.acquire(); done.release()
"""
    (journal,) = forked(script)
    assert steps(journal) == 4
    assert not list(journal.named("stepping"))
    waits = [span for span in journal.spans if span.name == "data_wait"]
    assert len(waits) == 4
    assert {span.thread for span in waits} == {0}
