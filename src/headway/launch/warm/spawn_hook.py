"""Warm starts below a warm process: torchrun's workers, children of mp.spawn.

A process that may start others has a child forkserver: a child that is forked before the program
starts, and forks for it. `subprocess` and `multiprocessing` both start processes by one C function;
its replacement here asks the child forkserver if the command can be forked, and calls the original
if not.
"""

from __future__ import annotations

import _posixsubprocess
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from headway.launch import linux
from headway.launch.warm import fork_pool, spawn_request
from headway.launch.warm.compatibility import Compatibility
from headway.launch.warm.interpreter_command import ColdStartRequired, Invocation, read_command
from headway.launch.warm.spawn_request import ReceivedRequest

COMMON_ARGUMENTS = (
    "args", "executables", "close_fds", "pass_fds", "cwd", "env", "p2cread", "p2cwrite", "c2pread",
    "c2pwrite", "errread", "errwrite", "errpipe_read", "errpipe_write", "restore_signals",
    "start_new_session",
)  # fmt: skip
USER_ARGUMENTS = ("gid", "groups", "uid", "umask", "preexec_fn")
COMPILE_WORKER = "/torch/_inductor/compile_worker/"  # has an environment of its own
FORK_EXEC_SIGNATURES = {
    21: (*COMMON_ARGUMENTS, *USER_ARGUMENTS),
    23: (*COMMON_ARGUMENTS, "process_group", *USER_ARGUMENTS, "allow_vfork"),
}


def needs_child_forkserver(env: dict[str, str], argv: Sequence[str]) -> bool:
    """Whether it may start processes that profit; ranks and multiprocessing helpers do not."""
    return "RANK" not in env and "--multiprocessing-fork" not in argv


def fork_child_forkserver(idle_count: int) -> int | ReceivedRequest:
    """Fork the child forkserver of this process.

    Returns the connection to it; in processes that it forks later, their request.
    """
    parent_end, child_end = spawn_request.socket_pair()
    parent = os.getpid()
    if linux.hidden_fork() == 0:
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        detach_from_job("headway-nest", {child_end})
        return fork_pool.serve(child_end, idle_count)
    os.close(child_end)
    return parent_end


def detach_from_job(name: str, keep: set[int]) -> None:
    """Detach from the job's signals, files and terminal, for a process that only forks."""
    linux.set_process_name(name)
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    fork_pool.close_all_but(keep)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        if fd not in keep and fd != null:
            os.dup2(null, fd)
    if null > 2:
        os.close(null)


