"""The command line as a person types it: exit codes, signals, bad input, joined runs."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from headway.ledger.run import load

from .conftest import BIN, quiet_env

HEADWAY = str(BIN / "headway")
PYTHON = str(BIN / "python")
# Trains until it is told to stop, and says when it has begun.
LOOP = """
import time, torch
w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)
o = torch.optim.SGD([w], lr=0.1)
for step in range(2000):
    o.step(); time.sleep(0.01)
    if step == 5: print("training", flush=True)
"""


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


@pytest.mark.parametrize("code", [0, 1, 3, 77])
def test_the_exit_code_is_the_commands(tmp_path: Path, code: int) -> None:
    done = call(
        tmp_path, "run", "-o", "r", "--", "sh", "-c", f"echo out; echo err >&2; exit {code}"
    )
    assert done.returncode == code
    assert done.stdout == "out\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "headway: recording to r"
    assert lines[1] == "headway: watch it with `headway top r`"
    assert lines[2] == "err"


def test_death_by_signal_reads_as_in_a_shell(tmp_path: Path) -> None:
    assert call(tmp_path, "run", "-o", "r", "--", "sh", "-c", "kill -9 $$").returncode == 137


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run"], "no command to run"),
        (["run", "--"], "no command to run"),
        (["run", "--", "no-such-program"], "no-such-program was not found"),
        (["run", "--name", "a/b", "--", "true"], "cannot be a folder's name"),
        (["run", "-o", "/proc/nowhere", "--", "true"], "cannot write to /proc/nowhere"),
        (["run", "-o", "taken", "--", "true"], "exists"),
        (["run", "-o", "stuff", "--", "true"], "is not a run folder"),
        (["report", "nowhere"], "there is no run at nowhere"),
        (["report", "stuff"], "is not a run folder"),
        (["report", "newer"], "newer than 1"),
        (["compare", "taken", "nowhere"], "there is no run at nowhere"),
        (["compare", "taken", "taken", "--fail-if", "ett"], "ett"),
        (["export", "taken", "--to", "smoke-signals"], "smoke-signals"),
        (["top", "nowhere"], "there is no run at nowhere"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    (tmp_path / "stuff").mkdir()
    (tmp_path / "stuff" / "file").write_text("mine")
    (tmp_path / "taken" / "journal").mkdir(parents=True)
    (tmp_path / "newer" / "journal").mkdir(parents=True)
    head = {"ev": "head", "schema": 99, "t": 1}
    (tmp_path / "newer" / "journal" / "a.jsonl").write_text(json.dumps(head) + "\n")
    done = call(tmp_path, *words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert (tmp_path / "stuff" / "file").read_text() == "mine"


def test_a_name_in_use_is_kept_unless_forced(tmp_path: Path) -> None:
    assert call(tmp_path, "run", "--name", "n", "--", "true").returncode == 0
    before = sorted(p.name for p in (tmp_path / "headway/n/journal").iterdir())
    assert call(tmp_path, "run", "--name", "n", "--", "true").returncode == 2
    assert sorted(p.name for p in (tmp_path / "headway/n/journal").iterdir()) == before
    assert call(tmp_path, "run", "--name", "n", "--force", "--", "true").returncode == 0
    assert len(load(tmp_path / "headway/n").ledger.attempts) == 1


@pytest.mark.parametrize(
    "identity", [{"HEADWAY_RUN": "nightly"}, {"SLURM_JOB_ID": "42"}, {"TORCHELASTIC_RUN_ID": "e1"}]
)
def test_requeued_jobs_are_one_run(tmp_path: Path, identity: dict[str, str]) -> None:
    once = ("run", "--", "sh", "-c", "test -e ran && exit 0; touch ran; exit 1")
    assert call(tmp_path, *once, env=identity).returncode == 1
    assert call(tmp_path, *once, env=identity).returncode == 0
    (folder,) = (tmp_path / "headway").iterdir()
    ledger = load(folder).ledger
    assert [a.outcome for a in ledger.attempts] == ["failed", "completed"]
    assert sum(ledger.buckets.values()) == ledger.wall
    assert ledger.buckets["recover.downtime"] > 0


def start(folder: Path, *command: str, **how: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [HEADWAY, "run", "-o", "r", "--", *command],
        cwd=folder,
        env={**os.environ, **quiet_env(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **how,  # type: ignore[call-overload]
    )


def await_word(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(f"ended before it said {word}")


@pytest.mark.parametrize(
    ("number", "outcome"), [(signal.SIGTERM, "preempted"), (signal.SIGINT, "stopped")]
)
def test_signals_reach_the_whole_group(tmp_path: Path, number: int, outcome: str) -> None:
    script = f"(sleep 300; echo never) & echo inner $!; {PYTHON} -c '{LOOP}'; exit $?"
    process = start(tmp_path, "bash", "-c", script)
    assert process.stdout is not None
    inner = next(int(line.split()[1]) for line in process.stdout if line.startswith("inner"))
    await_word(process, "training")
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
        "import signal, sys, torch\n"
        "from torch.utils.data import DataLoader, IterableDataset\n"
        "class Endless(IterableDataset):\n"
        "    def __iter__(self):\n        while True: yield torch.ones(2)\n"
        "stop = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: stop.append(1))\n"
        "model = torch.nn.Linear(2, 1)\n"
        "o = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step, batch in enumerate(DataLoader(Endless(), num_workers=2)):\n"
        "    model(batch).sum().backward(); o.step()\n"
        "    if step == 50: print('training', flush=True)\n"
        "    if stop: break\n"
        "torch.save(model.state_dict(), 'last.pt')\n"
        "print('saved', flush=True)\n"
    )
    process = start(tmp_path, PYTHON, "job.py")
    await_word(process, "training")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "saved" in output
    assert (tmp_path / "last.pt").exists()


def test_the_job_dies_with_a_killed_launcher(tmp_path: Path) -> None:
    process = start(tmp_path, "bash", "-c", "echo inner $$; exec sleep 300")
    assert process.stdout is not None
    inner = next(int(line.split()[1]) for line in process.stdout if line.startswith("inner"))
    process.kill()
    process.communicate(timeout=60)
    end = time.monotonic() + 10
    while _alive(inner) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _alive(inner)


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
        "end = time.monotonic() + 2\n"
        "while time.monotonic() < end: time.sleep(0.05)\n"
        "print('interrupts', count, flush=True)\n"
        "sys.exit(5)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(HEADWAY, [HEADWAY, "run", "-o", "r", "--", PYTHON, str(script)], dict(os.environ))
    seen = _read_until(terminal, b"name?")
    os.write(terminal, b"ada\n")
    seen += _read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    seen += _read_until(terminal, b"Next:")
    _, status = os.waitpid(pid, 0)
    assert b"hello ada" in seen
    assert b"interrupts 1" in seen
    assert os.waitstatus_to_exitcode(status) == 5


def test_ctrl_c_ends_torchrun_as_stopped(tmp_path: Path) -> None:
    """The terminal signals the launcher, torchrun and its ranks alike; torchrun ends with 1."""
    (tmp_path / "job.py").write_text(LOOP)
    words = [HEADWAY, "run", "-o", "r", "--", str(BIN / "torchrun"), "--standalone", "job.py"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(HEADWAY, words, {**os.environ, **quiet_env(tmp_path)})
    _read_until(terminal, b"training")
    os.write(terminal, b"\x03")
    _read_until(terminal, b"Next:")
    os.waitpid(pid, 0)
    ledger = load(tmp_path / "r").ledger
    assert [a.outcome for a in ledger.attempts] == ["stopped"]
    assert ledger.failures == ()


def _read_until(terminal: int, word: bytes) -> bytes:
    seen = b""
    end = time.monotonic() + 60
    while word not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            try:
                seen += os.read(terminal, 4096)
            except OSError:
                break
    assert word in seen, seen
    return seen


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
        "import torch, os\n"
        "w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)\n"
        "o = torch.optim.SGD([w], lr=0.1); o.step()\n"
        f"f = {fill}\n"
        "try:\n"
        "    while True: f.write(bytes(4096)); f.flush()\n"
        "except OSError: pass\n"
        "import headway\n"
        "for i in range(200):\n"
        "    with headway.span('blocked'): o.step()\n"
        f"os.truncate({str(small / 'fill')!r}, 0)\n"
        "with headway.span('evaluation'): pass\n"
        "print('trained')\n"
    )
    try:
        done = call(tmp_path, "run", "-o", str(small / "r"), "--", PYTHON, "-c", job)
        assert done.returncode == 0, done.stderr
        assert "trained" in done.stdout
        ledger = load(small / "r").ledger
        assert any("No space left" in note for note in ledger.notes), ledger.notes
        assert ledger.steps == 201
        assert sum(ledger.buckets.values()) == ledger.wall
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_url_target_is_shipped(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    url = f"file://{tmp_path}/remote/run7"
    done = call(tmp_path, "run", "-o", url, "--", PYTHON, "-c", LOOP.replace("2000", "20"))
    assert done.returncode == 0, done.stderr
    ledger = load(tmp_path / "remote" / "run7").ledger
    assert ledger.steps == 20
    assert (tmp_path / "remote" / "run7" / "report.html").exists()


def test_a_run_reports_in_every_format(tmp_path: Path) -> None:
    call(tmp_path, "run", "-o", "r", "--", PYTHON, "-c", LOOP.replace("2000", "20"))
    report = json.loads(call(tmp_path, "report", "r", "--json").stdout)
    assert abs(sum(report["buckets"].values()) - report["wall_s"]) < 1e-3
    assert report == json.loads((tmp_path / "r" / "ledger.json").read_text())
    assert "ETT" in call(tmp_path, "report", "r").stdout
    assert call(tmp_path, "report", "r", "--html").returncode == 0
    assert call(tmp_path, "top", "r", "--once").returncode == 0
    for kind in ("perfetto", "openmetrics", "csv"):
        assert call(tmp_path, "export", "r", "--to", kind).stdout
    assert call(tmp_path, "compare", "r", "r", "--fail-if", "ett<-1").returncode == 0


def test_config_says_where_values_come_from(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text('name = "from-file"\nreport = false\n')
    found = json.loads(call(tmp_path, "config", "--json", env={"HEADWAY_NAME": "from-env"}).stdout)
    assert found["name"] == {"value": "from-env", "from": "HEADWAY_NAME"}
    assert found["report"] == {"value": False, "from": "headway.toml"}
    assert found["output"]["from"] == "default"
    (tmp_path / "headway.toml").write_text("colour = 1\n")
    wrong = call(tmp_path, "config")
    assert wrong.returncode == 2
    assert "colour" in wrong.stderr


def test_doctor_says_what_would_be_seen(tmp_path: Path) -> None:
    good = call(tmp_path, "doctor")
    assert good.returncode == 0, good.stdout
    assert "5 of 5 optimizer steps seen" in good.stdout
    blind = call(tmp_path, "doctor", "--", PYTHON, "-I")
    assert blind.returncode == 1
    assert "headway.auto" in blind.stdout


def test_zero_steps_say_how_to_mend_it(tmp_path: Path) -> None:
    done = call(tmp_path, "run", "-o", "r", "--", PYTHON, "-c", "import torch")
    assert done.returncode == 0
    assert "headway.step()" in done.stderr
