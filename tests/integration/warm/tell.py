"""Prints everything that a program can observe about itself."""

import gc
import json
import locale
import os
import resource
import signal
import sys
import threading
import time


def read(path):
    with open(path, "rb") as file:
        return file.read().decode(errors="backslashreplace")


def stream(name):
    stream_ = getattr(sys, name)
    if stream_ is None:
        return None
    assert stream_ is getattr(sys, f"__{name}__")
    return {
        "encoding": stream_.encoding,
        "errors": stream_.errors,
        "line_buffering": stream_.line_buffering,
        "write_through": stream_.write_through,
        "name": stream_.name,
        "mode": stream_.mode,
        "buffer": type(stream_.buffer).__name__,
        "raw": repr(getattr(stream_.buffer, "raw", stream_.buffer)),
        "isatty": stream_.isatty(),
        "fileno": stream_.fileno(),
        "newlines": stream_.newlines,
    }


def descriptors():
    result = {}
    for entry in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        kind = "unnamed" if target.endswith("(deleted)") else target.split(":")[0]
        result[entry] = kind, os.get_inheritable(int(entry))
    return result


def main_module():
    content = vars(sys.modules["__main__"])
    shown = {key: repr(value) for key, value in content.items() if key.startswith("__")}
    shown["__builtins__"] = type(content["__builtins__"]).__name__
    shown["__loader__"] = type(content["__loader__"]).__name__
    shown["__spec__"] = getattr(content["__spec__"], "name", None)
    return shown


def frames():
    frame, names = sys._getframe(), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def status(*keys):
    lines = [line.partition(":") for line in read("/proc/self/status").splitlines()]
    return {key: value.strip() for key, _, value in lines if key in keys}


def facts():
    mask = os.umask(0)
    os.umask(mask)
    pid, parent = os.getpid(), os.getppid()
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "cmdline": read("/proc/self/cmdline"),
        "comm": read("/proc/self/comm"),
        "exe": os.readlink("/proc/self/exe"),
        "proc_environ": sorted(read("/proc/self/environ").split("\0")),
        "environ": list(os.environ.items()),
        "cwd": os.getcwd(),
        "executable": sys.executable,
        "prefixes": [sys.prefix, sys.base_prefix, sys.exec_prefix],
        "path": sys.path,
        "flags": str(sys.flags),
        "options": [sys.warnoptions, sys._xoptions],
        "main": main_module(),
        "frames": frames(),
        "descriptors": descriptors(),
        "stdin": stream("stdin"),
        "stdout": stream("stdout"),
        "stderr": stream("stderr"),
        "input": sys.stdin.read() if sys.stdin and not sys.stdin.isatty() else None,
        "umask": mask,
        "limits": [resource.getrlimit(n) for n in range(16)],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "scheduler": [os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
        "handlers": {int(n): str(signal.getsignal(n)) for n in signal.valid_signals()},
        "signals": status("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd"),
        "threads": status("Threads", "Uid", "Gid", "Groups", "NoNewPrivs", "CapEff", "Seccomp"),
        "group": [os.getpgrp() == pid, os.getpgrp() == os.getpgid(parent)],
        "session": [os.getsid(0) == pid, os.getsid(0) == os.getsid(parent)],
        "main_thread": threading.current_thread() is threading.main_thread(),
        "thread": [threading.main_thread().native_id == pid, threading.active_count()],
        "gc": [gc.isenabled(), gc.get_threshold(), gc.garbage],
        "limits_of_python": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False)],
        "zone": time.tzname,
        "cpu_time_is_new": time.process_time() < 5,
        "parent": os.getppid() == int(os.environ.get("PARENT", os.getppid())),
        "loaded": "numpy" in sys.modules,
        "finders": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
    }


if __name__ == "__main__":
    found = facts()
    with open(os.environ["TELL"], "w") as out:
        json.dump(found, out)
