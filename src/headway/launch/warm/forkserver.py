"""The forkserver: imports once, and forks every process of the job that is requested.

`main` is called in the last part of an interpreter's start. In the forkserver itself it never
returns; in a process that it has forked it returns when that process is ready to run its program.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from headway.launch import linux
from headway.launch.warm import fork_pool, run_main, spawn_hook, spawn_request
from headway.launch.warm.child_setup import InterpreterBaseline, become_command
from headway.launch.warm.client import IMPORT_ENV
from headway.launch.warm.compatibility import Compatibility
from headway.launch.warm.preload import Preloader
from headway.launch.warm.spawn_request import ReceivedRequest


def main(fresh: set[str]) -> None:
    """Run the forkserver; returns in a forked child, with the command set up.

    `fresh` are the modules that every interpreter of the job loads at its start.
    """
    baseline = InterpreterBaseline(fresh)
    launcher = int(sys.orig_argv[-1])
    hello = spawn_request.receive_large(launcher)
    if not hello:
        os._exit(0)
    if hello["with_launcher"]:
        linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != hello["launcher"]:
        os._exit(0)
    spawn_hook.detach_from_job("headway-zygote", {launcher, 2})
    compatibility = _prepare(hello, baseline, launcher)
    workers: int = hello["workers"]
    while_idle = (
        (lambda: spawn_hook.fork_child_forkserver(workers))
        if "RANK" not in hello["env"]
        else (lambda: None)
    )
    received: ReceivedRequest | None = fork_pool.serve(launcher, 1, while_idle)
    while received is not None:
        received = _start_child(received, compatibility, baseline, workers)


def _prepare(hello: dict[str, Any], baseline: InterpreterBaseline, launcher: int) -> Compatibility:
    """Import the modules and report to the launcher; exits if this process cannot be forked."""
    os.environ.pop("PYTHONPATH", None)
    for key, value in {**hello["env"], **hello["preset"], **IMPORT_ENV}.items():
        if os.environ.get(key) != value:
            os.environ[key] = value
    _suspend_probe(hello["preset"])
    preloader = Preloader(hello["left_out"], hello["good"])
    with _low_priority(hello["nice"]):
        preloader.load(hello["modules"], ranked=hello["ranked"])
    remove_rendezvous_skew()
    sys.stdout.flush()
    sys.stderr.flush()
    # Else each child would print the buffered output of C code again.
    ctypes.CDLL(None).fflush(None)
    compatibility = Compatibility(
        executable=hello["executable"],
        options=[(letter, value) for letter, value in hello["options"]],
        flags={name: int(getattr(sys.flags, name)) for name in _flag_names()},
        warnings=list(sys.warnoptions),
        env=hello["env"],
        preset=hello["preset"],
        reads=sorted(preloader.reads.names),
        modules=sorted({name.partition(".")[0] for name in sys.modules} - baseline.modules),
        mains=hello["mains"],
    )
    gc.collect()
    gc.freeze()
    report = {
        "fault": preloader.fault,
        "kit": asdict(compatibility),
        "left_out": preloader.left_out,
        "good": sorted(preloader.good),
        "seconds": sum(os.times()[:4]),  # CPU time, as the machine may be busy
    }
    try:
        spawn_request.send_large(launcher, report)
    except OSError:
        os._exit(0)
    if preloader.fault:
        os._exit(0)
    return compatibility


def _flag_names() -> list[str]:
    return list(type(sys.flags).__match_args__)


@contextlib.contextmanager
def _low_priority(nice: int) -> Any:
    """Lower the priority during the imports, if it can be restored."""
    previous = os.getpriority(os.PRIO_PROCESS, 0)
    if nice and _can_restore_priority(previous, previous + nice):
        os.setpriority(os.PRIO_PROCESS, 0, previous + nice)
    yield
    if os.getpriority(os.PRIO_PROCESS, 0) != previous:
        os.setpriority(os.PRIO_PROCESS, 0, previous)


def _can_restore_priority(high: int, low: int) -> bool:
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.setpriority(os.PRIO_PROCESS, 0, low)
            os.setpriority(os.PRIO_PROCESS, 0, high)
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _suspend_probe(preset: dict[str, str]) -> None:
    """The forkserver itself records nothing."""
    if "headway.probe.import_hook" in sys.modules:
        from headway.probe import import_log
        from headway.probe.recorder import recorder

        import_log.adopt_settings(preset)
        recorder.suspend()


def _start_child(
    received: ReceivedRequest,
    compatibility: Compatibility,
    baseline: InterpreterBaseline,
    workers: int,
) -> ReceivedRequest | None:
    """Set up a new process; None when it is ready for its program.

    Returns a request in a process that its child forkserver has forked.
    """
    started = time.monotonic_ns()
    request = received.request
    needs_server = spawn_hook.needs_child_forkserver(request.env, request.invocation.argv)
    if received.child_forkserver is not None and (request.new_session or not needs_server):
        # A child forkserver must be in the session of its process.
        os.close(received.child_forkserver)
        received.child_forkserver = None
    try:
        fork_pool.take_over_process_state(received)
    except (OSError, ValueError) as error:
        fork_pool.send_reply(received, f"{type(error).__name__}: {error}")
        os._exit(1)
    fork_pool.send_reply(received)
    try:
        if needs_server:
            inner = _connect_child_forkserver(received, compatibility, workers)
            if inner is not None:
                return inner
        become_command(request, baseline, compatibility.env)
        _resume_probe(started)
        run_main.run_as_main(request.invocation)
    except Exception:
        _start_cold(received)
    return None


def _connect_child_forkserver(
    received: ReceivedRequest, compatibility: Compatibility, workers: int
) -> ReceivedRequest | None:
    socket_fd = received.child_forkserver
    if socket_fd is None:
        forked = spawn_hook.fork_child_forkserver(workers)
        if isinstance(forked, ReceivedRequest):
            return forked
        above = max([2, *received.request.fds]) + 1
        socket_fd = fork_pool.move_descriptor_up(forked, above, received.request.limits)
        os.close(forked)
    spawn_hook.SpawnHook(spawn_request.SocketEnd(socket_fd), compatibility).install()
    return None


def _resume_probe(started: int) -> None:
    import_hook = sys.modules.get("headway.probe.import_hook")
    if import_hook is not None:
        import_hook.reset_after_warm_fork(started)


def _start_cold(received: ReceivedRequest) -> None:
    """Execute the command in this process after an internal error."""
    request = received.request
    if request.env.get("HEADWAY_STRICT"):
        import traceback

        traceback.print_exc(file=sys.__stderr__)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.mask)
    os.execve(request.invocation.executable, list(request.invocation.argv), request.env)


RENDEZVOUS_MODULE = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"


def remove_rendezvous_skew() -> None:
    """Remove torchrun's random wait before a rendezvous on one node, in versions that are known."""
    module: Any = sys.modules.get(RENDEZVOUS_MODULE)
    handler = getattr(module, "DynamicRendezvousHandler", None)
    if handler is None or not hasattr(module, "_delay"):
        return
    original: Callable[[Any], Any] = handler.next_rendezvous
    delay: Callable[[Any], None] = module._delay

    def without_skew(seconds: Any) -> None:
        if not isinstance(seconds, tuple):  # a skew is a range
            delay(seconds)

    @functools.wraps(original)
    def next_rendezvous(self: Any) -> Any:
        if getattr(getattr(self, "_settings", None), "max_nodes", 0) != 1:
            return original(self)
        module._delay = without_skew
        try:
            return original(self)
        finally:
            module._delay = delay

    handler.next_rendezvous = next_rendezvous
