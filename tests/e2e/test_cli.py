"""The command line as a person types it: exit codes, signals, bad input, joined runs."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.run import load
from tests.support import BIN, HEADWAY, Golden, quiet_env, wait_until

PYTHON = str(BIN / "python")
# Makes steps until it is told to stop, and prints when it has begun.
LOOP = """
import time, headway
for step in range(2000):
    headway.step(); time.sleep(0.01)
    if step == 5: print("training", flush=True)
"""
SHORT = LOOP.replace("2000", "20")


def call(
    folder: Path, *words: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HEADWAY, *words],
        cwd=folder,
        env={**os.environ, **quiet_env(folder), **(env or {})},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("code", [0, 1, 77])
def test_the_exit_code_is_the_commands(tmp_path: Path, golden: Golden, code: int) -> None:
    done = call(
        tmp_path, "run", "-o", "r", "--", "sh", "-c", f"echo out; echo err >&2; exit {code}"
    )
    assert done.returncode == code
    assert done.stdout == "out\n"
    before, of_job, _ = done.stderr.partition("err\n")
    assert of_job
    golden("run_begins.txt", before)


def test_death_by_signal_reads_as_in_a_shell(tmp_path: Path) -> None:
    assert call(tmp_path, "run", "-o", "r", "--", "sh", "-c", "kill -9 $$").returncode == 137


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run"], "[command-missing]"),
        (["run", "--"], "[command-missing]"),
        (["run", "--", "no-such-program"], "[command-not-found]"),
        (["run", "--", "./stuff/file"], "[command-not-executable]"),
        (["run", "--name", "a/b", "--", "true"], "[run-name-invalid]"),
        (["run", "--join", "--", "true"], "[join-without-name]"),
        (["report", "nowhere"], "[run-not-found]"),
        (["report", "stuff"], "[not-a-run]"),
        (["report", "newer"], "[newer-schema]"),
        (["compare", "taken", "nowhere"], "[run-not-found]"),
        (["compare", "taken", "taken", "--fail-if", "ett"], "'ett'"),
        (["export", "taken", "--to", "smoke-signals"], "'smoke-signals'"),
        (["top", "nowhere"], "[run-not-found]"),
        (["top", "taken", "--interval", "0"], "[interval-out-of-range]"),
        (["frobnicate"], "[wrong-usage]"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, words: list[str], expected: str) -> None:
    (tmp_path / "stuff").mkdir()
    (tmp_path / "stuff" / "file").write_text("mine")
    (tmp_path / "taken" / "journal").mkdir(parents=True)
    (tmp_path / "newer" / "journal").mkdir(parents=True)
    head = {"ev": "head", "schema": 99, "t": 1}
    (tmp_path / "newer" / "journal" / "a.jsonl").write_text(json.dumps(head) + "\n")
    done = call(tmp_path, *words)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert (tmp_path / "stuff" / "file").read_text() == "mine"


def test_a_name_in_use_is_kept_unless_forced(tmp_path: Path) -> None:
    assert call(tmp_path, "run", "--name", "n", "--", "true").returncode == 0
    before = sorted(p.name for p in (tmp_path / "headway/n/journal").iterdir())
    assert call(tmp_path, "run", "--name", "n", "--", "true").returncode == 0
    assert (tmp_path / "headway/n-2/journal").is_dir()
    assert sorted(p.name for p in (tmp_path / "headway/n/journal").iterdir()) == before
    assert call(tmp_path, "run", "--name", "n", "--force", "--", "true").returncode == 0
    assert len(load(tmp_path / "headway/n").ledger.attempts) == 1


def test_requeued_jobs_are_one_run(tmp_path: Path) -> None:
    identity = {"SLURM_JOB_ID": "42"}
    once = ("run", "--", "sh", "-c", "test -e ran && exit 0; touch ran; exit 1")
    assert call(tmp_path, *once, env=identity).returncode == 1
    assert call(tmp_path, *once, env=identity).returncode == 0
    (folder,) = (tmp_path / "headway").iterdir()
    ledger = load(folder).ledger
    assert [a.outcome for a in ledger.attempts] == ["failed", "completed"]
    assert sum(ledger.buckets.values()) == ledger.wall
    assert ledger.buckets["recover.downtime"] > 0


@contextlib.contextmanager
def started(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """The command below `headway run`; killed at the end, if it is still there."""
    with subprocess.Popen(
        [HEADWAY, "run", "-o", "r", "--", *command],
        cwd=folder,
        env={**os.environ, **quiet_env(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def await_line(process: subprocess.Popen[str], start: str) -> str:
    """The rest of the first line that starts so."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line.removeprefix(start)
    raise AssertionError(f"no line starts with {start!r}")


