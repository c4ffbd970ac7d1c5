"""Requests for a process: the command, all that a child inherits from its parent, and the messages.

Messages carry descriptors, over plain descriptor numbers. No socket object remains in a process
that is forked: one that is collected later would close a number that by then belongs to a file of
the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headway.launch import linux
from headway.launch.warm.interpreter_command import ColdStartRequired, Invocation

MAX_DESCRIPTORS = 250  # descriptors that one message can carry, in addition to three of its own


def socket_pair() -> tuple[int, int]:
    """Two connected sockets that preserve message boundaries."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return first.detach(), second.detach()


def send_message(fd: int, message: bytes, handles: Sequence[int] = ()) -> None:
    """Raises OSError if the other end is closed."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=fd)
    try:
        socket.send_fds(end, [message], list(handles), socket.MSG_NOSIGNAL)
    finally:
        end.detach()


def receive_message(fd: int, seconds: float | None = None) -> tuple[bytes, list[int]]:
    """The next message and its descriptors; empty if the other end is closed.

    Raises TimeoutError if nothing arrives in time.
    """
    if seconds is not None and not is_readable(fd, seconds):
        raise TimeoutError
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=fd)
    try:
        message, handles, _, _ = socket.recv_fds(end, 1 << 20, MAX_DESCRIPTORS + 3)
    except ConnectionError:
        return b"", []
    finally:
        end.detach()
    return message, handles


def receive_last(fd: int) -> bytes:
    """A message that has already arrived, else empty; afterwards the other end cannot send."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=fd)
    try:
        end.shutdown(socket.SHUT_RD)
        return end.recv(1 << 20, socket.MSG_DONTWAIT)
    except OSError:
        return b""
    finally:
        end.detach()


def send_large(fd: int, content: dict[str, Any]) -> None:
    """Send JSON in shared memory, as a message is limited to the size of a buffer."""
    memory = os.memfd_create("headway", os.MFD_CLOEXEC)
    try:
        os.write(memory, json.dumps(content).encode())
        send_message(fd, b"large", [memory])
    finally:
        os.close(memory)


def receive_large(fd: int, seconds: float | None = None) -> dict[str, Any]:
    """What `send_large` sent; empty if the other end is closed."""
    _, handles = receive_message(fd, seconds)
    return read_large(handles[0]) if handles else {}


def read_large(memory: int) -> dict[str, Any]:
    """The content of such memory; closes it."""
    with open(memory, "rb") as file:
        file.seek(0)
        content: dict[str, Any] = json.loads(file.read())
    return content


def is_readable(fd: int, seconds: float) -> bool:
    """Whether a message, or the end of the connection, arrives within that time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(seconds, 0.0) * 1000))


class SocketEnd:
    """A long-lived socket in a process whose job may close any descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._identity = _fd_identity(fd)

    def usable(self) -> bool:
        """Whether the descriptor still refers to this socket."""
        try:
            return _fd_identity(self.fd) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        """Close it, unless the number now refers to something else."""
        if self.usable():
            os.close(self.fd)


def _fd_identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


REPLY_S = 10.0  # a forkserver that takes longer is not worth waiting for


@dataclass(frozen=True, kw_only=True)
class SpawnRequest:
    """What the child should be."""

    invocation: Invocation
    env: dict[str, str]
    parent: int
    death_signal: int = 0  # the signal that it gets when its parent dies
    new_session: bool = False
    group: int | None = None  # 0: its own
    fds: list[int] = field(default_factory=list)  # the numbers of its open descriptors
    umask: int = 0o022
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    nice: int = 0
    affinity: list[int] = field(default_factory=list)
    scheduler: tuple[int, int] = (0, 0)
    ignored: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)

    @classmethod
    def decode(cls, text: bytes) -> SpawnRequest:
        """The request that `encode` encoded."""
        raw: dict[str, Any] = json.loads(text)
        invocation = raw.pop("invocation")
        invocation["argv"], invocation["args"] = (
            tuple(invocation["argv"]),
            tuple(invocation["args"]),
        )
        invocation["options"] = tuple((letter, value) for letter, value in invocation["options"])
        return cls(invocation=Invocation(**invocation), **raw)

    def encode(self) -> bytes:
        """As JSON, since the forkserver may run another version of Python."""
        return json.dumps(asdict(self)).encode()


