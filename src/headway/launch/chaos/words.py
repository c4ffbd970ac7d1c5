"""A planned fault in words, for the journal and the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.launch.chaos.plan import Fault


def describe_fault(fault: Fault) -> str:
    """What, whom, when: `kill rank 1 at step 30`."""
    lasting = "" if fault.for_s is None else f" for {fault.for_s:g} s"
    return f"{_DESCRIPTIONS[fault.kind](fault)}{lasting} {_describe_moment(fault)}{_describe_limits(fault)}"


_DISK_MODES = {"slow": "slow", "fail": "failing", "full": "full"}
_TARGET_NAMES = {
    "agent": "the agent",
    "all": "all ranks",
    "random": "a random rank",
    "launcher": "the job",
}
_DESCRIPTIONS: dict[str, Callable[[Fault], str]] = {
    "kill": lambda f: f"kill {_describe_target(f)}",
    "terminate": lambda f: f"terminate {_describe_target(f)}, {f.grace_s:g} s of grace,",
    "stop": lambda f: f"stop {_describe_target(f)}",
    "raise": lambda f: f"raise {f.exception!r} in {_describe_target(f)}",
    "disk": lambda f: f"{_DISK_MODES[f.mode]} disk below {f.path} for {_describe_target(f)}",
    "corrupt": lambda f: f"corrupt ({f.how}) the newest checkpoint below {f.path}",
    "network": lambda f: f"cut the network at {f.device}",
    "data": lambda f: f"delay each batch of {_describe_target(f)} by {f.delay_s:g} s",
}


def _describe_target(fault: Fault) -> str:
    if fault.who == "all" and not fault.by_rank:
        return "everything"
    return _TARGET_NAMES.get(str(fault.who), f"rank {fault.who}")


def _describe_moment(fault: Fault) -> str:
    if fault.at_step is not None:
        return f"at step {fault.at_step}"
    if fault.after_s is not None:
        return f"after {fault.after_s:g} s"
    if fault.every_s is not None:
        return f"every {fault.every_s:g} s on average"
    if fault.steps_between is not None:
        return "every {}-{} steps".format(*fault.steps_between)
    return "before a restart"


def _describe_limits(fault: Fault) -> str:
    text = ""
    if fault.attempts is not None:
        text += f" of attempt {', '.join(map(str, fault.attempts))}"
    if fault.times is not None:
        text += f", {fault.times} times at most"
    return text + (f", on {fault.node}" if fault.node else "")
