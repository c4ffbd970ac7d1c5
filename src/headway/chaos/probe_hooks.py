"""Inject the faults planned for this process at the planned step. Loaded only with a plan.

The launcher passes orders in the environment. An order is claimed, and recorded in the journal,
before it is executed, so that a kill does not lose the record.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from time import monotonic_ns
from types import ModuleType
from typing import Any

from headway.chaos import claims
from headway.journal import pulse
from headway.probe import (
    ENV_CHAOS,
    ENV_FOLDER,
    ENV_LAUNCH,
    ENV_PAGES,
    launcher_variable,
    step_clock,
)
from headway.probe.patching import after_sdk_steps
from headway.probe.recorder import guard, recorder

Order = dict[str, Any]
NEVER = 1 << 62
LASTING_KINDS = ("disk", "data")

_text = ""
_mark = ""
_pending: list[Order] = []  # orders that wait for a step or a time
_lasting_orders: list[Order] = []  # orders that delay or fail operations while active
_next_step = _next_time = NEVER
_hooked_modules: set[str] = set()


def install(module: ModuleType) -> None:
    """Apply the hook of a module, if it has one here."""
    arm()
    hook = _HOOKS.get(module.__name__)
    if hook is not None and module.__name__ not in _hooked_modules:
        _hooked_modules.add(module.__name__)
        hook(module)


def arm() -> None:
    """Read the orders from the environment, also in a process that was forked without any."""
    global _text, _mark
    text = os.environ.get(ENV_CHAOS, "")
    if text == _text:
        return
    _text = text
    _pending.clear()
    _lasting_orders.clear()
    _look_ahead()
    if not text:
        return
    content = json.loads(text)
    if content["launch"] != os.environ.get(ENV_LAUNCH):
        return  # orders of an outer launcher
    _mark = content["mark"]
    _expand(content["orders"])
    _look_ahead()
    if "sdk" not in _hooked_modules:
        _hooked_modules.add("sdk")
        after_sdk_steps(after_step)
        step_clock._next = step_clock.timed_fetch(_delaying(next))
    if "disk" not in _hooked_modules and any(order["kind"] == "disk" for order in _lasting_orders):
        _hooked_modules.add("disk")
        _watch_disk()
    for name in _HOOKS.keys() & sys.modules.keys():
        if not getattr(sys.modules[name].__spec__, "_initializing", False):
            install(sys.modules[name])


def _expand(orders: list[Order]) -> None:
    """Create one order for each of its moments."""
    before = _steps_before_restart() if any(order.get("over") for order in orders) else 0
    for order in orders:
        if order.get("node") not in (None, os.uname().nodename):
            continue
        for moment in order["moments"]:
            instance = {**order, **moment}
            if instance.get("over"):
                instance["step"] -= before
            if instance["kind"] in LASTING_KINDS:
                _lasting_orders.append(instance)
            if "step" in instance or instance["kind"] not in LASTING_KINDS:
                _pending.append(instance)


def _steps_before_restart() -> int:
    """Steps of this rank before restarts by torchrun within this attempt."""
    if not _is_elastic_restart():
        return 0
    folder, steps = os.environ[ENV_FOLDER], 0
    for name in os.listdir(folder):
        if not name.startswith(f"{os.uname().nodename}-") or not name.endswith(".jsonl"):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            head = json.loads(file.readline() or b"{}")
        is_own = head.get("rank") == recorder.rank and head.get("launch") == os.environ[ENV_LAUNCH]
        if is_own and head.get("pid") != os.getpid():
            page = _page(folder, name.removesuffix(".jsonl") + ".pulse")
            steps += page.steps if page else 0
    return steps


def _page(folder: str, name: str) -> pulse.Pulse | None:
    """The pulse page of a process of this host; it may still be in memory."""
    pages = launcher_variable(ENV_PAGES)
    page = pulse.read(os.path.join(pages, name)) if pages else None
    return page or pulse.read(os.path.join(folder, name))


def _is_elastic_restart() -> bool:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


# Steps.


def after_step(*_: Any) -> None:
    """Called after every counted step."""
    if step_clock.steps >= _next_step or (_next_time != NEVER and monotonic_ns() >= _next_time):
        guard("chaos", _run_due_orders)


after_step._torchdynamo_disable = True  # type: ignore[attr-defined]


def _watch_steps(optimizer: ModuleType) -> None:
    optimizer.register_optimizer_step_post_hook(after_step)


def _look_ahead() -> None:
    global _next_step, _next_time
    _next_step = min((o["step"] for o in _pending if "step" in o), default=NEVER)
    _next_time = min((o["at"] for o in _pending if "at" in o), default=NEVER)


def _run_due_orders() -> None:
    at = monotonic_ns()
    due = [
        o for o in _pending if o.get("step", NEVER) <= step_clock.steps or o.get("at", NEVER) <= at
    ]
    for order in due:
        _pending.remove(order)
    _look_ahead()
    for order in due:
        if _is_for_this_rank(order) and not recorder.helper:
            _begin(order) if order["kind"] in LASTING_KINDS else _carry_out(order)


def _rank() -> int:
    return recorder.rank or 0


def _is_for_this_rank(order: Order) -> bool:
    who = order["who"]
    if who == "random":
        return int(order["draw"] * (recorder.world or 1)) == _rank()
    return who in ("all", "first") or who == _rank()


def _carry_out(order: Order) -> None:
    kind = order["kind"]
    name = _claim(order)
    if name is None:
        return
    if kind == "hold":  # the launcher injects and records it
        claims.wait_until_done(os.environ[ENV_FOLDER], name)
        return
    _note(order, name)
    if kind == "raise":
        error = _exception(order["exception"])
        error.headway_planned = True  # type: ignore[attr-defined]
        raise error
    number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "terminate": signal.SIGTERM}[kind]
    os.kill(os.getpid(), number)


def _exception(text: str) -> BaseException:
    name, _, message = text.partition(":")
    module, _, attribute = name.strip().rpartition(".")
    kind = getattr(sys.modules.get(module or "builtins"), attribute, None)
    try:
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return kind(message.strip())
    except Exception:  # its constructor takes other arguments
        pass
    return RuntimeError(text)


def _names(order: Order) -> list[str]:
    rank = _rank() if order["who"] == "all" else None
    return [claims.claim_name(_mark, order["fault"], key, rank) for key in order["keys"]]


def _claim(order: Order) -> str | None:
    content = {"host": os.uname().nodename, "pid": os.getpid(), "rank": _rank()}
    content |= {"step": step_clock.steps, "t": monotonic_ns()}
    return claims.take_claim(os.environ[ENV_FOLDER], _names(order), content)


def _note(order: Order, name: str) -> None:
    _, key = claims.parse_claim(name, _mark) or (0, "")
    recorder.start(trains=not recorder.helper)
    fields = {"fault": order["fault"], "key": key, "kind": order["kind"], "who": f"rank {_rank()}"}
    if "mode" in order:
        fields["mode"] = order["mode"]
    recorder.emit("fault", **fields, step=step_clock.steps, planned=order["planned"])


# Lasting faults: from a step or a time on, for a duration or to the end of the attempt.


def _begin(order: Order) -> None:
    name = _claim(order)
    if name is not None:
        order["since"] = monotonic_ns()
        _note(order, name)


def lasting_orders(kind: str) -> Iterator[Order]:
    """All lasting orders of a kind, active or not."""
    return (order for order in _lasting_orders if order["kind"] == kind)


def is_active(order: Order) -> bool:
    """Whether an order is active now; recorded the first time."""
    if not _is_for_this_rank(order):
        return False
    since = order["at"] if "at" in order else order.get("since") or _begun_by_other_process(order)
    at = monotonic_ns()
    if since is None or at < since:
        return False
    if order["for_s"] is not None and at >= since + order["for_s"] * 1e9:
        return False
    if "at" in order and not order.get("noted"):
        order["noted"] = True
        name = _claim(order)
        if name is not None:
            _note(order, name)
    return True


def _begun_by_other_process(order: Order) -> int | None:
    """When it began in another process of this rank: the owner of a helper, or before a restart."""
    if not recorder.helper and not _is_elastic_restart():
        return None
    folder = os.environ[ENV_FOLDER]
    times = [claims.read_claim(folder, name).get("t") for name in _names(order)]
    return max((t for t in times if isinstance(t, int)), default=None)


# Batches.


def _delay_batch() -> None:
    for order in lasting_orders("data"):
        if not recorder.helper and is_active(order):
            time.sleep(order["delay_s"])


def _delaying(fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(fetch)
    def fetched(self: Any) -> Any:
        guard("chaos", _delay_batch)
        return fetch(self)

    return fetched


def _watch_batches(dataloader: ModuleType) -> None:
    """Hook the call inside `__next__`, so that the delay is part of the measured wait."""
    for name in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"):
        loader = getattr(dataloader, name)
        loader._next_data = _delaying(loader._next_data)


def _watch_disk() -> None:
    from headway.chaos import probe_disk

    probe_disk.watch()
    _HOOKS.update(probe_disk.HOOKS)


_HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "torch.optim.optimizer": _watch_steps,
    "torch.utils.data.dataloader": _watch_batches,
}
