"""Run folders on a fake clock: every kind of event, and every way in which a run ends.

Recorded journals of real jobs lie in tests/journals; these runs carry what a real job seldom has
all at once, and whole seconds, so that sums over them are exact on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.journal import run_files as notes
from headway.testing import FakeJournal, FakeRun, Host
from tests.golden.cases import command

DAY = 86400.0
MS = 1_000_000
GPU = {"gpu": "NVIDIA H200", "driver": "580.65", "triton": "3.6.0", "torch": "2.13.0"}
NODES = (Host("node0", "boot-0"), Host("node1", "boot-1", monotonic=9000.0))
VERSIONS = {"headway": "0.1.0", "python": "3.11.7", "torch": "2.13.0"}
WHERE = "/job/model.py:10 forward"
ADVICE = {
    "interval_s": 60.0,
    "recommended_s": 110.0,
    "wasted_percent": 0.5,
    "recommended_percent": 0.25,
    "failures_per_hour": 0.125,
    "failures_low": 0.0625,
    "failures_high": 0.25,
}


def everything(at: float = 0.0) -> FakeRun:
    """Two nodes and four attempts: killed, preempted, hung, and completed."""
    job = FakeRun()
    _killed(job, at)
    _preempted(job, at + 200)
    _hung(job, at + 400)
    _completed(job, at + 600)
    return job


def _killed(job: FakeRun, at: float) -> None:
    launchers = _launchers(job, at, 0, allocated=at - 8, queued=at - 20)
    main = launchers[0]
    planned = {"kind": "kill", "planned": "kill rank 1 at step 60"}
    main.event("plan", at + 0.5, seed=7, faults=[planned])
    main.event("cache", at + 1, end=main.at(at + 2), what="load", level="exact", why="",
               files=34, bytes=800_000, cold_s=30.0)  # fmt: skip
    ranks = _ranks(job, at + 2, 0)
    for number, rank in enumerate(ranks):
        _start(rank, at + 2, cached=True)
        _tuned(rank, at + 20)
        rank.train(1, 10, at + 30, 1.0, wait=0.25)
        rank.span("compile", at + 40, at + 42, trigger="DYNAMO", compile_id="0/1", where=WHERE,
                  step=10, reason="0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5",
                  reasons=["0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5"],
                  seen={"x": [5, 3]}, caller="/job/train.py:40 main",
                  lattice=[["L['x']", ["?", 3]]])  # fmt: skip
        rank.event("recompile_limit", at + 42, limit="recompile_limit", where=WHERE, step=10,
                   reason="0/1: tensor 'x' size mismatch at index 0. expected 5, actual 6",
                   reasons=[], seen={}, caller="/job/train.py:40 main")  # fmt: skip
        rank.train(11, 20, at + 42, 1.0)
        _saves(rank, at + 62, 30, number)
        rank.span("data_wait", at + 64, at + 70)
        rank.span("evaluation", at + 70, at + 74)
        rank.train(31, 30, at + 74, 1.0)
        _said(rank, at + 80)
    ranks[1].event("fault", at + 104, fault=1, key="k0", kind="kill", who="rank 1", step=60,
                   planned=planned["planned"])  # fmt: skip
    ranks[1].event("error", at + 104, type="RuntimeError", message="CUDA error", where="a.py:1")
    launchers[1].event("death", at + 106, pid=ranks[1].lines[0]["pid"], code=-9)
    for launcher in launchers:
        launcher.exit(at + 110, code=1)
    main.event("verdict", at + 110, category="gpu_hardware", owner="infra", retry="swap", rank=1,
               node="node1", evidence="rank 1 ended by SIGKILL", confidence="high",
               fingerprint="f" * 16)  # fmt: skip
    main.event("decision", at + 110, action="restart", why="it may help", wait_s=2.0, attempt=0)


def _preempted(job: FakeRun, at: float) -> None:
    launchers = _launchers(job, at, 1)
    ranks = _ranks(job, at + 2, 1, warm=True)
    launchers[0].event("price", at + 3, accelerators=2, since=launchers[0].at(at), saved=False,
                       save_s=None, recover_s=9.0, preemptions=0, lost_s=6.0)  # fmt: skip
    for rank in ranks:
        rank.event("progress", at + 4, step=30)
        rank.span("checkpoint_load", at + 4, at + 8, what="load", path="/ck/30", step=30)
        rank.event("restored", at + 8, step=30, level="memory", source="memory", seconds=4.0)
        rank.span("compile_cache", at + 8, at + 9, what="load")
        rank.train(1, 20, at + 12, 1.0)
        rank.span("checkpoint_save", at + 32, at + 33, step=20, level="disk", store="/ck")
        rank.event("checkpoint", at + 35, step=50, level="disk", blocked_s=1.0, slower_s=0.5,
                   durable_s=2.0, bytes=4096)  # fmt: skip
    launchers[0].event("signal", at + 33, signal=15, **{"from": 1})
    for rank in ranks:
        rank.event("preempted", at + 34, step=50, saved=True, left_s=20.0)
        rank.exit(at + 36)
    launchers[0].event("preempted", at + 36, step=50)
    for launcher in launchers:
        launcher.exit(at + 37, code=0)


def _hung(job: FakeRun, at: float) -> None:
    launchers = _launchers(job, at, 2)
    ranks = _ranks(job, at + 2, 2)
    for rank in ranks:
        rank.event("progress", at + 4, step=50)
        rank.train(1, 10, at + 10, 1.0)
        rank.event("alive", at + 30)
    main = launchers[0]
    main.event("hang", at + 40, rank=1, text="rank 1 is behind", stacks="stacks/0")
    main.event("death", at + 41, pid=ranks[0].lines[0]["pid"], code=-9)
    for launcher in launchers:
        launcher.exit(at + 42, code=1)
    main.event("verdict", at + 42, category="hang", owner="ambiguous", retry="bounded", rank=1,
               node="node1", evidence="no step for 20 s", confidence="low",
               fingerprint="")  # fmt: skip
    main.event("decision", at + 42, action="restart", why="once more", wait_s=1.0, attempt=2)


def _completed(job: FakeRun, at: float) -> None:
    launchers = _launchers(job, at, 3)
    main = launchers[0]
    main.event("cache", at + 1, end=main.at(at + 2), what="load", level="miss",
               why="torch is 2.13.0 here and was 2.12.0", files=0, bytes=0, cold_s=0.0)  # fmt: skip
    ranks = _ranks(job, at + 2, 3)
    for rank in ranks:
        rank.event("progress", at + 4, step=50)
        _start(rank, at + 4, cached=False)
        rank.train(1, 40, at + 30, 1.0)
        _behind(rank, at + 40)
        rank.event("checkpoint", at + 60, step=70, level="disk", blocked_s=0.5, slower_s=0.5,
                   durable_s=2.0, bytes=10, error="disk full")  # fmt: skip
        rank.event("drain", at + 70, ns=500 * MS)
        rank.span("publish", at + 71, at + 73, what="push weights")
        rank.event("lost", at + 74, lines=3, why="No space left on device")
        rank.event("note", at + 74, hook="data", text="this hook was switched off")
        rank.event("imported", at + 74, modules=["torch", ".nn"], set={}, main="/job/train.py",
                   file="1:2:3")  # fmt: skip
        rank.exit(at + 75)
    agent = job.process(at + 1, rank=None, world=None, launch="L3", host=NODES[0], pid=90)
    agent.event("agent", at + 2, name="rdzv", state="SUCCEEDED", agent_restarts=0, duration_ms=5,
                global_rank=0, group_rank=0)  # fmt: skip
    agent.event("worker_failed", at + 74, pid=131, local_rank=0, code=1, message="")
    agent.exit(at + 76)
    main.event("cache", at + 76, end=main.at(at + 77), what="save", files=40, bytes=10, cold_s=14.0)
    for launcher in launchers:
        launcher.exit(at + 78, code=0)


def _launchers(job: FakeRun, at: float, index: int, **clock: float) -> list[FakeJournal]:
    """One on each node; clock times are those of the scheduler."""
    head: dict[str, Any] = {"index": index, "scheduler_job": "4711", "requeues": 0}
    head |= {name: round((1_790_000_000 + t) * 1e9) for name, t in clock.items()}
    found = [
        job.launcher(at, launch=f"L{index}", host=host, spawn=at + 1, **head) for host in NODES
    ]
    booster = {"job": "train-0a1b2c3d", "on": ["restarts", "warm", "compile_cache", "async_save"]}
    off = {"learn": "nothing was recorded yet", "publish": "there is no publish.toml"}
    kind = "torch 2.13.0, no GPU, 2 ranks"
    known = {kind: {"compile_s": 30.0, "save_s": 2.0, "recover_s": 60.0}}
    found[0].event("auto", at + 0.5, **booster, off=off, gpus=[], learned={}, known=known)
    return found


def _ranks(job: FakeRun, at: float, index: int, **head: Any) -> list[FakeJournal]:
    return [
        job.process(at, rank=number, world=2, launch=f"L{index}", host=host,
                    pid=100 + 10 * index + number, restart=0, torch="2.13.0", **head)
        for number, host in enumerate(NODES)
    ]  # fmt: skip


def _start(rank: FakeJournal, at: float, *, cached: bool) -> None:
    """The stages up to the first step, 26 s."""
    rank.span("import", at, at + 3, module="torch")
    rank.span("device_init", at + 3, at + 4, what="cuda")
    rank.span("process_group_init", at + 4, at + 6, what="init_process_group")
    rank.span("train_module_creation", at + 6, at + 9, what="build")
    rank.span("preproc_creation", at + 6, at + 8, th=1)
    rank.span("init_plugins", at + 9, at + 10)
    rank.span("data_iter", at + 10, at + 11)
    rank.span("data_wait", at + 11, at + 13)
    outer = rank.open("compile", at + 13, trigger="DYNAMO", compile_id="0/0")
    parts = {"dynamo": 9_000_000, "aot_autograd": 8_000_000, "inductor": 4_000_000, "triton": MS}
    rank.close(outer, at + 22)
    hits = [2, 0] if cached else [0, 2]
    rank.event("detail", at + 22, id=outer, where=WHERE, step=0, parts_us=parts, torch="2.13.0",
               cache={"fx": hits, "aot": [1, 1]}, cached=cached, bypassed=["a custom op"],
               marked={"dynamic_sources": "L['y']"}, lattice=[["L['x']", [4, 3]]])  # fmt: skip
    rank.span("compile_turn", at + 22, at + 23, what="wait")
    rank.span("compile_autotune", at + 23, at + 24)
    rank.span("pre_train", at + 24, at + 26)
    rows = [
        ["process_group_init", "main", [], rank.at(at + 4), rank.at(at + 6)],
        ["preproc_creation", "thread", [], rank.at(at + 6), rank.at(at + 8)],
        ["train_module_creation", "main", ["process_group_init"], rank.at(at + 6), rank.at(at + 9)],
    ]
    rank.event("stages", at + 26, stages=rows, overlap=True)
    group = {"where": "/job/train.py:12 setup", "what": "new_group", "desc": "mesh_tp",
             "backend": "gloo", "size": 2, "calls": 4, "ns": 500 * MS, "made": 1, "used": 0,
             "unused": 1, "again": 0, "other_ns": 250 * MS, "unused_ns": 125 * MS,
             "again_ns": 0}  # fmt: skip
    call = {"where": "/job/tables.py:40 share", "what": "all_gather_object", "times": 200,
            "ns": 1500 * MS, "bytes": 9000}  # fmt: skip
    rank.event("communication", at + 26, at="exit", groups=[group], calls=[call], more=0)


def _tuned(rank: FakeJournal, at: float) -> None:
    """One kernel with three configs, two of its keys."""
    blocks = [{"BLOCK": size, "num_warps": 4, "num_stages": 3, "num_ctas": 1} for size in (64, 128)]
    rank.event("autotune_kernel", at, kernel="k1", kind="triton", first=0, name="scale",
               where="/job/scale.py:20", names=["n"], configs=blocks, **GPU)  # fmt: skip
    for key, times in ((1024, [0.5, 0.25]), (4096, [1.0, 0.5])):
        rank.event("autotune", at + 1, kernel="k1", kind="triton", key=[key], rest="", of=2,
                   c=[0, 1], ms=times, s=[0.5, 0.5], seconds=1.0)  # fmt: skip


def _saves(rank: FakeJournal, at: float, step: int, number: int) -> None:
    """By a Checkpointer, at both levels."""
    rank.span("checkpoint_save", at, at + 1, step=step, level="disk", store="/ck", path="/ck/30")
    rank.event("checkpoint", at + 3, step=step, level="disk", blocked_s=1.0, slower_s=0.5,
               durable_s=2.0, bytes=4096, **ADVICE)  # fmt: skip
    if not number:
        rank.span("checkpoint_save", at + 1, at + 1.5, step=step, level="memory", store="/ck")
        rank.event("checkpoint", at + 2, step=step, level="memory", blocked_s=0.5, slower_s=0.0,
                   durable_s=0.5, **ADVICE)  # fmt: skip


def _said(rank: FakeJournal, at: float) -> None:
    rank.event("saving", at, path="/out/model.pt", step=40)
    rank.span("blocked", at, at + 1, what="push weights")


def _behind(rank: FakeJournal, at: float) -> None:
    """What `--async-save` did."""
    rank.event("behind", at, path="/out/a.pt", step=10, end=rank.at(at + 2), bytes=512,
               blocked=125 * MS)  # fmt: skip
    rank.event("behind", at + 3, path="/out/b.pt", step=11, end=rank.at(at + 4), bytes=512,
               blocked=125 * MS, error="OSError: disk full")  # fmt: skip
    rank.event("behind", at + 5, path="/out/c.pt", why="an open file")
    rank.event("behind", at + 6, end=rank.at(at + 7), waited="os.listdir")


def failed(at: float = 0.0) -> FakeRun:
    """An exception of the user's code, on the second day."""
    job = FakeRun()
    launcher = job.launcher(at, spawn=at + 1)
    rank = job.process(at + 1)
    rank.span("train_module_creation", at + 2, at + 12)
    rank.train(1, 50, at + 20, 2.0)
    rank.event("error", at + 120, type="ValueError", message="bad label", where="/job/train.py:7")
    launcher.event("death", at + 121, pid=rank.lines[0]["pid"], code=1)
    launcher.exit(at + 122, code=1)
    launcher.event("verdict", at + 122, category="user_code", owner="user", retry="no", rank=0,
                   node="node0", evidence="ValueError: bad label", confidence="high",
                   fingerprint="a" * 16)  # fmt: skip
    launcher.event("decision", at + 122, action="stop", why="it would fail again", wait_s=0.0,
                   attempt=0)  # fmt: skip
    return job