@pytest.mark.parametrize(
    ("number", "outcome"), [(signal.SIGTERM, "preempted"), (signal.SIGINT, "stopped")]
)
def test_signals_reach_the_whole_group(tmp_path: Path, number: int, outcome: str) -> None:
    script = f"(sleep 300; echo never) & echo inner $!; {PYTHON} -c '{LOOP}'; exit $?"
    with started(tmp_path, "bash", "-c", script) as process:
        inner = int(await_line(process, "inner "))
        await_line(process, "training")
        process.send_signal(number)
        process.communicate(timeout=60)
    # Death by Ctrl-C is passed on as such, so that a script around it stops too.
    assert process.returncode == (-number if number == signal.SIGINT else 128 + number)
    ledger = load(tmp_path / "r").ledger
    assert [a.outcome for a in ledger.attempts] == [outcome]
    assert ledger.steps > 5
    if number == signal.SIGTERM:  # bash may start background jobs with SIGINT ignored
        assert not _alive(inner)
    with contextlib.suppress(ProcessLookupError):
        os.kill(inner, signal.SIGKILL)


def test_a_preempted_rank_can_save_with_its_workers_alive(tmp_path: Path) -> None:
    """SIGTERM to the launcher alone, as Kubernetes sends it, must not end the loader's workers."""
    (tmp_path / "job.py").write_text(
        "import multiprocessing, signal, time, headway\n"
        "def load(batches):\n"
        "    while True: batches.put(1)\n"
        "batches = multiprocessing.SimpleQueue()\n"
        "workers = [multiprocessing.Process(target=load, args=(batches,)) for _ in range(2)]\n"
        "for worker in workers: worker.start()\n"
        "stop = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: stop.append(1))\n"
        "step = 0\n"
        "while not stop:\n"
        "    batches.get(); headway.step(); step += 1; time.sleep(0.01)\n"
        "    if step == 100: print('training', flush=True)\n"  # the launcher has seen the journal
        "assert not any(worker.join(0.2) or worker.exitcode for worker in workers)\n"
        "print('saved', flush=True)\n"
        "for worker in workers: worker.kill()\n"
    )
    with started(tmp_path, PYTHON, "job.py") as process:
        await_line(process, "training")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "saved\n" in output


def test_the_job_dies_with_a_killed_launcher(tmp_path: Path) -> None:
    with started(tmp_path, "bash", "-c", "echo inner $$; exec sleep 300") as process:
        inner = int(await_line(process, "inner "))
        process.kill()
        process.communicate(timeout=60)
    wait_until(lambda: not _alive(inner), seconds=10)


@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-", "2>&1 | head -1"])
def test_a_broken_stderr_does_not_cost_the_exit_code(tmp_path: Path, where: str) -> None:
    line = f"{HEADWAY} run -o r -- sh -c 'sleep 0.5; touch ran; exit 3' {where}"
    done = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert (tmp_path / "ran").exists()


def test_a_signal_at_the_jobs_end_loses_nothing(tmp_path: Path) -> None:
    done = call(tmp_path, "run", "-o", "r", "--", "sh", "-c", "kill -TERM $PPID & exit 0")
    assert done.returncode == 0
    assert (tmp_path / "r" / "ledger.json").exists()


