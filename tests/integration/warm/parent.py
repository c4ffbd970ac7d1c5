"""Starts children in many ways, and prints the results."""

import asyncio
import json
import multiprocessing as mp
import os
import subprocess
import sys

TELL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tell.py")


def tell(words=(TELL, "x"), **options):
    """What a child observes about itself."""
    out = os.environ["TELL"] + ".inner"
    env = {**os.environ, "TELL": out, "PARENT": str(os.getpid()), **options.pop("more", {})}
    completed = subprocess.run([sys.executable, *words], env=env, capture_output=True, **options)
    assert completed.returncode == 0, completed.stderr
    with open(out) as file:
        return json.load(file)


def shown(*words, **options):
    """The output of a child, and its exit code."""
    completed = subprocess.run([sys.executable, *words], capture_output=True, text=True, **options)
    return [completed.returncode, completed.stdout, completed.stderr]


def failing(*words, **options):
    """The error that is raised at its start."""
    try:
        subprocess.run(words, **options)
    except OSError as error:
        return [type(error).__name__, error.errno, error.filename]


def work(queue):
    queue.put((mp.current_process().name, mp.parent_process().pid == os.getppid(), len(sys.argv)))


def started(method):
    """A child of multiprocessing."""
    context = mp.get_context(method)
    queue = context.Queue()
    child = context.Process(target=work, args=(queue,), name="child")
    child.start()
    result = queue.get(timeout=60)
    child.join()
    return [result, child.exitcode]


def pooled():
    with mp.get_context("spawn").Pool(2) as pool:
        return pool.map(abs, range(-3, 3))


async def streamed():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(input()[::-1])", stdin=-1, stdout=-1
    )
    return (await process.communicate(b"abc\n"))[0].decode()


def waited():
    """wait() finds only children that the program has started."""
    try:
        return os.wait()
    except ChildProcessError as error:
        return error.errno


def pipes():
    reader, writer = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", f"import os; os.write({writer}, b'through')"], pass_fds=[writer]
    )
    os.close(writer)
    with open(reader) as file:
        return [file.read(), child.wait()]


def loaded():
    import torch
    from torch.utils.data import DataLoader

    rows = torch.arange(12).reshape(6, 2)
    return [
        [batch.tolist() for batch in DataLoader(rows, num_workers=2, multiprocessing_context=how)]
        for how in ("fork", "spawn")
    ]


def inherited():
    writer = os.open(os.environ["TELL"] + ".file", os.O_CREAT | os.O_WRONLY)
    os.set_inheritable(writer, True)
    result = tell(close_fds=False)
    os.close(writer)
    return result


def limited():
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
    os.nice(3)
    os.umask(0o037)
    os.sched_setaffinity(0, {0})
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    os.chdir("/")
    return tell()


CASES = {
    "plain": tell,
    "unbuffered": lambda: tell(("-u", TELL)),
    "command": lambda: tell(("-c", f"import runpy; runpy.run_path({TELL!r}, run_name='__main__')")),
    "cwd": lambda: tell(cwd="/tmp"),
    "session": lambda: tell(start_new_session=True),
    "group": lambda: tell(process_group=0),
    "umask": lambda: tell(umask=0o027),
    "signals": lambda: tell(restore_signals=False),
    "environment": lambda: tell(more={"NEW": "1", "TZ": "Asia/Tokyo", "OMP_NUM_THREADS": "1"}),
    "rank": lambda: tell(more={"RANK": "3", "LOCAL_RANK": "3"}),
    "inherited": inherited,
    "limited": limited,
    "python3": lambda: tell(executable=sys.executable),
    "input": lambda: shown("-c", "print(input().upper())", input="abc\n"),
    "error": lambda: shown("-c", "raise ValueError('x')"),
    "code": lambda: shown("-c", "raise SystemExit(5)"),
    "missing": lambda: shown("/nowhere/x.py"),
    "merged": lambda: subprocess.run(
        [sys.executable, "-c", "import sys; print(1, flush=True); print(2, file=sys.stderr)"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ).stdout,
    "other_program": lambda: subprocess.check_output(["echo", "a"], text=True),
    "shell": lambda: subprocess.check_output("echo $((1 + 1)); exit 0", shell=True, text=True),
    "no_program": lambda: failing("/nowhere/program"),
    "no_folder": lambda: failing(sys.executable, "-c", "1", cwd="/nowhere"),
    "preexec": lambda: shown("-c", "import os; print(os.getpriority(0, 0))",
                             preexec_fn=lambda: os.nice(2)),
    "isolated": lambda: shown("-I", "-c", "import sys; print(sys.flags.isolated)"),
    "optimized": lambda: shown("-O", "-c", "import sys; print(sys.flags.optimize)"),
    "hash_seed": lambda: shown("-c", "print(hash('a'))", env={**os.environ, "PYTHONHASHSEED": "7"}),
    "spawn": lambda: started("spawn"),
    "fork": lambda: started("fork"),
    "forkserver": lambda: started("forkserver"),
    "pool": pooled,
    "asyncio": lambda: asyncio.run(streamed()),
    "wait": waited,
    "pipes": pipes,
    "loader": loaded,
}  # fmt: skip

if __name__ == "__main__":
    with open(os.environ["TELL"], "w") as out:
        json.dump(CASES[sys.argv[1]](), out)
