"""Cold and warm starts of the same program, and what it can observe about itself."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.launch.attempt import BOOT
from headway.probe.import_log import fold
from tests.integration.warm.parent import CASES

HERE = Path(__file__).parent / "warm"
PYTHON = sys.executable
MODULES = ["numpy", "asyncio", "multiprocessing.spawn", "multiprocessing.forkserver"]
pytestmark = pytest.mark.timeout(120)


class Driver:
    """A separate process that starts commands."""

    def __init__(self, folder: Path, command: list[str], env: dict[str, str]) -> None:
        parent_end, child_end = socket.socketpair()
        self.process = subprocess.Popen(
            [PYTHON, "-m", "tests.integration.warm.driver", str(child_end.fileno())],
            pass_fds=[child_end.fileno()],
            cwd=Path(__file__).parents[2],
        )
        child_end.close()
        parent_end.settimeout(200)
        self.lines = parent_end.makefile("rw")
        self.socket = parent_end
        self._send({"folder": str(folder), "command": command, "env": env})

    def ask(self, **task: Any) -> dict[str, Any]:
        self._send(task)
        answer: dict[str, Any] = json.loads(self.lines.readline())
        return answer

    def _send(self, content: dict[str, Any]) -> None:
        self.lines.write(json.dumps(content) + "\n")
        self.lines.flush()

    def close(self) -> None:
        self.lines.close()
        self.socket.close()
        self.process.wait(30)


def environment(folder: Path, **more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HEADWAY", "PYTEST"))}
    return {
        **env,
        "PYTHONPATH": str(BOOT),
        "HEADWAY_DIR": str(folder / "journal"),
        "HEADWAY_LAUNCH": "test",
        "HEADWAY_STRICT": "1",
        **more,
    }


def tell_recipe(folder: Path, modules: list[str], **event: Any) -> None:
    """Write the journal of a process of an earlier attempt."""
    journal = folder / "journal"
    journal.mkdir(parents=True, exist_ok=True)
    head = {"ev": "head", "wall": 1, "launch": "before", "host": os.uname().nodename}
    fields = {"ev": "imported", "t": 1, "modules": list(fold(modules)), **event}
    lines = [json.dumps(line, separators=(",", ":")) for line in (head, fields)]
    (journal / "before-1-1.jsonl").write_text("\n".join(lines) + "\n")


class Warmed:
    """A driver whose forkserver is ready."""

    def __init__(self, folder: Path, command: list[str], modules: list[str], **env: str) -> None:
        self.folder = folder
        self.env = environment(folder, **env)
        tell_recipe(folder, modules)
        self.driver = Driver(folder, command, self.env)
        answer = self.driver.ask(how="prepare")
        assert answer["ready"], answer["notes"]
        self.forkserver = answer["pids"][0]

    def run(self, how: str, *words: str, env: dict[str, str] | None = None, **task: Any) -> Any:
        command = [PYTHON, *words]
        answer = self.driver.ask(how=how, command=command, env={**self.env, **(env or {})}, **task)
        assert answer["notes"] == [], answer["notes"]
        return answer

    def both(self, *words: str, **task: Any) -> tuple[Any, Any]:
        cold, warm = self.run("cold", *words, **task), self.run("warm", *words, **task)
        for answer in (cold, warm):
            answer.pop("pid")
        return cold, warm


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warmed]:
    warm = Warmed(tmp_path_factory.mktemp("run"), [PYTHON, "x.py"], MODULES)
    yield warm
    warm.driver.close()


def tell(warmed: Warmed, how: str, words: list[str], out: Path, **task: Any) -> dict[str, Any]:
    env = {**task.pop("env", {}), "TELL": str(out)}
    answer = warmed.run(how, *words, env=env, **task)
    assert answer["status"] == 0, answer["stderr"]
    return comparable(json.loads(out.read_text()), how)


def comparable(report: dict[str, Any], how: str) -> dict[str, Any]:
    """Remove the differences that docs/warm.md lists."""
    assert report.pop("loaded") == (how == "warm")
    differing = ("PARENT", "HEADWAY_OWNER")  # a rank records from its start
    report["environ"] = [pair for pair in report["environ"] if pair[0] not in differing]
    report["proc_environ"] = [
        variable for variable in report["proc_environ"] if not variable.startswith("PARENT=")
    ]
    way = [fd for fd, (kind, _) in report["descriptors"].items() if kind == "socket"]
    for fd in way:
        del report["descriptors"][fd]  # the connection to its child forkserver
    assert len(way) <= (how == "warm") and all(int(fd) > 200 for fd in way)
    # Threads of OpenBLAS, which a cold process starts with numpy. glibc's own two signals depend on
    # these and on how a process was started.
    report["threads"].pop("Threads")
    for key in ("SigCgt", "SigIgn"):
        report["signals"][key] = int(report["signals"][key], 16) & ~(3 << 31)
    return report


TELL = str(HERE / "tell.py")
COMMAND = f"import runpy; runpy.run_path({TELL!r}, run_name='__main__')"
CONDITIONS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "script": ([TELL, "a", "b c", "--flag", "\N{SNOWMAN}"], {}),
    "unbuffered": (["-u", TELL], {}),
    "module": (["-m", "tests.integration.warm.tell", "x"], {"cwd": str(HERE.parents[2])}),
    "command": (["-c", COMMAND, "-x", "y"], {}),
    "relative": (["./tell.py"], {"cwd": str(HERE)}),
    "input": ([TELL], {"stdin": "two\nlines\n"}),
    "umask": ([TELL], {"umask": 0o077}),
    "limits": ([TELL], {"files": 300}),
    "affinity": ([TELL], {"cpus": [0]}),
    "ignored": ([TELL], {"ignored": [signal.SIGHUP, signal.SIGINT, signal.SIGUSR1]}),
    "blocked": ([TELL], {"blocked": [signal.SIGUSR2]}),
    "inherited": ([TELL], {"extra_fds": [105, 109]}),
    "no_input": ([TELL], {"closed": [0]}),
    "no_output": ([TELL], {"closed": [1]}),
    "no_streams": ([TELL], {"closed": [0, 1, 2]}),
    "terminal": ([TELL], {"tty": True}),
    "same_group": ([TELL], {"own_group": False}),
    "zone": ([TELL], {"env": {"TZ": "Asia/Kathmandu"}}),
    "more_environment": ([TELL], {"env": {"A": "1=2", "EMPTY": "", "OMP_NUM_THREADS": "1"}}),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_what_a_program_sees_of_itself(warmed: Warmed, tmp_path: Path, name: str) -> None:
    words, task = CONDITIONS[name]
    cold = tell(warmed, "cold", words, tmp_path / "told", **task)
    warm = tell(warmed, "warm", words, tmp_path / "told", **task)
    for key in cold:
        assert warm[key] == cold[key], key


@pytest.mark.slow
def test_what_a_program_sees_of_itself_with_torch_behind_it(tmp_path: Path) -> None:
    modules = ["numpy", "torch", "torch._dynamo", "torch.distributed.run"]
    warmed = Warmed(tmp_path, [PYTHON, "x.py"], modules)
    try:
        cold = tell(warmed, "cold", [TELL], tmp_path / "told")
        warm = tell(warmed, "warm", [TELL], tmp_path / "told")
    finally:
        warmed.driver.close()
    for key in cold:
        assert warm[key] == cold[key], key


ENDINGS = {
    "end": "print('done')",
    "code": "import sys; sys.exit(7)",
    "none": "raise SystemExit",
    "text": "import sys; sys.exit('a reason')",
    "exception": "def f(x):\n    return 1 / x\n\n\nf(0)",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e",
    "group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "keyboard": "raise KeyboardInterrupt",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nimport time\n"
    "time.sleep(9)",
    "exit_now": "import os; print('lost'); os._exit(3)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "segfault": "import ctypes, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    "ctypes.string_at(0)",
    "aborted": "import os, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.abort()",
    "syntax": "def f(:\n    pass",
    "encoding": "# -*- coding: latin-1 -*-\nprint('x')",
    "atexit": "import atexit\natexit.register(print, 'first')\natexit.register(print, 'last')",
    "threads": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\nprint('main')",
    "daemon": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint('main')",
    "in_thread": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='t').start()",
    "unraisable": "class A:\n    def __del__(self):\n        1 / 0\nA()\nprint('on')",
    "hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0",
    "recursion": "def f():\n    f()\nf()",
    "warning": "import warnings\nwarnings.warn('w', stacklevel=1)\n"
    "warnings.warn('top', stacklevel=9)",
    "stack": "import traceback\ndef f():\n    traceback.print_stack()\nf()",
    "handler": "import signal, os, sys\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(9))\n"
    "os.kill(os.getpid(), signal.SIGTERM)\nimport time\ntime.sleep(9)",
    "unflushed": "import sys; sys.stdout.write('no newline')",
    "pickle": "import pickle\nclass A:\n    pass\n"
    "print(type(pickle.loads(pickle.dumps(A()))) is A, pickle.dumps(A)[:40])",
    "inspect": "import inspect\ndef f():\n    'doc'\n"
    "print(inspect.getsource(f), inspect.getfile(f))",
    "bad_output": "import sys; print('\\udc80')",
    "assertion": "x = [1, 2]\nassert len(x) == 3, x",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_how_a_program_ends(warmed: Warmed, tmp_path: Path, name: str) -> None:
    (tmp_path / "program.py").write_text(ENDINGS[name] + "\n", encoding="latin-1")
    cold, warm = warmed.both("program.py", cwd=str(tmp_path))
    # Addresses, and the depth at which recursion ends, which is two less.
    for answer in (cold, warm):
        answer["stderr"] = re.sub(r"0x\w+|repeated \d+ more", "", answer["stderr"])
    assert warm == cold


@pytest.mark.parametrize("name", ["exception", "keyboard", "text", "stack", "threads", "syntax"])
@pytest.mark.parametrize("kind", ["-c", "-m"])
def test_how_a_command_or_a_module_ends(
    warmed: Warmed, tmp_path: Path, kind: str, name: str
) -> None:
    (tmp_path / "program.py").write_text(ENDINGS[name] + "\n")
    words = [kind, ENDINGS[name] if kind == "-c" else "program", "more"]
    cold, warm = warmed.both(*words, cwd=str(tmp_path))
    assert warm == cold


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_children_of_a_warm_process(warmed: Warmed, tmp_path: Path, case: str) -> None:
    reports = []
    for how in ("cold", "warm"):
        out = tmp_path / "told"
        words = [str(HERE / "parent.py"), case]
        answer = warmed.run(how, *words, env={"TELL": str(out)}, cwd=str(tmp_path))
        assert answer["status"] == 0, answer["stderr"]
        report = json.loads(out.read_text())
        reports.append(comparable(report, how) if isinstance(report, dict) else {"": report})
    cold, warm = reports
    if case == "rank":  # its journal is open
        del cold["descriptors"], cold["signals"]
    for key in cold:
        assert warm[key] == cold[key], key


def test_nothing_is_left_of_what_waited_to_be_forked(tmp_path: Path) -> None:
    warm = Warmed(tmp_path, [PYTHON, "x.py"], MODULES)
    (tmp_path / "program.py").touch()
    warm.run("warm", "program.py", cwd=str(tmp_path))
    leftover = warm.driver.ask(how="close")["left"]
    warm.driver.close()
    assert leftover == []


WORDS = """
import os
from headway.launch import linux
linux.set_process_name("a name that is far too long")
linux.set_command_line(["one", "two words", ""], {"A": "1"})
read = lambda name: open(f"/proc/self/{name}").read()
print(repr(read("comm")), repr(read("cmdline")), repr(read("environ")))
pid = linux.hidden_fork()
if pid == 0:
    os._exit(0)
try:
    os.wait()
except ChildProcessError:
    print("hidden")
print(os.waitpid(pid, 0x40000000)[1])
"""


def test_words_and_a_hidden_child() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", WORDS], capture_output=True, text=True, timeout=60
    )
    assert completed.stdout.splitlines() == [
        r"'a name that is \n' 'one\x00two words\x00\x00' 'A=1\x00'",
        "hidden",
        "0",
    ]