def request_from_this_process(
    invocation: Invocation,
    env: Mapping[str, str],
    *,
    umask: int | None = None,
    restore_signals: bool = True,
    **fields: Any,
) -> SpawnRequest:
    """A request for a child of this process."""
    facts = linux.process_status()
    ignored = set(linux.ignored_signals(facts))
    if restore_signals:  # as subprocess does; the interpreter then ignores them again
        ignored -= {signal.SIGPIPE, signal.SIGXFSZ}
    inherited: dict[str, Any] = {
        "parent": os.getpid(),
        "umask": int(facts["Umask"], 8) if umask is None else umask,
        "limits": linux.resource_limits(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "scheduler": (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
        "ignored": sorted(ignored),
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "group": os.getpgrp(),
    }
    return SpawnRequest(invocation=invocation, env=dict(env), **{**inherited, **fields})


def inheritable_descriptors() -> list[int]:
    """The descriptors that a child inherits."""
    descriptors = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing is closed
            if os.get_inheritable(int(entry)):
                descriptors.append(int(entry))
    return sorted(descriptors)


@contextlib.contextmanager
def open_folder(path: str | bytes | None) -> Iterator[int]:
    """A descriptor of the child's working directory."""
    try:
        fd = os.open(path or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ColdStartRequired(f"{path!r}: {error.strerror}", code="folder-unusable") from None
    try:
        yield fd
    finally:
        os.close(fd)


def request_process(forkserver: int, request: SpawnRequest, cwd: int, fds: Sequence[int]) -> int:
    """Have the process forked; returns its pid when it is a child of this process.

    `fds` are the descriptors that become `request.fds` in the child.
    """
    if len(fds) > MAX_DESCRIPTORS:
        raise ColdStartRequired(
            f"{len(fds)} open files would be inherited", code="too-many-open-files"
        )
    payload = os.memfd_create("headway-request", os.MFD_CLOEXEC)
    parent_end, child_end = socket_pair()
    try:
        os.write(payload, request.encode())
        with linux.SubreaperScope():
            try:
                send_message(forkserver, b"spawn", [payload, child_end, cwd, *fds])
            finally:
                os.close(child_end)
            try:
                answer, _ = receive_message(parent_end, REPLY_S)
            except (
                TimeoutError
            ):  # a child that replies from now on finds the socket closed, and ends
                answer = receive_last(parent_end)
                if not answer:
                    raise ColdStartRequired(
                        "the forkserver does not answer", code="zygote-silent"
                    ) from None
    except OSError:
        raise ColdStartRequired("the forkserver has ended", code="zygote-gone") from None
    finally:
        os.close(parent_end)
        os.close(payload)
    pid, _, fault = answer.decode().partition(" ")
    if not pid:
        raise ColdStartRequired("the forkserver has ended", code="zygote-gone")
    if fault:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(int(pid), 0)
        raise ColdStartRequired(fault, code="zygote-refused")
    return int(pid)


@dataclass
class ReceivedRequest:
    """A request at the receiving end, with its descriptors."""

    request: SpawnRequest
    reply: int
    cwd: int
    fds: list[int]
    # Connection to its child forkserver, if there is one already.
    child_forkserver: int | None = None


def unpack_request(handles: Sequence[int]) -> ReceivedRequest:
    """The request that came with these descriptors."""
    payload, reply, cwd, *fds = handles
    with open(payload, "rb") as file:
        file.seek(0)
        request = SpawnRequest.decode(file.read())
    return ReceivedRequest(request, reply, cwd, fds)
