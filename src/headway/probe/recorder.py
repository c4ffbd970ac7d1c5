"""Spans and events of this process, buffered until there is a reason to write a journal.

A process that never trains leaves no file, unless an exception ends it. A rank (known from the
environment) writes from its first event on, any other process from its first torch event, and a
helper of a rank only from its first step.
"""

from __future__ import annotations

import _thread
import atexit
import itertools
import os
import sys
import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from headway.journal.writer import Writer, head
from headway.probe import (
    ENV_FOLDER,
    ENV_LAUNCH,
    ENV_OWNER,
    ENV_PAGES,
    ENV_STRICT,
    import_hook,
    launcher_variable,
    step_clock,
)

MAX_PENDING = 1000  # events; a helper that never writes must not grow


class Recorder:
    """The journal of this process, before and after it has a file."""

    def __init__(self) -> None:
        self.warm, self.requested_at = False, 0  # forked by a zygote, and when
        self.before_span: list[Callable[[], None]] = []
        self.at_end: list[Callable[[], None]] = []
        self._reset()
        for name, start, end in import_hook.EARLY_IMPORTS:
            self.span("import", start, end, module=name)

    def _reset(self) -> None:
        self.writer: Writer | None = None
        self.pending: list[dict[str, Any]] = []
        self.rank = _env_number("RANK")
        self.world = _env_number("WORLD_SIZE")
        self.helper = _is_helper()
        self.pid = os.getpid()
        self.ids = itertools.count(1)  # of spans; threads may begin some at the same time
        self.finished = False
        self.imports_logged = False  # what it has imported

    # -- events ---------------------------------------------------------------------------

    def emit(self, ev: str, t: int | None = None, **fields: Any) -> None:
        """Note one event; `t` is now unless given."""
        record = {"ev": ev, "t": monotonic_ns() if t is None else t, **fields}
        if self.writer is not None:
            self.writer.write(record)
            return
        if len(self.pending) < MAX_PENDING:
            self.pending.append(record)
        if self.rank is not None and not self.helper:
            self.start()

    def begin(self, name: str, t: int | None = None, **fields: Any) -> int:
        """A span opens. The line goes out now, so that a kill cannot hide it."""
        for callback in self.before_span:
            callback()
        span = next(self.ids)
        self.emit("open", t, id=span, name=name, th=self.thread(), **fields)
        return span

    def end(self, span: int, t: int | None = None, **fields: Any) -> None:
        """A span closes."""
        self.emit("close", t, id=span, **fields)

    def span(self, name: str, start: int, end: int, **fields: Any) -> None:
        """A span that is over already."""
        fields.setdefault("th", self.thread())
        self.emit("span", start, end=end, name=name, **fields)

    def note(self, hook: str, error: BaseException | str, code: str = "hook-off") -> None:
        """Something of ours did not work; the job goes on."""
        if isinstance(error, BaseException):
            if os.environ.get(ENV_STRICT):
                raise error
            error = f"switched off, {type(error).__name__}: {error}"
        self.emit("note", hook=hook, code=code, text=str(error)[:300])

    # -- the file -------------------------------------------------------------------------

    def start(self, *, trains: bool = False) -> None:
        """Open the journal, unless this is a helper that does not train."""
        if self.writer is not None or (self.helper and not trains):
            return
        folder = launcher_variable(ENV_FOLDER)
        if not folder:
            return
        if threading.current_thread() is threading.main_thread():
            os.environ[ENV_OWNER] = _owner(self.pid)
        header = head(
            "process",
            import_hook.python_started_at,
            launch=launcher_variable(ENV_LAUNCH),
            rank=self.rank,
            world=self.world,
            local_rank=_env_number("LOCAL_RANK"),
            restart=_env_number("TORCHELASTIC_RESTART_COUNT") or 0,
            max_restarts=_env_number("TORCHELASTIC_MAX_RESTARTS"),
            helper=self.helper and not trains,
            warm=self.warm,
            torch=getattr(sys.modules.get("torch"), "__version__", None),
        )
        if self.warm:
            header["begin"] = self.requested_at  # the kernel knows when it was forked, to wait
        path = _free_path(folder, header["host"], self.pid, header["begin"])
        writer = Writer(path, self.pid, launcher_variable(ENV_PAGES))
        header["fs"] = writer.file_clock()
        _backdate(header)
        writer.write(header)
        self.writer = writer
        step_clock.attach_page(writer.cells)
        pending, self.pending = self.pending, []
        for record in pending:
            writer.write(record)
        if not self.helper:
            guard("stacks", _offer_stacks, self.emit)
        _at_process_end(self.finish)

    def take_rank(self, rank: int, world: int) -> None:
        """The process group knows better than the environment."""
        if self.helper and _owner_is_rank():
            return  # a helper's own group, such as that of an asynchronous checkpoint's process
        unchanged = (rank, world) == (self.rank, self.world) and self.writer is not None
        self.rank, self.world, self.helper = rank, world, False
        self.start(trains=True)
        os.environ[ENV_OWNER] = _owner(self.pid) + ":rank"
        if not unchanged:
            self.emit("rank", rank=rank, world=world)

    def thread(self) -> int:
        """0 for the main thread and for C++ threads (autograd's), which work for the loop."""
        ident = _thread.get_ident()
        if ident == _MAIN_THREAD:
            return 0
        if ident in _THREADS:
            return ident
        return 0 if step_clock.step_thread in (0, _MAIN_THREAD) else step_clock.step_thread

    def finish(self) -> None:
        """The process ends by itself: the last steps, the error if there was one, the end."""
        if self.finished or os.getpid() != self.pid:
            return
        self.finished = True
        try:
            for callback in self.at_end:
                guard("at the end", callback)
            guard("steps", step_clock.flush)
            guard("imported", self.log_imports)
            error = getattr(sys, "last_value", None)
            if error is not None:
                guard("error", self.error, error)
        finally:
            self.emit("exit")

    def finish_untrained(self) -> None:
        """A process that never trained, and leaves a journal only if an exception ended it."""
        if self.writer is None and getattr(sys, "last_value", None) is not None:
            self.start()
            self.finish()

    def error(self, error: BaseException) -> None:
        """An exception that ends this rank."""
        kind = type(error)
        name = (
            kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        )
        self.emit("error", type=name, message=str(error)[:2000], where=_innermost(error))

    def after_fork(self) -> None:
        """A forked child is another process: its own file, and no step yet."""
        step_clock.reset_after_fork()
        import_hook.python_started_at = monotonic_ns()
        self._reset()
        self.helper, self.warm = True, False

    def suspend(self) -> None:
        """This process only forks others: it records nothing."""
        self.helper = True

    def reset_after_warm_fork(self, requested_at: int) -> None:
        """It was forked ahead of time, and begins now: what its imports have left is not its own.

        `begun` is when its fork was asked for.
        """
        for callback in self.before_span:
            callback()
        step_clock.reset_after_fork()
        self._reset()
        self.warm, self.requested_at = True, requested_at
        if self.rank is not None:
            self.start()
        self.span("launcher_init", requested_at, monotonic_ns(), what="warm")

    def log_imports(self) -> None:
        """Tell, once, what this process has imported: what another start can have ready."""
        if self.imports_logged or self.writer is None or os.environ.get("LOCAL_RANK", "0") != "0":
            return
        self.imports_logged = True
        fields = import_hook.import_log_fields()
        if fields is not None:
            self.emit("imported", **fields)


