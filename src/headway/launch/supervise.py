"""Starts the command, passes signals on, waits for its end."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import headway
from headway import probe
from headway.errors import UsageError
from headway.journal.writer import Writer, head, now
from headway.launch import signals, together
from headway.launch.target import Target
from headway.launch.watch import Watch

BOOT = Path(headway.__file__).parent / "probe" / "boot"


def check(command: Sequence[str]) -> None:
    """One sentence for a command that cannot be started, before anything is made for it."""
    if shutil.which(command[0]):
        return
    if os.path.exists(command[0]):
        raise UsageError(f"{command[0]} cannot be executed; try `python {command[0]}`")
    raise UsageError(f"the command {command[0]} was not found; check its name and your PATH")


def supervise(command: Sequence[str], target: Target) -> int:
    """Run the command to its end; returns its status: negative for a death by signal."""
    name = f"launcher-{target.launch}-{os.uname().nodename}-{os.getpid()}.jsonl"
    writer = Writer(str(target.journal / name), os.getpid())
    first = head("launcher", launch=target.launch, index=target.index)
    first |= {**_scheduler(os.environ), "fs": writer.file_clock()}
    writer.write(first)
    child = _spawn(command, target, writer)
    watch = Watch(target.journal, writer)
    watch.start()
    status = _wait(child, watch, writer)
    ended = now()
    watch.finish()
    writer.write({"ev": "exit", "t": ended, "code": status})
    writer.close()
    together.leave(target.journal, target.launch)
    return status


def environment(target: Target, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the command gets: ours first on PYTHONPATH, and where to write."""
    path = [str(BOOT), *filter(None, [env.get("PYTHONPATH")])]
    return {
        **env,
        "PYTHONPATH": os.pathsep.join(path),
        "HEADWAY_RUN": target.run,
        probe.ENV_FOLDER: str(target.journal.resolve()),
        probe.ENV_LAUNCH: target.launch,
    }


def _spawn(command: Sequence[str], target: Target, writer: Writer) -> subprocess.Popen[bytes]:
    started = now()
    env, in_child = environment(target), signals.Child()
    try:
        child = subprocess.Popen(command, env=env, preexec_fn=in_child, close_fds=False)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script without a first line that names its shell: the shell itself would run it so.
        child = subprocess.Popen(
            ["/bin/sh", *command], env=env, preexec_fn=in_child, close_fds=False
        )
    writer.write({"ev": "spawn", "t": started, "pid": child.pid, "command": list(command)})
    return child


def _wait(child: subprocess.Popen[bytes], watch: Watch, writer: Writer) -> int:
    """Until the command ends; signals that come meanwhile are noted and passed on."""
    while True:
        status = child.poll()
        if status is not None:
            return status
        taken = signals.take(1.0)
        if taken is None:
            continue
        number, sender, has_it = taken
        if number in signals.STOPPING:
            writer.write({"ev": "signal", "t": now(), "signal": int(number), "from": sender})
        if not has_it:
            signals.pass_on(number, child.pid, watch.recording())


def _scheduler(env: Mapping[str, str]) -> dict[str, object]:
    """What a scheduler tells of this launch: when the resources came, when they were asked for."""
    found: dict[str, object] = {}
    sources = {
        "allocated": ("HEADWAY_ALLOCATED_AT", "SLURM_JOB_START_TIME"),
        "queued": ("HEADWAY_QUEUED_AT",),
    }
    for key, names in sources.items():
        for name in names:
            text = env.get(name, "")
            if text.replace(".", "", 1).isdecimal():
                found.setdefault(key, int(float(text) * 1e9))
    for key, name in (("scheduler_job", "SLURM_JOB_ID"), ("requeues", "SLURM_RESTART_COUNT")):
        if env.get(name):
            found[key] = env[name]
    return found
