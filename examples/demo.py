"""One job, one plan of faults, three ways: plain, `headway run --auto`, and the building blocks."""

import argparse
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import demo_equal
import demo_page
from demo_plan import BIN, DLRM, LONG, WAYS, Plan, Way

from headway.journal import run_files
from headway.ledger.model import Ledger
from headway.report.screen import console
from headway.report.waterfall import Waterfall, bar_of_run, print_waterfall
from headway.run import load

PUBLISH_S = 120.0  # for the publish jobs, which nobody else waits for
GRACE_S = 30.0  # that torchrun gives a rank which does not answer SIGTERM
QUIET_S = 10.0
WORDS = {
    "plain": "torchrun --max-restarts and torch.save; Headway only measures",
    "auto": "the same script under headway run --auto",
    "headway": "train_headway.py: stages, compile ahead, Checkpointer, warm restarts, anchor",
}


def say(text: str) -> None:
    print(text, flush=True)


@contextlib.contextmanager
def data_service(plan: Plan) -> Iterator[int]:
    """A service beside the job, as production has it; it begins to warm up with the job."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    script = [sys.executable, str(DLRM / "data_service.py"), "--port", str(port)]
    service = subprocess.Popen([*script, "--warmup", str(plan.warmup_s)], stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        service.kill()
        service.wait()


@contextlib.contextmanager
def started(way: Way) -> Iterator[subprocess.Popen[bytes]]:
    """The job, with its output in a file; who leaves early ends it."""
    # The store of torch 2.13 is shared over attempts; restarted ranks may then hang on gloo.
    # Errors only: torch also logs warnings about the compiler and the machine.
    env = os.environ | {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCH_LOGS": "-all",
    }
    with way.log.open("wb") as log, contextlib.ExitStack() as stack:
        needed = way.script == "train_headway.py"
        port = stack.enter_context(data_service(way.plan)) if needed else None
        job = subprocess.Popen(way.command(port), env=env, stdout=log, stderr=log)
        try:
            yield job
        finally:
            job.terminate()
            job.wait()


def wait_for_the_hang(way: Way, job: subprocess.Popen[bytes]) -> None:
    while job.poll() is None and not way.hanging.exists():
        time.sleep(0.1)


def published(way: Way) -> str:
    """Waits for the publish job of a run; what became of it, or nothing where there is none."""
    until = time.monotonic() + PUBLISH_S
    while time.monotonic() < until:
        told = run_files.read_publish_note(way.run)
        if not told:
            return ""
        if told.get("snapshot") or told.get("error"):
            return str(told.get("error") or "published by a job of its own")
        time.sleep(0.2)
    return f"not published within {PUBLISH_S:.0f} s"


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ended(way: Way, job: subprocess.Popen[bytes]) -> Ledger:
    """Waits for it; ends the demonstration if it has failed."""
    before = cpu_seconds()
    code = job.wait()
    if code:
        say(way.log.read_text(errors="replace")[-3000:])
        raise SystemExit(f"demo: {way.name} ended with exit code {code}; all of it: {way.log}")
    used = cpu_seconds() - before
    note = published(way)
    ledger = load(way.run).ledger
    facts = [f"ETT {ledger.ett_percent:.1f} % of {ledger.wall / 1e9:.1f} s"]
    facts += [f"{len(ledger.failures)} failures", f"{used:.0f} CPU seconds"]
    say(f"demo:   {', '.join([*facts, *([note] if note else [])])}")
    return ledger


def run_all(plain: Way, others: list[Way]) -> dict[str, Ledger]:
    """Their ledgers by name: the others run while plain hangs, which takes it no processor."""
    ledgers = {}
    say(f"demo: {plain.name}: {WORDS[plain.name]}")
    with started(plain) as slow:
        wait_for_the_hang(plain, slow)
        if slow.poll() is None:
            say(
                f"demo:   it hangs, and will for {plain.plan.timeout_s + GRACE_S:.0f} s; meanwhile:"
            )
        for way in others:
            say(f"demo: {way.name}: {WORDS[way.name]}")
            with started(way) as job:
                ledgers[way.name] = ended(way, job)
        if slow.poll() is not None or not still(plain):
            say("demo: plain went on before the others were done: all were slower for it")
        say(f"demo: {plain.name}, to its end")
        return {plain.name: ended(plain, slow), **ledgers}


def still(way: Way) -> bool:
    """Whether it hangs: nothing was trained for a while."""
    records = [path.stat().st_mtime for path in way.trained.glob("rank*.txt")]
    return time.time() - max(records, default=0.0) > QUIET_S


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--long",
        action="store_true",
        help=f"as --steps {LONG.steps} --timeout {LONG.timeout_s:.0f}",
    )
    parser.add_argument("--steps", type=int, default=Plan.steps, help="of the job")
    parser.add_argument("--save-every", type=int, default=Plan.save_every, help="steps")
    parser.add_argument("--batch", type=int, default=Plan.batch, help="samples per rank")
    parser.add_argument("--timeout", type=float, default=Plan.timeout_s, help="of the group")
    parser.add_argument("--backend", default=Plan.backend, help="of torch.compile")
    parser.add_argument("-o", "--output", type=Path, help="folder; headway/demo-TIME")
    if parser.parse_known_args()[0].long:
        parser.set_defaults(steps=LONG.steps, timeout=LONG.timeout_s)
    args = parser.parse_args()
    plan = Plan(
        steps=args.steps,
        save_every=args.save_every,
        batch=args.batch,
        timeout_s=args.timeout,
        backend=args.backend,
    )
    plan.check()
    folder = args.output or Path("headway") / time.strftime("demo-%Y%m%d-%H%M%S")
    if folder.exists():
        raise SystemExit(f"demo: {folder} is there already; give another folder with -o")
    folder.mkdir(parents=True)
    (folder / "faults.json").write_text(json.dumps(plan.faults, indent=1) + "\n")
    ways = [Way(name, plan, folder) for name in WAYS]
    began = time.monotonic()
    ledgers = run_all(ways[0], ways[1:])

    say("\n" + " " * 32 + "".join(f"{name:>12}" for name in ledgers))
    for name, cells in demo_page.table(ledgers):
        say(f"  {name:<30}" + "".join(f"{cell:>12}" for cell in cells))
    say("")
    print_waterfall(Waterfall(tuple(bar_of_run(ledger) for ledger in ledgers.values())), console())

    wrong, equal = demo_equal.verdict(plan, ways)
    page = folder / "demo.html"
    demo_page.write(page, ledgers, [wrong or equal])
    say(f"demo: {wrong or equal}")
    say(f"demo: {time.monotonic() - began:.0f} s in all")
    say(f"The page:   {page}")
    say(f"Your job:   {BIN / 'headway'} run --auto -- torchrun --nproc-per-node 8 train.py")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
