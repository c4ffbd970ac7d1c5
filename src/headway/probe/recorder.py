"""Record spans and events of this process; they are buffered until a journal is needed.

A process that never trains writes no file, unless an exception ends it. A rank (known from the
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

MAX_PENDING = 1000  # events; the buffer of a helper that never writes must not grow


class Recorder:
    """The journal of this process; events are buffered until it has a file."""

    def __init__(self) -> None:
        self.warm, self.requested_at = (
            False,
            0,
        )  # forked by the fork server, and when
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
        self.ids = itertools.count(1)  # of spans; atomic, as several threads may open spans
        self.finished = False
        self.imports_logged = False

    # -- events ---------------------------------------------------------------------------

    def emit(self, ev: str, t: int | None = None, **fields: Any) -> None:
        """Write or buffer an event; `t` defaults to now."""
        record = {"ev": ev, "t": monotonic_ns() if t is None else t, **fields}
        if self.writer is not None:
            self.writer.write(record)
            return
        if len(self.pending) < MAX_PENDING:
            self.pending.append(record)
        if self.rank is not None and not self.helper:
            self.start()

    def begin(self, name: str, t: int | None = None, **fields: Any) -> int:
        """Open a span. The line is written at once, so that a kill does not lose it."""
        for callback in self.before_span:
            callback()
        span = next(self.ids)
        self.emit("open", t, id=span, name=name, th=self.thread(), **fields)
        return span

    def end(self, span: int, t: int | None = None, **fields: Any) -> None:
        self.emit("close", t, id=span, **fields)

    def span(self, name: str, start: int, end: int, **fields: Any) -> None:
        """Record a span that has ended."""
        fields.setdefault("th", self.thread())
        self.emit("span", start, end=end, name=name, **fields)

    def note(self, hook: str, error: BaseException | str, code: str = "hook-off") -> None:
        """Record a problem of Headway; the job continues. An exception disables the hook."""
        if isinstance(error, BaseException):
            if os.environ.get(ENV_STRICT):
                raise error
            error = f"disabled, {type(error).__name__}: {error}"
        self.emit("note", hook=hook, code=code, text=str(error)[:300])

    # -- the file -------------------------------------------------------------------------

    def start(self, *, trains: bool = False) -> None:
        """Open the journal, unless this is a helper process that does not train."""
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
            header["begin"] = self.requested_at  # it was forked earlier, to wait
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
        """Set rank and world size as the process group has them; it overrides the environment."""
        if self.helper and _owner_is_rank():
            return  # the own group of a helper, such as the process of dcp.async_save
        unchanged = (rank, world) == (self.rank, self.world) and self.writer is not None
        self.rank, self.world, self.helper = rank, world, False
        self.start(trains=True)
        os.environ[ENV_OWNER] = _owner(self.pid) + ":rank"
        if not unchanged:
            self.emit("rank", rank=rank, world=world)

    def thread(self) -> int:
        """The thread id in the journal: 0 for the main thread and for C++ threads (autograd)."""
        ident = _thread.get_ident()
        if ident == _MAIN_THREAD:
            return 0
        if ident in _THREADS:
            return ident
        return 0 if step_clock.step_thread in (0, _MAIN_THREAD) else step_clock.step_thread

    def finish(self) -> None:
        """Write the last events at the end of the process: steps, the exception if any, exit."""
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
        """Write a journal of a process that never trained, if an exception ended it."""
        if self.writer is None and getattr(sys, "last_value", None) is not None:
            self.start()
            self.finish()

    def error(self, error: BaseException) -> None:
        """Record the exception that ends this rank."""
        kind = type(error)
        name = (
            kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        )
        self.emit("error", type=name, message=str(error)[:2000], where=_innermost(error))

    def after_fork(self) -> None:
        """Reset in a forked child: it gets its own journal and has made no steps."""
        step_clock.reset_after_fork()
        import_hook.python_started_at = monotonic_ns()
        self._reset()
        self.helper, self.warm = True, False

    def suspend(self) -> None:
        """Do not record this process: it only forks others."""
        self.helper = True

    def reset_after_warm_fork(self, requested_at: int) -> None:
        """Start recording a process that the fork server forked; `requested_at`: when.

        Events before the fork belong to the fork server.
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
        """Record once what this process has imported, for a later warm start."""
        if self.imports_logged or self.writer is None or os.environ.get("LOCAL_RANK", "0") != "0":
            return
        self.imports_logged = True
        fields = import_hook.import_log_fields()
        if fields is not None:
            self.emit("imported", **fields)


_disabled_hooks: set[str] = set()


def guard(hook: str, call: Callable[..., Any], *args: Any) -> Any:
    """Call a function of Headway. An exception is recorded once, and disables the hook."""
    return None if hook in _disabled_hooks else guard_end(hook, call, *args)


def guard_end(hook: str, call: Callable[..., Any], *args: Any) -> Any:
    """Like `guard`, but also if the hook is disabled: a span that was opened has to be closed."""
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
    """Whether a signal handler of the job raised this exception during a call of Headway."""
    if getattr(error, "headway_planned", False):  # by a plan of faults
        return True
    file = _innermost(error).rpartition(":")[0]
    torch = getattr(sys.modules.get("torch"), "__file__", None) or __file__
    own_folders = (os.path.dirname(os.path.dirname(__file__)), os.path.dirname(torch))
    if not file or file.startswith(("<frozen", *own_folders)):
        return False
    return not file.startswith(os.path.dirname(os.__file__)) or "-packages" in file


def _backdate(head: dict[str, Any]) -> None:
    """Set the times of the head to when Python started, although it is written later."""
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
    """The path of the journal; after `exec`, the process had another one before."""
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
    """Whether this is a child of a process that records, and not a rank itself."""
    owner = os.environ.get(ENV_OWNER, "").removesuffix(":rank")
    pid = owner.partition(":")[0]
    return pid.isdecimal() and pid != str(os.getpid()) and owner == _owner(int(pid))


def _owner_is_rank() -> bool:
    return os.environ.get(ENV_OWNER, "").endswith(":rank") or "RANK" in os.environ


def _at_process_end(call: Callable[[], None]) -> None:
    atexit.register(call)
    # Children of multiprocessing end with os._exit, without atexit. Nothing is imported here, as
    # the order of sys.modules is part of the keys of torch's compile caches.
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None and util._exiting is False:
        util.Finalize(None, call, exitpriority=100)


_MAIN_THREAD = threading.main_thread().ident or 0
_THREADS: dict[int, Any] = getattr(threading, "_active", {})  # threads started by Python
recorder = Recorder()
step_clock.on_first_step.append(lambda t: guard("imported", recorder.log_imports))
step_clock.bind(recorder.emit, lambda: recorder.start(trains=True), guard, recorder.thread)
os.register_at_fork(after_in_child=recorder.after_fork)
atexit.register(recorder.finish_untrained)
