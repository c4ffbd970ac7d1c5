"""Whole jobs from a forkserver: torchrun with its workers, kills, modules that are left out."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.launch import processes
from headway.launch.child_process import ChildProcess
from headway.launch.warm.booster import WarmStart
from headway.launch.warm.preload_plan import WarmState
from tests.integration.test_warm import Driver, environment, tell_recipe
from tests.support import Golden, wait_until

PYTHON = sys.executable
TORCHRUN = str(Path(PYTHON).with_name("torchrun"))
pytestmark = pytest.mark.timeout(240)

TRAIN = """
import hashlib, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = DDP(model)
step = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters())
torch.manual_seed(int(os.environ.get("RANK", 0)))
for _ in range(5):
    step(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
with open(f"{sys.argv[1]}.{os.environ.get('RANK', 0)}", "w") as out:
    out.write(hashlib.sha256(weights).hexdigest())
while os.path.exists(sys.argv[1] + ".wait"):
    import time
    time.sleep(0.01)
if dist.is_initialized():
    dist.destroy_process_group()
"""


class Job:
    """One command in one run folder, started cold or warm."""

    def __init__(self, folder: Path, *command: str, **env: str) -> None:
        self.folder = folder
        self.command = list(command)
        self.more = env
        self.notes: list[tuple[str, str]] = []  # text and code
        self.warm = WarmStart(folder, self.command, self.env("first"), self.note)
        self.log = open(folder / "log", "ab")  # noqa: SIM115

    def note(self, text: str, code: str) -> None:
        self.notes.append((text, code))

    def codes(self) -> list[str]:
        return [code for _, code in self.notes]

    def env(self, launch: str) -> dict[str, str]:
        shared = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return {**environment(self.folder, **shared, **self.more), "HEADWAY_LAUNCH": launch}

    def cold(self, launch: str = "cold") -> None:
        env = self.env(launch)
        completed = subprocess.run(self.command, env=env, stdout=self.log, stderr=self.log)
        assert completed.returncode == 0, (self.folder / "log").read_text()[-3000:]

    def prepare(self) -> None:
        self.warm.prepare()
        self.warm.prepare()
        assert self.warm.ready(100), self.notes

    def spawn(self, launch: str = "warm", **env: str) -> ChildProcess | None:
        output = {"stdout": self.log.fileno(), "stderr": self.log.fileno()}
        full_env = {**self.env(launch), **env}
        return self.warm.spawn(
            self.command, full_env, own_group=True, pdeathsig=signal.SIGTERM, **output
        )

    def heads(self, launch: str) -> list[dict[str, Any]]:
        return [lines[0] for lines in self.journals(launch)]

    def journals(self, launch: str) -> list[list[dict[str, Any]]]:
        result = []
        for path in (self.folder / "journal").glob("*.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            if lines[0]["launch"] == launch:
                result.append(lines)
        return result


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(*command: str, **env: str) -> Job:
        (tmp_path / "journal").mkdir(exist_ok=True)
        jobs.append(Job(tmp_path, *command, **env))
        return jobs[-1]

    yield make
    for each in jobs:
        each.warm.close()
        each.log.close()


def ended(process: ChildProcess | None, seconds: float = 60) -> int:
    assert process is not None
    wait_until(lambda: process.poll() is not None, seconds)
    assert process.returncode is not None
    return process.returncode


def gone(pids: set[int]) -> bool:
    table = processes.process_table()
    return not any(pid in table and table[pid].state != "Z" for pid in pids)


def below(pid: int) -> set[int]:
    return processes.descendants(pid, processes.process_table())


def script(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text)
    return str(path)


@pytest.mark.slow
def test_torchrun_and_its_workers(job: Callable[..., Job], tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [TORCHRUN, "--standalone", "--nproc-per-node", "2", script(tmp_path, TRAIN), str(out)]
    two = job(*words)
    two.cold()
    expected = [Path(f"{out}.{rank}").read_text() for rank in range(2)]
    assert all("modules" in line for line in flat(two, "cold", "imported"))
    two.prepare()
    agent = two.spawn()
    assert ended(agent) == 0
    assert [Path(f"{out}.{rank}").read_text() for rank in range(2)] == expected
    heads = two.heads("warm")
    assert len(heads) == 3 and all(head["warm"] for head in heads)
    parents = {head["ppid"] for head in heads if head["rank"] is not None}
    assert agent is not None and parents == {agent.pid}
    assert two.notes == [] and flat(two, "warm", "note") == []
    # Nothing slow remains to be imported.
    slow = [line for line in flat(two, "warm", "span", "open") if "import" in line["name"]]
    assert all(line.get("what") == "compile" for line in slow), slow


@pytest.mark.slow
def test_the_first_start_of_a_run_imports_once(job: Callable[..., Job], tmp_path: Path) -> None:
    """Only torchrun is known about the job; afterwards its forkserver is replaced."""
    out = tmp_path / "out"
    words = ["--standalone", "--nproc-per-node", "2", script(tmp_path, TRAIN), str(out)]
    two = job(TORCHRUN, *words)
    two.warm.prepare()
    assert two.warm.wait_limit_s() and two.warm.ready(100), two.notes
    assert two.warm.state.cold and not two.warm.state.seconds
    assert ended(two.spawn("first")) == 0
    first = [Path(f"{out}.{rank}").read_text() for rank in range(2)]
    assert len(two.heads("first")) == 3 and all(head["warm"] for head in two.heads("first"))
    basic = two.warm.compatibility
    two.warm.prepare()
    assert two.warm.compatibility is None and two.warm.ready(100), two.notes
    assert (
        basic
        and two.warm.compatibility
        and set(basic.modules) < set(two.warm.compatibility.modules)
    )
    assert ended(two.spawn("second")) == 0 and two.notes == []
    slow = [line for line in flat(two, "second", "span", "open") if "import" in line["name"]]
    assert all(line.get("what") == "compile" for line in slow), slow
    two.cold()
    assert [Path(f"{out}.{rank}").read_text() for rank in range(2)] == first


def flat(job: Job, launch: str, *events: str) -> list[dict[str, Any]]:
    return [line for lines in job.journals(launch) for line in lines if line["ev"] in events]


@pytest.mark.slow
def test_a_restart_by_torchrun_itself(job: Callable[..., Job], tmp_path: Path) -> None:
    text = TRAIN + "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(3)\n"
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    again = job(TORCHRUN, *words, script(tmp_path, text), str(tmp_path / "out"))
    again.cold()
    again.prepare()
    assert ended(again.spawn()) == 0
    ranks = [head for head in again.heads("warm") if head["rank"] is not None]
    assert sorted(head["restart"] for head in ranks) == [0, 0, 1, 1]
    assert all(head["warm"] for head in ranks)


@pytest.mark.slow
def test_a_killed_agent_takes_its_workers_along(job: Callable[..., Job], tmp_path: Path) -> None:
    out = tmp_path / "out"
    two = job(TORCHRUN, "--standalone", "--nproc-per-node", "2", script(tmp_path, TRAIN), str(out))
    two.cold()
    two.prepare()
    Path(f"{out}.wait").touch()
    for rank in range(2):
        Path(f"{out}.{rank}").unlink()
    agent = two.spawn()
    wait_until(lambda: all(Path(f"{out}.{rank}").exists() for rank in range(2)))
    assert agent is not None
    family = {*below(agent.pid), agent.pid}
    assert len(family) >= 4  # the child forkserver and two ranks
    os.kill(agent.pid, signal.SIGKILL)
    assert ended(agent) == -signal.SIGKILL
    wait_until(lambda: gone(family), 10)


@pytest.mark.slow
def test_a_killed_launcher_takes_everything_along(tmp_path: Path) -> None:
    out, wait = tmp_path / "out", tmp_path / "out.wait"
    wait.touch()
    command = [PYTHON, script(tmp_path, TRAIN), str(out)]
    env = environment(tmp_path)
    tell_recipe(tmp_path, ["torch"])
    driver = Driver(tmp_path, command, env)
    assert driver.ask(how="prepare")["ready"]
    driver._send({"how": "warm", "command": command, "env": env})
    wait_until(Path(f"{out}.0").exists)
    family = below(driver.process.pid)
    assert len(family) >= 4  # the forkserver, an idle child, the job and its child forkserver
    driver.process.kill()
    driver.close()
    wait_until(lambda: gone(family), 20)


@pytest.fixture
def simple(job: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    """A program whose forkserver has imported little."""

    def make(text: str, *words: str, modules: tuple[str, ...] = ("numpy",), **env: str) -> Job:
        created = job(PYTHON, script(tmp_path, text), *words, **env)
        tell_recipe(tmp_path, list(modules))
        created.prepare()
        return created

    return make


@pytest.mark.slow
def test_the_forkserver_has_one_thread_and_ends_with_its_idle_children(
    simple: Callable[..., Job],
) -> None:
    started = simple("pass", modules=("numpy", "torch"))
    forkserver = next(iter(started.warm.pids()))
    waiting = wait_until(lambda: len(children := below(forkserver)) >= 3 and children)
    for pid in {forkserver, *waiting}:
        assert len(os.listdir(f"/proc/{pid}/task")) == 1
        assert not [fd for fd in opened(pid) if fd.startswith("/dev/nvidia")]
    started.warm.close()
    wait_until(lambda: gone({forkserver, *waiting}), 10)


def opened(pid: int) -> list[str]:
    files = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            files.append(os.readlink(fd))
    return files


def test_a_killed_forkserver_does_not_affect_the_job(
    simple: Callable[..., Job], tmp_path: Path
) -> None:
    started = simple("import time\ntime.sleep(1.5)\nprint('survived', flush=True)")
    running = started.spawn()
    (forkserver,) = started.warm.pids()
    os.kill(forkserver, signal.SIGKILL)
    wait_until(lambda: gone({forkserver}))
    assert started.spawn() is None
    assert started.codes() == ["zygote-gone"]
    assert ended(running) == 0
    assert "survived" in (tmp_path / "log").read_text()
    started.prepare()  # a new one is used for the next start
    assert ended(started.spawn()) == 0


RANDOM = """
import random, secrets, tempfile, uuid
import multiprocessing as mp
import numpy as np

print(random.random(), np.random.rand(), secrets.token_hex(4), uuid.uuid4(), uuid.uuid1(),
      next(tempfile._get_candidate_names()), mp.current_process().authkey.hex(),
      np.random.default_rng().random(), sep="\\n")
"""


def test_two_children_are_not_twins(simple: Callable[..., Job], tmp_path: Path) -> None:
    started = simple(
        RANDOM, modules=("numpy.random", "uuid", "tempfile", "secrets", "multiprocessing")
    )
    assert [ended(started.spawn()), ended(started.spawn())] == [0, 0]
    lines = (tmp_path / "log").read_text().split()
    assert len(lines) == 16 and len(set(lines)) == 16


THREADS = """
import ctypes, re, sys
import numpy, torch
path = re.search(r"/\\S*openblas\\S*", open("/proc/self/maps").read())
names = [f"{p}openblas_get_num_threads{s}" for p in ("scipy_", "") for s in ("64_", "", "_64_")]
library = ctypes.CDLL(path[0]) if path else None
found = [getattr(library, name)() for name in names if hasattr(library, name)]
print(torch.get_num_threads(), torch.get_num_interop_threads(), found)
print(re.sub(r"Environment.*", "", torch.__config__.parallel_info(), flags=re.S))
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["", "1", "3"])
def test_thread_counts_are_those_of_a_cold_process(
    simple: Callable[..., Job], tmp_path: Path, threads: str
) -> None:
    started = simple(THREADS, modules=("numpy", "torch"))
    env = {"OMP_NUM_THREADS": threads} if threads else {}
    completed = subprocess.run(
        started.command,
        env={**started.env("cold"), **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended(started.spawn(**env)) == 0
    assert (tmp_path / "log").read_text() == completed.stdout


KEY = """
import hashlib, pickle, sys
import torch, torch._inductor.codecache
from torch._subclasses.fake_tensor import FakeTensorMode

print(pickle.dumps(torch.contiguous_format))
graph = torch.fx.symbolic_trace(torch.nn.Identity())
with FakeTensorMode() as mode:
    tensor = mode.from_tensor(torch.empty(128, 256))
pickler = torch._inductor.codecache.FxGraphCachePickler(graph)
print(hashlib.sha256(pickler.dumps(tensor)).hexdigest())
"""


@pytest.mark.slow
def test_keys_of_the_compile_cache_are_those_of_a_run_without_us(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    started = job(PYTHON, script(tmp_path, KEY), RANK="0", WORLD_SIZE="1")
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("HEADWAY", "PYTHONPATH"))}
    expected = subprocess.check_output(started.command, env=bare, text=True)
    started.cold()
    started.prepare()
    assert ended(started.spawn()) == 0
    assert (tmp_path / "log").read_text() == expected * 2


PACKAGES = {
    "harmless": "VALUE = 1",
    "threaded": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    "keeps_a_file": "import os\nfile = open(os.devnull)",
    "has_a_child": "import subprocess\nchild = subprocess.Popen(['sleep', '99'])",
    "asks_who_it_is": "import os\nRANK = int(os.environ.get('RANK', 0))",
    "copies_all": "import os\nENV = dict(os.environ)",
    "leaves": "import os\nos._exit(3)",
    "raises": "raise ImportError('no')",
    "brings_threads": "import threaded",
}


def test_what_a_fork_would_break_is_left_out(
    job: Callable[..., Job], tmp_path: Path, golden: Golden
) -> None:
    site = tmp_path / "site-packages"
    for name, text in PACKAGES.items():
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(text + "\n")
    text = "import sys\nprint(sorted(set(sys.modules) & set(sys.argv[1:])))"
    boot = environment(tmp_path)["PYTHONPATH"]
    started = job(PYTHON, script(tmp_path, text), *PACKAGES, PYTHONPATH=f"{boot}:{site}")
    tell_recipe(tmp_path, list(PACKAGES))
    journal = tmp_path / "journal" / "before-1-1.jsonl"
    journal.write_text(journal.read_text().replace('"wall":1', '"wall":1,"local_rank":0'))
    started.prepare()
    assert ended(started.spawn()) == 0
    assert (tmp_path / "log").read_text() == "['harmless']\n"
    memory = WarmState.read(tmp_path)
    assert memory.good == ["harmless"]
    golden("left_out.txt", "".join(f"{k}: {v}\n" for k, v in sorted(memory.left_out.items())))


@pytest.mark.slow
def test_a_variable_that_was_read_at_import(simple: Callable[..., Job]) -> None:
    started = simple("pass", modules=("torch._dynamo.config",))
    assert started.spawn(TORCH_LOGS="+dynamo") is None
    assert started.codes() == ["environment-differs"]
    assert "TORCH_LOGS" in started.notes[0][0]
    assert ended(started.spawn(SOMETHING_ELSE="1")) == 0


@pytest.mark.slow
def test_a_script_that_sets_what_is_read_at_import(job: Callable[..., Job], tmp_path: Path) -> None:
    """The forkserver imports with the same setting; a script that was edited is started cold."""
    text = (
        "import os\nos.environ['TORCH_COMPILE_DISABLE'] = '1'\nimport torch._dynamo.config as c\n"
        "print(c.disable, 'OMP_NUM_THREADS' in os.environ)\n"
    )
    started = job(PYTHON, script(tmp_path, text), RANK="0", WORLD_SIZE="1")
    started.cold()
    started.prepare()
    child = started.spawn()
    assert started.notes == [] and ended(child) == 0
    assert (tmp_path / "log").read_text() == "True False\n" * 2
    script(
        tmp_path, text.replace("import torch", "os.environ['OMP_NUM_THREADS'] = '1'\nimport torch")
    )
    assert started.spawn() is None
    assert started.codes() == ["program-sets-variable"]
    assert "OMP_NUM_THREADS" in started.notes[0][0]


def test_a_file_that_hides_an_installed_module(simple: Callable[..., Job], tmp_path: Path) -> None:
    started = simple("pass")
    (tmp_path / "numpy.py").write_text("")
    assert started.spawn() is None
    assert started.codes() == ["module-shadowed"]
    assert "numpy.py" in started.notes[0][0]


@pytest.mark.slow
def test_commands_that_are_no_python(job: Callable[..., Job], tmp_path: Path) -> None:
    started = job("bash", "-c", "true")
    tell_recipe(tmp_path, ["numpy"])
    started.warm.prepare()
    started.warm.prepare()
    assert started.spawn() is None
    assert started.codes() == ["not-a-python-program"]


def test_an_attempt_that_breaks_on_it(simple: Callable[..., Job], tmp_path: Path) -> None:
    started = simple("pass")
    assert ended(started.spawn()) == 0
    started.warm.ended_before_step()
    assert started.spawn() is None and started.warm.pids() == set()
    assert started.codes() == ["warm-starts-off"]
    later = WarmStart(tmp_path, started.command, started.env("later"), started.note)
    later.prepare()
    assert not later.ready() and started.codes() == ["warm-starts-off", "warm-starts-off"]


@pytest.mark.slow
def test_an_attempt_that_breaks_after_others_have_worked(simple: Callable[..., Job]) -> None:
    started = simple("pass")
    assert ended(started.spawn()) == 0
    started.warm.stepped()
    started.warm.ended_before_step()
    assert started.spawn() is None  # once
    assert ended(started.spawn()) == 0


@pytest.mark.slow
def test_a_console_script(job: Callable[..., Job], tmp_path: Path) -> None:
    path = tmp_path / "tool"
    path.write_text(f"#!{PYTHON} -u\nimport sys\nprint(sys.orig_argv, sys.argv, sys.path[0])\n"
                    "print(open('/proc/self/comm').read())\n")  # fmt: skip
    path.chmod(0o755)
    started = job(str(path), "x")
    tell_recipe(tmp_path, ["numpy"])
    started.cold()
    started.prepare()
    assert ended(started.spawn()) == 0
    first, second = (tmp_path / "log").read_text().strip().split("\n\n")
    assert first == second


@pytest.mark.slow
def test_a_fault_of_ours_starts_the_real_thing(job: Callable[..., Job], tmp_path: Path) -> None:
    """In the same process: the pid that the launcher knows becomes a cold start."""
    package = tmp_path / "site-packages" / "saboteur"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import headway.launch.warm.forkserver as z\nz.become_command = None"
    )
    path = f"{environment(tmp_path)['PYTHONPATH']}:{package.parent}"
    text = "import os, sys\nprint('saboteur' in sys.modules, os.getpid(), os.getpgrp())"
    started = job(PYTHON, script(tmp_path, text), PYTHONPATH=path, HEADWAY_STRICT="")
    tell_recipe(tmp_path, ["saboteur"])
    started.prepare()
    child = started.spawn()
    assert child is not None and ended(child) == 0
    assert (tmp_path / "log").read_text() == f"False {child.pid} {child.pid}\n"
