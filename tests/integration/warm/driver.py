"""A minimal launcher: starts commands cold or warm, each time under the same conditions.

It reads its tasks as JSON lines from the socket whose number is its first argument.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.launch import processes
from headway.launch.child_process import ChildSetup
from headway.launch.warm.booster import WarmStart


class Driver:
    def __init__(self, folder: str, command: list[str], env: dict[str, str]) -> None:
        self.notes: list[str] = []
        note = lambda text, code: self.notes.append(f"{text} [{code}]")  # noqa: E731
        self.warm = WarmStart(Path(folder), command, env, note)

    def prepare(self) -> dict[str, Any]:
        self.warm.prepare()
        self.warm.prepare()  # for a job of one process the second call starts the forkserver
        return {"ready": self.warm.ready(100), "pids": sorted(self.warm.pids())}

    def close(self) -> dict[str, Any]:
        """What remains of the forkserver and its idle children."""
        self.warm.close()
        table = processes.process_table()
        return {"left": [table[pid].state for pid in processes.descendants(os.getpid(), table)]}

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        """Run one command to its end."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            terminal = pty.openpty() if task.get("tty") else None
            with conditions(task, out.fileno(), err.fileno(), terminal):
                child = self.start(task)
            if child is None:
                return {"status": None}
            status = wait(child, task.get("seconds", 60))
            if terminal:
                os.set_blocking(terminal[0], False)
                with contextlib.suppress(OSError):
                    out.write(os.read(terminal[0], 1 << 16))
                os.close(terminal[0])
                os.close(terminal[1])
            return {"status": status, "pid": child.pid, **texts(out, err)}

    def start(self, task: dict[str, Any]) -> Any:
        command, env = task["command"], task["env"]
        if task["how"] == "cold":
            in_child = ChildSetup()
            in_child.own_group = task.get("own_group", True)
            return subprocess.Popen(command, env=env, preexec_fn=in_child, close_fds=False)
        return self.warm.spawn(
            command, env, own_group=task.get("own_group", True), pdeathsig=signal.SIGTERM
        )


def wait(child: Any, seconds: float) -> int | None:
    until = time.monotonic() + seconds
    while (status := child.poll()) is None:
        if time.monotonic() > until:
            os.kill(child.pid, signal.SIGKILL)
        time.sleep(0.002)
    return int(status)


def texts(out: Any, err: Any) -> dict[str, str]:
    texts_ = {}
    for name, file in (("stdout", out), ("stderr", err)):
        file.seek(0)
        texts_[name] = file.read().decode(errors="backslashreplace")
    return texts_


@contextlib.contextmanager
def conditions(
    task: dict[str, Any], out: int, err: int, terminal: tuple[int, int] | None
) -> Iterator[None]:
    """Change this process as the task requires for the parent, and restore it."""
    with contextlib.ExitStack() as back:
        source = os.memfd_create("stdin")
        os.write(source, task.get("stdin", "").encode())
        os.lseek(source, 0, os.SEEK_SET)
        back.callback(os.close, source)
        ends = [source, out, err] if terminal is None else [terminal[1]] * 3
        for fd, end in enumerate(ends):
            copy = os.dup(fd)
            back.callback(os.close, copy)
            back.callback(os.dup2, copy, fd)
            os.dup2(end, fd)
        for fd in task.get("closed", []):
            os.close(fd)
        for fd in task.get("extra_fds", []):
            os.dup2(2, fd)
            back.callback(os.close, fd)
        if "cwd" in task:
            back.callback(os.chdir, os.getcwd())
            os.chdir(task["cwd"])
        if "umask" in task:
            back.callback(os.umask, os.umask(task["umask"]))
        if "files" in task:
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            back.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
            resource.setrlimit(resource.RLIMIT_NOFILE, (task["files"], before[1]))
        if "cpus" in task:
            back.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, task["cpus"])
        for number in task.get("ignored", []):
            back.callback(signal.signal, number, signal.getsignal(number))
            signal.signal(number, signal.SIG_IGN)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, task.get("blocked", []))
        back.callback(signal.pthread_sigmask, signal.SIG_SETMASK, blocked)
        yield


def main() -> None:
    processes.adopt_orphans()  # as a launcher with restarts
    way = socket.socket(fileno=int(sys.argv[1]))
    way.set_inheritable(False)
    lines = way.makefile("rw")
    hello = json.loads(lines.readline())
    driver = Driver(hello["folder"], hello["command"], hello["env"])
    for line in lines:
        task = json.loads(line)
        driver.notes.clear()
        own = {"prepare": driver.prepare, "close": driver.close}.get(task["how"])
        answer = own() if own else driver.run(task)
        lines.write(json.dumps({**answer, "notes": driver.notes}) + "\n")
        lines.flush()
    driver.warm.close()


if __name__ == "__main__":
    main()