_disabled_hooks: set[str] = set()


def guard(hook: str, call: Callable[..., Any], *args: Any) -> Any:
    """Run something of ours; a fault in it is noted once, and switches that hook off."""
    return None if hook in _disabled_hooks else guard_end(hook, call, *args)


def guard_end(hook: str, call: Callable[..., Any], *args: Any) -> Any:
    """As `guard`, also for a hook that is off by now: what it has begun must come to its end."""
    try:
        return call(*args)
    except Exception as error:
        if raised_by_user(error):
            raise
        if hook not in _disabled_hooks:
            _disabled_hooks.add(hook)
            recorder.note(hook, error)
        return None


def raised_by_user(error: BaseException) -> bool:
    """Raised by a signal handler of the job while we were at work: not ours to swallow."""
    if getattr(error, "headway_planned", False):  # an exception that a plan asks for
        return True
    file = _innermost(error).rpartition(":")[0]
    torch = getattr(sys.modules.get("torch"), "__file__", None) or __file__
    own_folders = (os.path.dirname(os.path.dirname(__file__)), os.path.dirname(torch))
    if not file or file.startswith(("<frozen", *own_folders)):
        return False
    return not file.startswith(os.path.dirname(os.__file__)) or "-packages" in file


def _backdate(head: dict[str, Any]) -> None:
    """Give the head the time at which the interpreter was ready, though it is written later."""
    started = (
        head["t"]
        if import_hook.python_started_at is None
        else max(import_hook.python_started_at, head["begin"])
    )
    delay = max(head["t"] - started, 0)
    for clock in ("t", "wall", "fs"):
        if head[clock] is not None:
            head[clock] -= delay


def _innermost(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _free_path(folder: str, host: str, pid: int, begin: int) -> str:
    """The journal of a process, which may have run another program in its place before."""
    number = begin // 1_000_000
    while os.path.exists(path := os.path.join(folder, f"{host}-{pid}-{number}.jsonl")):
        number += 1
    return path


def _offer_stacks(emit: Callable[..., None]) -> None:
    from headway.probe import stacks

    stacks.offer_dump(emit)


def _env_number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _owner(pid: int) -> str:
    return f"{pid}:{os.environ.get('RANK')}:{os.environ.get('TORCHELASTIC_RESTART_COUNT')}"


def _is_helper() -> bool:
    """Below a process that records, and not made a rank of its own by the environment."""
    owner = os.environ.get(ENV_OWNER, "").removesuffix(":rank")
    pid = owner.partition(":")[0]
    return pid.isdecimal() and pid != str(os.getpid()) and owner == _owner(int(pid))


def _owner_is_rank() -> bool:
    return os.environ.get(ENV_OWNER, "").endswith(":rank") or "RANK" in os.environ


def _at_process_end(call: Callable[[], None]) -> None:
    atexit.register(call)
    # Children of multiprocessing leave by os._exit, past atexit. Nothing is imported for this:
    # the order of sys.modules goes into the keys of torch's compile caches.
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None and util._exiting is False:
        util.Finalize(None, call, exitpriority=100)


_MAIN_THREAD = threading.main_thread().ident or 0
_THREADS: dict[int, Any] = getattr(threading, "_active", {})  # those that Python has started
recorder = Recorder()
step_clock.on_first_step.append(lambda t: guard("imported", recorder.log_imports))
step_clock.bind(recorder.emit, lambda: recorder.start(trains=True), guard, recorder.thread)
os.register_at_fork(after_in_child=recorder.after_fork)
atexit.register(recorder.finish_untrained)