class SpawnHook:
    """Replaces `_posixsubprocess.fork_exec`."""

    def __init__(
        self, child_forkserver: spawn_request.SocketEnd, compatibility: Compatibility
    ) -> None:
        self.child_forkserver = child_forkserver
        self.compatibility = compatibility
        self.inherited_limits = linux.inherited_limits()
        self.session = os.getsid(0)
        self.original: Callable[..., int] = _posixsubprocess.fork_exec
        self.lock = threading.Lock()
        self.noted: set[str] = set()

    def install(self) -> None:
        """subprocess and multiprocessing both look the function up at each call."""
        self._set_fork_exec(self)
        # posix_spawn would bypass it, with the same effect.
        setattr(subprocess, "_USE_POSIX_SPAWN", False)  # noqa: B010
        os.register_at_fork(after_in_child=self._uninstall)

    def _set_fork_exec(self, function: Callable[..., int]) -> None:
        _posixsubprocess.fork_exec = function
        if hasattr(subprocess, "_fork_exec"):
            subprocess._fork_exec = function

    def _uninstall(self) -> None:
        """A forked child cannot use its parent's child forkserver: it starts processes cold."""
        self._set_fork_exec(self.original)
        self.child_forkserver.close()

    def __call__(self, *args: Any) -> int:
        """Start a process, warm or cold; returns its pid."""
        if self.lock.acquire(blocking=False):
            try:
                return self._warm(args)
            except ColdStartRequired as reason:
                self._note(str(reason), code=reason.code)
            except Exception as error:
                self._note(f"{type(error).__name__}: {error}", code="started-cold")
            finally:
                self.lock.release()
        return self.original(*args)

    def _note(self, reason: str, *, code: str) -> None:
        recorder = getattr(sys.modules.get("headway.probe.recorder"), "recorder", None)
        if recorder is not None and reason and reason not in self.noted:
            self.noted.add(reason)
            recorder.note("warm", f"a process was started cold: {reason}", code)

    def _warm(self, args: Sequence[Any]) -> int:
        names = FORK_EXEC_SIGNATURES.get(len(args))
        if names is None or not self.child_forkserver.usable():
            raise ColdStartRequired("")
        call = dict(zip(names, args, strict=True))
        env = _environment(call["env"])
        invocation = _read_invocation(call, env)
        cwd = os.fsdecode(call["cwd"]) if call["cwd"] else os.getcwd()
        try:
            if any(call[key] is not None for key in ("gid", "groups", "uid", "preexec_fn")):
                raise ColdStartRequired(
                    "it changes its user or runs a function before exec",
                    code="user-or-hook-differs",
                )
            self.compatibility.check(invocation, env, cwd)
        except ColdStartRequired as reason:
            # Only for programs of the job; helper processes of libraries are not worth a note.
            is_job_program = (
                invocation.kind != "command" and COMPILE_WORKER not in invocation.program
            )
            text = f"{invocation.program}: {reason}" if is_job_program else ""
            raise ColdStartRequired(text, code=reason.code, **reason.fields) from None
        if linux.inherited_limits() != self.inherited_limits:
            raise ColdStartRequired(
                "this process has changed its user, its limits or its namespaces",
                code="bonds-differ",
            )
        if os.getsid(0) != self.session and not call["start_new_session"]:
            raise ColdStartRequired("this process has left its session", code="session-left")
        mapping = _descriptors(call)
        group = call.get("process_group", -1)
        with _signals_blocked() as mask:
            request = spawn_request.request_from_this_process(
                invocation,
                env,
                umask=call["umask"] if call["umask"] >= 0 else None,
                restore_signals=bool(call["restore_signals"]),
                # A rank ends with its agent; other processes may outlive their parent, as usual.
                death_signal=signal.SIGKILL if "RANK" in env else 0,
                new_session=bool(call["start_new_session"]),
                group=os.getpgrp() if group < 0 else group,
                fds=list(mapping),
                mask=mask,
            )
            with spawn_request.open_folder(call["cwd"]) as folder:
                return spawn_request.request_process(
                    self.child_forkserver.fd, request, folder, list(mapping.values())
                )


def _read_invocation(call: dict[str, Any], env: dict[str, str]) -> Invocation:
    """The command to start; commands that are not Python programs need no note."""
    argv = [os.fsdecode(word) for word in call["args"]]
    try:
        return read_command(_executable(call["executables"]), argv, env.get("PATH"))
    except ColdStartRequired:
        raise ColdStartRequired("") from None


def _environment(entries: Sequence[bytes] | None) -> dict[str, str]:
    if entries is None:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    return {key: value for key, _, value in pairs}


def _executable(candidates: Sequence[bytes]) -> str:
    """The first candidate that can be executed, in the order of the C function."""
    for candidate in map(os.fsdecode, candidates):
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return os.path.abspath(candidate)
    raise ColdStartRequired("")


def _descriptors(call: dict[str, Any]) -> dict[int, int]:
    """Numbers in the child to numbers in this process."""
    if call["close_fds"]:
        numbers = {fd for fd in (0, 1, 2) if _inheritable(fd)} | set(call["pass_fds"])
    else:
        numbers = set(spawn_request.inheritable_descriptors()) | set(call["pass_fds"])
    numbers -= {call["errpipe_write"], call["errpipe_read"]}
    mapping = {fd: fd for fd in sorted(numbers)}
    for fd, key in enumerate(("p2cread", "c2pwrite", "errwrite")):
        if call[key] >= 0:
            mapping[fd] = call[key]
    return mapping


def _inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


@contextlib.contextmanager
def _signals_blocked() -> Any:
    """Block signals, as a handler of the job must not run meanwhile; yields the child's mask."""
    previous = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        yield sorted(map(int, previous))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
