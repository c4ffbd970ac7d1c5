"""Process groups, and what torchrun's agent says of its workers."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from headway.probe.hooks import groups, spanned, wrap
from headway.probe.recorder import guard, recorder

SPAN = "process_group_init"


def install(c10d: ModuleType) -> None:
    """torch.distributed.distributed_c10d"""

    def init(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        guard("distributed", _take_rank, c10d)
        return result

    wrap(c10d, "init_process_group", init)
    spanned(c10d, "init_process_group", SPAN)
    spanned(c10d, "new_group", SPAN)
    guard("groups", groups.install_groups, c10d)


def _take_rank(c10d: Any) -> None:
    recorder.take_rank(c10d.get_rank(), c10d.get_world_size())


def install_events(events: ModuleType) -> None:
    """torch.distributed.elastic.events: the agent's rendezvous, starts and ends."""

    def record(original: Callable[..., Any], event: Any, *args: Any, **kwargs: Any) -> Any:
        guard("elastic", _agent_event, event)
        return original(event, *args, **kwargs)

    wrap(events, "record", record)


def _agent_event(event: Any) -> None:
    metadata = getattr(event, "metadata", None) or {}
    kept = {
        key: metadata[key]
        for key in ("state", "agent_restarts", "duration_ms", "global_rank", "group_rank")
        if metadata.get(key) is not None
    }
    recorder.start()
    recorder.emit("agent", name=str(getattr(event, "name", "")), **kept)
    if kept.get("state") == "START":
        guard("imported", recorder.imported)


def install_failures(errors: ModuleType) -> None:
    """torch.distributed.elastic.multiprocessing.errors: the exit code of a dead worker."""

    def post_init(original: Callable[..., Any], self: Any, *args: Any) -> None:
        original(self, *args)
        guard("elastic", _worker_failed, self)

    wrap(errors.ProcessFailure, "__post_init__", post_init)


def _worker_failed(failure: Any) -> None:
    recorder.start()
    recorder.emit(
        "worker_failed",
        pid=failure.pid,
        local_rank=failure.local_rank,
        code=failure.exitcode,
        message=str(failure.message)[:500],
    )


def install_spawn(spawn: ModuleType) -> None:
    """torch.multiprocessing.spawn: it swallows the exception that ends a rank."""

    def run(original: Callable[..., Any], fn: Any, *args: Any, **kwargs: Any) -> Any:
        def noting(*inner: Any) -> Any:
            try:
                return fn(*inner)
            except BaseException as error:
                if not isinstance(error, SystemExit):
                    guard("spawn", recorder.error, error)
                raise

        return original(noting, *args, **kwargs)

    wrap(spawn, "_wrap", run)
