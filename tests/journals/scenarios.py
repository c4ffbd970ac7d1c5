"""The jobs whose journals are recorded: one function for each, or for several that belong together.

Each runs a real job in real processes. A run is recorded by `-o NAME`, where NAME is that of the
recording; a run that lies elsewhere is named in `session.runs`.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.journals.session import PYTHON, REPOSITORY, TORCHRUN, Session, script

Job = Callable[[Session], None]
TWO = (*TORCHRUN, "2")
CHECKPOINTED = str(REPOSITORY / "tests" / "integration" / "checkpointed" / "levels.py")


@dataclass(frozen=True)
class Scenario:
    """A job, and what each of its recordings holds, by name."""

    job: Job
    about: dict[str, str]


SCENARIOS: list[Scenario] = []


def records(**about: str) -> Callable[[Job], Job]:
    """These recordings are made by this job; each with a sentence on what it holds."""

    def register(job: Job) -> Job:
        SCENARIOS.append(Scenario(job, about))
        return job

    return register


# Loops of one process.


@records(plain="One process: a slow model, first batch and save, a data stall and an evaluation.")
def plain(session: Session) -> None:
    session.run("-o", "plain", "--", PYTHON, script("plain"))


@records(data_stall="A loader without workers that is slower than the training, and labels.")
def data_stall(session: Session) -> None:
    labels = ("--label", "team=ads,model=dlrm")
    session.run("-o", "data_stall", *labels, "--", PYTHON, script("waiting"))


@records(evaluation="One process that evaluates after each ten steps.")
def evaluation(session: Session) -> None:
    session.run("-o", "evaluation", "--", PYTHON, script("evaluation"))


@records(sdk="A loop that no hook can see: its steps, batches and spans come from the public API.")
def sdk(session: Session) -> None:
    session.run("-o", "sdk", "--", PYTHON, script("sdk"))


@records(adopted="`import headway.auto` without `headway run`: there is no launcher.")
def adopted(session: Session) -> None:
    session.finish(session.command(PYTHON, script("adopted"), env={"HEADWAY_RUN": "adopted"}))
    session.runs["adopted"] = Path("headway/adopted")


@records(no_training="A command that does not train and fails.")
def no_training(session: Session) -> None:
    session.run("-o", "no_training", "--", "sh", "-c", "sleep 0.3; exit 3", code=3)


@records(fails_before_first_step="Two ranks, one of which raises before its first step.")
def fails_before_first_step(session: Session) -> None:
    job = (*TWO, script("faulty"), "bug", "1", "0", "always")
    session.run("-o", "fails_before_first_step", "--restarts", "3", "--", *job, code=1)


# Several ranks, and what ends them.


def restarted(session: Session, name: str, *words: str, code: int | None = 0) -> None:
    session.run("-o", name, "--restarts", "3", "--", *words, code=code)


@records(torchrun_killed="Rank 1 of 2 is killed after step 25; Headway starts torchrun again.")
def torchrun_killed(session: Session) -> None:
    restarted(session, "torchrun_killed", *TWO, script("faulty"), "kill", "1", "25", "once")


@records(torchrun_own_restart="Rank 1 of 2 is killed after step 35; torchrun starts both again.")
def torchrun_own_restart(session: Session) -> None:
    torchrun = (*TWO, "--max-restarts", "2")
    session.run("-o", "torchrun_own_restart", "--", *torchrun, script("ddp"))


@records(agent_killed="torchrun itself is killed after step 25; Headway starts it again.")
def agent_killed(session: Session) -> None:
    restarted(session, "agent_killed", *TWO, script("faulty"), "killagent", "1", "25", "once")


@records(python_killed="One process without torchrun is killed after step 25 and started again.")
def python_killed(session: Session) -> None:
    restarted(session, "python_killed", PYTHON, script("faulty"), "kill", "0", "25", "once")


@records(bug="Rank 1 of 2 raises KeyError after step 25: no restart.")
def bug(session: Session) -> None:
    restarted(session, "bug", *TWO, script("faulty"), "bug", "1", "25", "always", code=1)


@records(same_step_twice="Rank 1 of 2 is killed after step 25 in each attempt: one restart only.")
def same_step_twice(session: Session) -> None:
    job = (*TWO, script("faulty"), "kill", "1", "25", "always")
    restarted(session, "same_step_twice", *job, code=None)


@records(crash_loop="One process is killed again and again without a new checkpoint.")
def crash_loop(session: Session) -> None:
    job = (PYTHON, script("faulty"), "loop", "0", "25", "always")
    session.run("-o", "crash_loop", "--restarts", "20", "--", *job, code=137)


@records(restarts_used="A network error comes back after the only restart.")
def restarts_used(session: Session) -> None:
    job = (PYTHON, script("faulty"), "reset", "0", "25", "always")
    session.run("-o", "restarts_used", "--restarts", "1", "--", *job, code=1)


@records(swap="An ECC error: the node is to be replaced.")
def swap(session: Session) -> None:
    job = (PYTHON, script("faulty"), "ecc", "0", "25", "always")
    restarted(session, "swap", *job, code=75)


@records(spawn="Two ranks of `torch.multiprocessing.spawn`; rank 1 is late and saves.")
def spawn(session: Session) -> None:
    session.run("-o", "spawn", "--", PYTHON, script("spawn"))


@records(groups="Four ranks with process groups that are not used, repeated or needless.")
def groups(session: Session) -> None:
    session.run("-o", "groups", "--", *TORCHRUN, "4", script("groups"))


@records(hang_stopped="Rank 1 of 2 gets SIGSTOP after step 25; the hang watch ends both.")
def hang_stopped(session: Session) -> None:
    restarted(session, "hang_stopped", *TWO, script("faulty"), "stop", "1", "25", "once")


@records(hang_killed="One process stops training and is killed three seconds later.")
def hang_killed(session: Session) -> None:
    session.run("-o", "hang_killed", "--", PYTHON, script("hang"), code=137)


@records(launcher_killed="The launcher is killed and started again by hand; it joins the run.")
def launcher_killed(session: Session) -> None:
    env = {"HEADWAY_RUN": "launcher_killed"}
    words = ("--restarts", "2", "--", PYTHON, script("faulty"), "none", "0", "0", "once")
    first = session.start(*words, env=env)
    session.wait_for("last.pt")
    first.kill()
    session.finish(first, -signal.SIGKILL)
    session.run(*words, env=env)
    session.runs["launcher_killed"] = Path("headway/launcher_killed")


@records(continued="A run that was completed, and is launched again under its name.")
def continued(session: Session) -> None:
    env = {"HEADWAY_RUN": "continued"}
    for _ in range(2):
        session.run("--", PYTHON, script("evaluation"), env=env)
        time.sleep(0.5)
    session.runs["continued"] = Path("headway/continued")


# Training frameworks.


@records(lightning="Lightning's Trainer with validations and a save.")
def lightning(session: Session) -> None:
    session.run("-o", "lightning", "--", PYTHON, script("lightning_job"))


@records(transformers="transformers.Trainer is killed at step 15 and resumes from step 10.")
def transformers(session: Session) -> None:
    job = script("transformers_job")
    both = f"{PYTHON} {job} 0; {PYTHON} {job} 1"
    session.run("-o", "transformers", "--", "bash", "-c", both)


@records(accelerate="An Accelerate loop is killed at step 70 and resumes from step 60.")
def accelerate(session: Session) -> None:
    job = str(REPOSITORY / "tests" / "programs" / "accelerate_loop.py")
    kill = ("--chaos", "kill rank=0 step=70")
    restarts = ("--restarts", "1")
    session.run("-o", "accelerate", *restarts, *kill, "--", PYTHON, job)


# Schedulers and notices.


@records(slurm_requeue="A Slurm job gets SIGTERM, is requeued and completes.")
def slurm_requeue(session: Session) -> None:
    job = (*TWO, script("faulty"), "none", "0", "0", "once")
    for life in range(2):
        now = time.time()
        env = {
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_START_TIME": str(int(now - 2)),
            "HEADWAY_QUEUED_AT": f"{now - 30:.3f}",
            **({"SLURM_RESTART_COUNT": "1"} if life else {}),
        }
        process = session.start("--", *job, env=env)
        if life == 0:
            session.wait_for("last.pt")
            process.send_signal(signal.SIGTERM)
        session.finish(process, None if life == 0 else 0)
        time.sleep(3)  # in the queue again
    session.runs["slurm_requeue"] = Path("headway/slurm-4711")


def checkpointed(
    session: Session, *words: str, run: str, flags: tuple[str, ...] = (), ranks: int = 1
) -> tuple[str, ...]:
    """A training with a Checkpointer that saves at step 15, and at most every ten minutes else."""
    launcher = (*TORCHRUN, str(ranks)) if ranks > 1 else (PYTHON,)
    always = ("--steps", "4000", "--pause", "0.02", "--interval", "600", "--ready", "ready")
    job = (*launcher, CHECKPOINTED, str(session.folder / "store"), str(session.folder / "out"))
    return ("-o", run, *flags, "--", *job, *always, *words)


@records(preempted="SIGUSR1: a last save in the time that is left; the next life goes on from it.")
def preempted(session: Session) -> None:
    env = {"SLURM_JOB_ID": "4711"}
    words = ("--grace", "20")
    process = session.start(*checkpointed(session, *words, run="preempted"), env=env)
    session.wait_for("ready.0")
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGUSR1)
    session.finish(process)
    again = checkpointed(session, *words, "--steps", "200", "--interval", "1", run="preempted")
    session.run(*again, env=env)


@records(preempted_unanswered="SIGTERM to a job that does not listen: its work is lost.")
def preempted_unanswered(session: Session) -> None:
    env = {"SLURM_JOB_ID": "4711"}
    process = session.start(*checkpointed(session, run="preempted_unanswered"), env=env)
    session.wait_for("ready.0")
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)
    session.finish(process, None)
    again = checkpointed(session, "--steps", "60", run="preempted_unanswered")
    session.run(*again, env=env)


@records(preempted_ranks="SIGTERM through torchrun: both ranks save one step, snapshots before it.")
def preempted_ranks(session: Session) -> None:
    words = ("--memory-interval", "0.1", "--grace", "20")
    process = session.start(*checkpointed(session, *words, run="preempted_ranks", ranks=2))
    session.wait_for("ready.0", "ready.1")
    os.kill(process.pid, signal.SIGTERM)
    session.finish(process, None)


@records(stopped_by_user="SIGINT to the launcher.")
def stopped_by_user(session: Session) -> None:
    process = session.start(
        "-o", "stopped_by_user", "--restarts", "3", "--", *TWO,
        script("faulty"), "none", "0", "0", "once",
    )  # fmt: skip
    session.wait_for("last.pt")
    process.send_signal(signal.SIGINT)
    session.finish(process, None)


# Checkpoints and publishing.


@records(checkpointer_killed="A Checkpointer on two ranks; rank 1 is killed and resumes by memory.")
def checkpointer_killed(session: Session) -> None:
    store, out = str(session.folder / "store"), str(session.folder / "out")
    words = ("--disk", "5", "--memory", "1", "--wait", "--die", "8", "--filling", "--steps", "10")
    restarts = ("--restarts", "1")
    job = (*TWO, CHECKPOINTED, store, out, *words)
    session.run("-o", "checkpointer_killed", *restarts, "--", *job)


@records(async_save_killed="--async-save: killed while the save of step 20 is written.")
def async_save_killed(session: Session) -> None:
    flags = ("--async-save", "--restarts", "1")
    session.run("-o", "async_save_killed", *flags, "--", PYTHON, script("behind"))


@records(dcp="DCP on two ranks, every second save asynchronous; killed at step 35, resumed at 30.")
def dcp(session: Session) -> None:
    restarted(session, "dcp", *TWO, script("dcp"))


@records(
    publish="A training with `--publish`: its last checkpoint is handed to a job of its own.",
    published="The run of that job: it publishes a snapshot and trains nothing.",
)
def publish(session: Session) -> None:
    model = REPOSITORY / "tests" / "unit" / "publish" / "dlrm.py"
    shutil.copy(model, session.folder / "served.py")
    (session.folder / "recipe.toml").write_text("[targets.safetensors]\n")
    to = ("--publish", "recipe.toml", "--publish-to", "store")
    job = str(REPOSITORY / "tests" / "integration" / "published" / "job.py")
    env = {"PYTHONPATH": str(session.folder)}
    session.run("--name", "publish", *to, "--", PYTHON, job, "anchor", env=env)
    session.wait_for("headway/publish-publish/ledger.json")
    session.runs["publish"] = Path("headway/publish")
    session.runs["published"] = Path("headway/publish-publish")


# Starting and compiling.


@records(warm_restart="--warm: the restart is forked from a process that has imported all.")
def warm_restart(session: Session) -> None:
    flags = ("--warm", "--restarts", "3")
    job = (*TWO, script("faulty"), "kill", "1", "25", "once")
    env = {"PAUSE": "1"}  # the next process to fork from is ready before the kill
    session.run("-o", "warm_restart", *flags, "--", *job, env=env)


@records(
    compile_cold="torch.compile with an empty compile cache; its archive is saved.",
    compile_cached="The same job with the archive of the run before.",
)
def compile_cache(session: Session) -> None:
    for number, name in enumerate(("compile_cold", "compile_cached")):
        own = session.folder / f"tmp{number}"
        own.mkdir()
        flags = ("--compile-cache", str(session.folder / "cache"))
        env = {"TMPDIR": str(own)}
        session.run("-o", name, *flags, "--", PYTHON, script("cached"), env=env)


@records(recompile="Three compiled functions that recompile until torch gives up.")
def recompile(session: Session) -> None:
    job = str(REPOSITORY / "tests" / "integration" / "recompiles" / "storm.py")
    session.run("-o", "recompile", "--", PYTHON, job)


@records(
    compile_ahead="A step compiled on a fast batch; the first real one has another size.",
    compile_ahead_hit="The first real batch has the size of the fast one, the second has not.",
    compile_ahead_marked="The size is marked as dynamic: nothing is compiled again.",
)
def compile_ahead(session: Session) -> None:
    job = (PYTHON, script("ahead"))
    marked = {"MARKED": "1"}
    session.run("-o", "compile_ahead", "--", *job, "16", "24", "24", "40")
    session.run("-o", "compile_ahead_hit", "--", *job, "16", "16", "24")
    session.run("-o", "compile_ahead_marked", "--", *job, "16", "24", "40", env=marked)


@records(
    auto_first="The first run of a job under `--auto`: nothing is known of it.",
    auto_second="The second one, with what the first has left; killed at step 25 and restarted.",
)
def auto(session: Session) -> None:
    shutil.copy(script("train"), session.folder)
    runs = session.folder / "runs"
    for name, kill in (("auto_first", {}), ("auto_second", {"KILL": "1"})):
        session.forget("last.pt")
        env = {"BACKEND": "inductor", **kill}
        session.run("-o", f"runs/{name}", "--auto", "--", *TWO, "train.py", env=env)
        session.runs[name] = runs.relative_to(session.folder) / name


# Faults on purpose.


KILLS = """
[[fault]]
kind = "kill"
who = 1
at_step = 15
[[fault]]
kind = "kill"
who = "agent"
at_step = 12
attempt = 1
[[fault]]
kind = "kill"
who = "all"
at_step = 14
attempt = [2, 7]
"""


def rehearsed(
    session: Session,
    name: str,
    plan: str,
    *,
    steps: int = 60,
    code: int | None = 0,
    env: dict[str, str] | None = None,
) -> None:
    job = (*TWO, script("resumable"), str(steps))
    words = ("-o", name, "--restarts", "3", "--chaos", plan, "--", *job)
    session.run(*words, code=code, env=env)


@records(chaos_kills="Planned kills of a rank, of torchrun, and of everything.")
def chaos_kills(session: Session) -> None:
    (session.folder / "plan.toml").write_text(KILLS)
    rehearsed(session, "chaos_kills", "plan.toml")


@records(chaos_slow="A planned slow disk, and planned late batches.")
def chaos_slow(session: Session) -> None:
    plan = "disk path=checkpoints mode=slow delay=0.2 step=15; data delay=0.05 step=40"
    rehearsed(session, "chaos_slow", plan, env={"SAVE_BY": "path"})


@records(chaos_disk="A planned I/O error, and a checkpoint that is damaged before the restart.")
def chaos_disk(session: Session) -> None:
    plan = "disk path=checkpoints step=25; corrupt path=checkpoints how=truncate when=restart"
    rehearsed(session, "chaos_disk", plan)


@records(chaos_full_disk="A planned full disk: no restart.")
def chaos_full_disk(session: Session) -> None:
    plan = "disk path=checkpoints mode=full step=15"
    rehearsed(session, "chaos_full_disk", plan, code=None)


@records(chaos_paused="A rank that is stopped for a second, then raises.")
def chaos_paused(session: Session) -> None:
    plan = "stop rank=1 step=25 for=1; raise rank=1 step=40"
    rehearsed(session, "chaos_paused", plan, code=None)


@records(chaos_preempted="A planned notice to a job that ignores it until the grace is over.")
def chaos_preempted(session: Session) -> None:
    plan = "terminate step=20 grace=1"
    env = {"IGNORE_TERM": "1"}
    rehearsed(session, "chaos_preempted", plan, steps=100_000, code=None, env=env)


# Several nodes.


@records(two_nodes="Two launchers on one host, as `srun` starts them: one run, one attempt.")
def two_nodes(session: Session) -> None:
    env = {"HEADWAY_RUN": "two_nodes"}
    torchrun = (TORCHRUN[0], "--nnodes", "2", "--nproc-per-node", "1")
    where = ("--master-addr", "127.0.0.1", "--master-port", str(session.port))
    launchers = [
        session.start(
            "--name", "two_nodes", "--", *torchrun, *where, "--node-rank", str(node),
            script("nodes"), env=env,
        )
        for node in (0, 1)
    ]  # fmt: skip
    for launcher in launchers:
        session.finish(launcher)
    session.runs["two_nodes"] = Path("headway/two_nodes")


@records(two_nodes_killed="Two hosts; the rank on the second one is killed and both are restarted.")
def two_nodes_killed(session: Session) -> None:
    from tests.e2e import namespaces  # needs root

    torchrun = (TORCHRUN[0], "--nnodes", "2", "--nproc-per-node", "1")
    restarts = ("--name", "two_nodes_killed", "--restarts", "3")
    env = {"HEADWAY_RUN": "two_nodes_killed"}
    with namespaces.two_nodes() as nodes:
        where = ("--master-addr", nodes[0].address, "--master-port", "29511")
        launchers = [
            session.command(
                *node.command(
                    ["headway", "run", *restarts, "--", *torchrun, *where, "--node-rank", str(i),
                     script("nodes")]
                ),
                env={**env, **node.env()},
            )
            for i, node in enumerate(nodes)
        ]  # fmt: skip
        session.wait_for("last.pt")
        os.kill(int((session.folder / "pid-1").read_text()), signal.SIGKILL)
        for launcher in launchers:
            session.finish(launcher)
    session.runs["two_nodes_killed"] = Path("headway/two_nodes_killed")


# Runs of which not everything is there.


@records(running="Two ranks that still train, copied while they do.")
def running(session: Session) -> None:
    process = session.start("-o", "running", "--", *TWO, script("resumable"), "400")
    session.wait_for("checkpoints/step-000050.pt")
    session.runs["running"] = Path("copy")
    shutil.copytree(session.folder / "running", session.folder / "copy")
    session.finish(process)


@records(torn="Like `python_killed`, with the line of each process's end torn in the middle.")
def torn(session: Session) -> None:
    restarted(session, "torn", PYTHON, script("faulty"), "kill", "0", "25", "once")
    for journal in (session.folder / "torn" / "journal").glob("*.jsonl"):
        lines = journal.read_bytes().splitlines(keepends=True)
        if lines[-1].startswith(b'{"ev":"exit"'):
            journal.write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])


@records(missing_rank="Two ranks of which one has left no journal.")
def missing_rank(session: Session) -> None:
    restarted(session, "missing_rank", *TWO, script("faulty"), "kill", "1", "25", "once")
    for journal in (session.folder / "missing_rank" / "journal").glob("*.jsonl"):
        if b'"rank":1,' in journal.read_bytes().split(b"\n")[0]:
            journal.unlink()
            journal.with_suffix(".pulse").unlink()