def preempted(at: float = 0.0) -> FakeRun:
    """Told to go, and not back yet; over midnight."""
    job = FakeRun()
    launcher = job.launcher(at, spawn=at + 1)
    rank = job.process(at + 1)
    rank.span("train_module_creation", at + 2, at + 12)
    rank.train(1, 70, at + 20, 100.0)
    launcher.event("signal", at + 7021, signal=15, **{"from": 1})
    rank.exit(at + 7024)
    launcher.exit(at + 7025, code=143)
    return job


def publishing(at: float = 0.0) -> FakeRun:
    """The publish of a checkpoint, a run of its own."""
    job = FakeRun()
    launcher = job.launcher(at, spawn=at + 1)
    process = job.process(at + 1, rank=None, world=None)
    process.span("import", at + 1, at + 4, module="torch")
    process.span("publish", at + 4, at + 14, what="publish")
    process.event("published", at + 14, anchor="/ck/step-0000000050", store="/snapshots",
                  snapshot="00000001-" + "0" * 32, error="", seconds=10.0, run="everything",
                  ledger="/runs/everything")  # fmt: skip
    process.exit(at + 15)
    launcher.exit(at + 16, code=0)
    return job


def running(at: float = 0.0) -> FakeRun:
    """No end was written yet."""
    job = FakeRun()
    launcher = job.launcher(at, spawn=at + 1)
    rank = job.process(at + 1)
    rank.span("train_module_creation", at + 2, at + 12)
    rank.train(1, 100, at + 20, 1.0)
    launcher.event("price", at + 110, accelerators=1, since=launcher.at(at + 1), saved=False,
                   save_s=None, recover_s=19.0, preemptions=0, lost_s=128.0)  # fmt: skip
    return job


