"""Fork processes that become children of whoever requested them, and keep idle ones ready.

A process is forked twice: when the intermediate process ends, the kernel gives the new one to the
nearest ancestor that adopts orphans, which is the requester while it waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from headway.launch import linux
from headway.launch.warm import spawn_request
from headway.launch.warm.spawn_request import ReceivedRequest

ADOPTED_S = 5.0
HIGH_FD, FD_ROOM = 1000, 20  # the number of the forkserver connection in a child


class IdleChild:
    """A forked process that waits for its request."""

    def __init__(self, intermediate: int, socket_fd: int) -> None:
        self.intermediate_pid = intermediate
        self.socket_fd = socket_fd

    def hand_over(self, handles: Sequence[int]) -> bool:
        """Pass the request on; False if the process has ended."""
        try:
            spawn_request.send_message(self.socket_fd, b"spawn", handles)
        except OSError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.intermediate_pid, signal.SIGKILL)
            return False
        finally:
            os.close(self.socket_fd)
        return True


def fork_idle_child(
    while_idle: Callable[[], int | ReceivedRequest | None],
) -> IdleChild | ReceivedRequest:
    """Fork a process; returns an IdleChild here, and the request in the new process.

    There, `while_idle` is called before the wait: it returns the connection to a child forkserver,
    or, in a process that this child forkserver has forked, its request.
    """
    parent_end, child_end = spawn_request.socket_pair()
    server = os.getpid()
    intermediate = os.fork()
    if intermediate:
        os.close(child_end)
        return IdleChild(intermediate, parent_end)
    os.close(parent_end)
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != server:
        os._exit(0)
    parent = os.getpid()
    if os.fork():
        _sleep_forever()
    return _await_request(parent, child_end, while_idle)


def _sleep_forever() -> NoReturn:
    """The intermediate process only has to end; exec frees its memory, which makes that fast."""
    with contextlib.suppress(OSError):
        os.execv("/bin/sleep", ["sleep", "2147483647"])
    while True:
        signal.pause()


def _await_request(
    intermediate: int, socket_fd: int, while_idle: Callable[[], int | ReceivedRequest | None]
) -> ReceivedRequest:
    """In the new process: wait for the request, then for the new parent."""
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != intermediate:
        os._exit(0)
    child_forkserver = while_idle()
    if isinstance(child_forkserver, ReceivedRequest):
        return child_forkserver
    message, handles = spawn_request.receive_message(socket_fd)
    if not message:
        os._exit(0)
    os.close(socket_fd)
    received = spawn_request.unpack_request(handles)
    received.child_forkserver = child_forkserver
    linux.die_with_parent(0)
    os.kill(intermediate, signal.SIGKILL)
    _await_parent(received.request.parent, intermediate)
    linux.die_with_parent(received.request.death_signal)
    if os.getppid() != received.request.parent:
        os._exit(0)
    return received


def _await_parent(parent_pid: int, intermediate: int) -> None:
    until = time.monotonic() + ADOPTED_S
    while (parent := os.getppid()) != parent_pid:
        if parent != intermediate or time.monotonic() > until:
            os._exit(0)  # the requester has died
        time.sleep(0.00005)


def take_over_process_state(received: ReceivedRequest) -> None:
    """Apply what the kernel keeps for a process."""
    request = received.request
    if request.new_session:
        os.setsid()
    elif request.group is not None:
        os.setpgid(0, request.group)
    os.fchdir(received.cwd)
    os.umask(request.umask)
    if os.sched_getaffinity(0) != set(request.affinity):
        os.sched_setaffinity(0, request.affinity)
    policy, priority = request.scheduler
    if (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) != (policy, priority):
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    if os.getpriority(os.PRIO_PROCESS, 0) != request.nice:
        os.setpriority(os.PRIO_PROCESS, 0, request.nice)
    _put_descriptors(received)
    for name, values in linux.resource_limits().items():
        soft, hard = request.limits.get(name, values)
        if (soft, hard) != values:
            resource.setrlimit(getattr(resource, name), (soft, hard))


def _put_descriptors(received: ReceivedRequest) -> None:
    """Exactly the requested descriptors, under their numbers, and the one for the reply."""
    numbers = received.request.fds
    above = max([2, *numbers]) + 1

    def lifted(fd: int) -> int:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above)

    received.reply = lifted(received.reply)
    sources = [lifted(fd) for fd in received.fds]
    keep = {received.reply, *sources}
    if received.child_forkserver is not None:
        received.child_forkserver = move_descriptor_up(
            received.child_forkserver, above, received.request.limits
        )
        keep.add(received.child_forkserver)
    close_all_but(keep)
    for source, fd in zip(sources, numbers, strict=True):
        os.dup2(source, fd)
        os.close(source)


def move_descriptor_up(fd: int, above: int, limits: Mapping[str, Sequence[int]]) -> int:
    """Move a descriptor to a number that programs do not use."""
    own_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    soft = min(n if n >= 0 else 1 << 20 for n in (own_limit, limits["RLIMIT_NOFILE"][0]))
    high = HIGH_FD if soft > HIGH_FD + FD_ROOM else soft - FD_ROOM
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(above, high))


def close_all_but(keep: set[int]) -> None:
    """Close descriptors of the forkserver and of other requests."""
    for fd in linux.open_descriptors():
        if fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)


def send_reply(received: ReceivedRequest, fault: str = "") -> None:
    """Send the pid to the requester, with an error if there is one."""
    reply = f"{os.getpid()} {fault}" if fault else str(os.getpid())
    try:
        spawn_request.send_message(received.reply, reply.encode())
    except OSError:
        os._exit(0)  # the requester no longer waits
    os.close(received.reply)


REFILL_DELAY_S = 2.0  # a new process needs the CPUs more than the next idle child does


def serve(
    requester: int,
    idle_count: int,
    while_idle: Callable[[], int | ReceivedRequest | None] = lambda: None,
) -> ReceivedRequest:
    """Serve requests; returns only in forked processes, with their request.

    `while_idle` is called in an idle child while it waits.
    """
    idle: list[IdleChild] = []
    delay = 0.0
    while True:
        received: ReceivedRequest | None = None
        if len(idle) < idle_count and not spawn_request.is_readable(requester, delay):
            received = _add_idle_child(idle, while_idle)
        else:
            delay = REFILL_DELAY_S
            message, handles = spawn_request.receive_message(requester)
            if not message:
                os._exit(0)  # the requester has died; idle children end with this process
            if not idle:
                received = _add_idle_child(idle, while_idle)
            if received is None:
                _hand_out(idle, handles)
                for fd in handles:
                    os.close(fd)
                _reap_children()
        if received is not None:
            return received


def _hand_out(idle: list[IdleChild], handles: list[int]) -> None:
    """Pass the request to the first living idle child; without one, the reply socket closes."""
    while idle:
        if idle.pop(0).hand_over(handles):
            return


def _add_idle_child(
    idle: list[IdleChild], while_idle: Callable[[], int | ReceivedRequest | None]
) -> ReceivedRequest | None:
    forked = fork_idle_child(while_idle)
    if isinstance(forked, ReceivedRequest):
        return forked
    idle.append(forked)
    return None


def _reap_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