def test_a_script_without_a_shell_line(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("exit 3\n")
    (tmp_path / "job").chmod(0o755)
    assert call(tmp_path, "run", "-o", "r", "--", "./job").returncode == 3


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def in_terminal(folder: Path, *command: str) -> tuple[int, Terminal]:
    """The command below `headway run`, as a person starts it; its pid and the other end."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(folder)
        words = [HEADWAY, "run", "-o", "r", "--", *command]
        os.execve(HEADWAY, words, {**os.environ, **quiet_env(folder)})
    return pid, Terminal(fd)


class Terminal:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.output = b""

    def read_until(self, word: bytes) -> None:
        while word not in self.output:
            assert self._read(), self.output

    def read_to_end(self) -> None:
        while self._read():
            pass
        os.close(self.fd)

    def _read(self) -> bytes:
        try:
            read = os.read(self.fd, 4096)
        except OSError:  # nobody has the terminal open any more
            read = b""
        self.output += read
        return read

    def write(self, keys: bytes) -> None:
        os.write(self.fd, keys)


def test_ctrl_c_in_a_terminal(tmp_path: Path) -> None:
    """As without Headway: the job gets one SIGINT and may handle it, and reads the terminal."""
    script = tmp_path / "job.py"
    script.write_text(
        "import signal, sys, time\n"
        "print('name?', flush=True)\n"
        "print('hello', sys.stdin.readline().strip(), flush=True)\n"
        "count = 0\n"
        "def note(*_):\n    global count\n    count += 1\n"
        "signal.signal(signal.SIGINT, note)\n"
        "print('ready', flush=True)\n"
        "while not count: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "print('interrupts', count, flush=True)\n"
        "sys.exit(5)\n"
    )
    pid, terminal = in_terminal(tmp_path, PYTHON, str(script))
    terminal.read_until(b"name?")
    terminal.write(b"ada\n")
    terminal.read_until(b"ready")
    terminal.write(b"\x03")
    terminal.read_to_end()
    _, status = os.waitpid(pid, 0)
    assert b"hello ada" in terminal.output
    assert b"interrupts 1" in terminal.output
    assert os.waitstatus_to_exitcode(status) == 5


def test_ctrl_c_ends_torchrun_as_stopped(tmp_path: Path) -> None:
    """The terminal signals the launcher, torchrun and its ranks alike; torchrun ends with 1."""
    (tmp_path / "job.py").write_text(LOOP)
    pid, terminal = in_terminal(tmp_path, str(BIN / "torchrun"), "--standalone", "job.py")
    terminal.read_until(b"training")
    terminal.write(b"\x03")
    terminal.read_to_end()
    os.waitpid(pid, 0)
    ledger = load(tmp_path / "r").ledger
    assert [a.outcome for a in ledger.attempts] == ["stopped"]
    assert ledger.failures == ()


def test_full_disk_while_recording(tmp_path: Path) -> None:
    """The job goes on; the report says what is missing."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this sandbox allows no mount")
    fill = f"open({str(small / 'fill')!r}, 'wb')"
    job = (
        "import headway, os\n"
        "headway.step()\n"
        f"f = {fill}\n"
        "try:\n"
        "    while True: f.write(bytes(4096)); f.flush()\n"
        "except OSError: pass\n"
        "for i in range(200):\n"
        "    with headway.span('blocked'): headway.step()\n"
        f"os.truncate({str(small / 'fill')!r}, 0)\n"
        "with headway.span('evaluation'): pass\n"
        "print('trained')\n"
    )
    try:
        done = call(tmp_path, "run", "-o", str(small / "r"), "--", PYTHON, "-c", job)
        assert done.returncode == 0, done.stderr
        assert "trained" in done.stdout
        ledger = load(small / "r").ledger
        lost = [note for note in ledger.notes if note.endswith("[journal-lines-lost]")]
        assert any(os.strerror(errno.ENOSPC) in note for note in lost), ledger.notes
        assert ledger.steps == 201
        assert sum(ledger.buckets.values()) == ledger.wall
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_url_target_is_shipped(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    url = f"file://{tmp_path}/remote/run7"
    done = call(tmp_path, "run", "-o", url, "--", PYTHON, "-c", SHORT)
    assert done.returncode == 0, done.stderr
    ledger = load(tmp_path / "remote" / "run7").ledger
    assert ledger.steps == 20
    assert (tmp_path / "remote" / "run7" / "report.html").exists()


def test_a_run_reports_in_every_format(tmp_path: Path) -> None:
    call(tmp_path, "run", "-o", "r", "--", PYTHON, "-c", SHORT)
    report = json.loads(call(tmp_path, "report", "r", "--json").stdout)
    assert abs(sum(report["buckets"].values()) - report["wall_s"]) < 1e-3
    assert report == json.loads((tmp_path / "r" / "ledger.json").read_text())
    assert f"{report['ett_percent']:.1f} %" in call(tmp_path, "report", "r").stdout
    assert call(tmp_path, "report", "r", "--html").returncode == 0
    assert call(tmp_path, "top", "r", "--once").returncode == 0
    for kind in ("perfetto", "openmetrics", "csv"):
        assert call(tmp_path, "export", "r", "--to", kind).stdout
    assert call(tmp_path, "compare", "r", "r", "--fail-if", "ett<-1").returncode == 0


def test_config_says_where_values_come_from(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text('name = "from-file"\nreport = false\n')
    settings = json.loads(
        call(tmp_path, "config", "--json", env={"HEADWAY_NAME": "from-env"}).stdout
    )
    assert settings["name"] == {"value": "from-env", "from": "HEADWAY_NAME"}
    assert settings["report"] == {"value": False, "from": "headway.toml"}
    assert settings["output"]["from"] == "default"
    (tmp_path / "headway.toml").write_text("colour = 1\n")
    wrong = call(tmp_path, "config")
    assert wrong.returncode == 2
    assert "'colour'" in wrong.stderr
    assert "[setting-unknown]" in wrong.stderr


def test_doctor_says_what_would_be_seen(tmp_path: Path, golden: Golden) -> None:
    good = call(tmp_path, "doctor")
    assert good.returncode == 0, good.stdout
    text = good.stdout.replace(PYTHON, "PYTHON")
    golden("doctor.txt", re.sub(r"\(torch [^)]+\)", "(torch VERSION)", text))


@pytest.mark.parametrize(
    "python",
    [("sh", "-c", "echo True"), pytest.param((PYTHON, "-I"), marks=pytest.mark.slow)],
    ids=["sh", "-I"],
)
def test_doctor_without_a_probe(tmp_path: Path, python: tuple[str, ...]) -> None:
    """What answers as the small job does, and leaves no journal, is like a blind Python."""
    blind = call(tmp_path, "doctor", "--json", "--", *python)
    assert blind.returncode == 1
    checks = {check["code"]: check["good"] for check in json.loads(blind.stdout)}
    assert checks["job-runs"]
    assert not checks["probe-loaded"]
    assert "headway.auto" in json.loads(blind.stdout)[-1]["mend"]


def test_zero_steps_say_how_to_mend_it(tmp_path: Path) -> None:
    done = call(tmp_path, "run", "-o", "r", "--", PYTHON, "-c", "pass")
    assert done.returncode == 0
    assert "headway.step()" in done.stderr