def write(job: FakeRun, folder: Path, name: str, **facts: Any) -> Path:
    """The folder of a run, with what its launcher wrote beside the journals."""
    job.write(folder)
    told = {"schema": 1, "run": name, "identity": None, "command": ["python", "train.py"],
            "url": None, "created": 1_790_000_000.0, "cwd": "job", "host": "node0",
            "user": "user", "versions": VERSIONS, "labels": {}, **facts}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(told, indent=1) + "\n")
    return folder


def _everything(files: Path) -> None:
    folder = write(everything(), files / "run", "everything", labels={"team": "ads"})
    note = {"run": "publishing", "folder": "/runs/publishing", "store": "/snapshots",
            "anchor": "/ck/step-0000000050", "begun": 1_790_000_678.0,
            "log": "/runs/everything/publish.log", "seconds": 10.0, "error": "",
            "snapshot": "00000001-" + "0" * 32, "ended": 1.790000690e9}  # fmt: skip
    notes.write_publish_note(folder, note)
    (folder / "ledger.json").write_text(command("report", str(folder), "--json")[1])


def _of(make: Callable[[], FakeRun], name: str) -> Callable[[Path], None]:
    return lambda files: write(make(), files / "run", name) and None


RECORDERS = {
    "everything": (_everything, "a run with every kind of event in it", ()),
    "failed": (_of(failed, "failed"), "a run that failed by the user's code", ()),
    "preempted": (_of(preempted, "preempted"), "a run that was preempted", ()),
    "publishing": (_of(publishing, "publishing"), "the publish of a checkpoint", ()),
    "running": (_of(running, "running"), "a run that goes on", ()),
}
