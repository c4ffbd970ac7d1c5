"""Startup stages, their dependencies and their errors: pure functions over names.

StageError              the stages cannot be run as declared
  StageFailed           one of them raised; its own exception is the cause
  StageLate             one of them missed its deadline
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headway.errors import HeadwayError


class StageError(HeadwayError):
    """The stages cannot be run as declared."""


class StageFailed(StageError):
    """A stage raised."""

    code = "stage-failed"

    def __init__(self, stage: str, text: str, *, code: str | None = None) -> None:
        super().__init__(f"the stage {stage} failed: {text}", code=code)
        self.stage = stage


class StageLate(StageError):
    """A stage missed its deadline."""

    code = "stage-late"

    def __init__(self, stage: str, deadline: float) -> None:
        super().__init__(f"the stage {stage} missed its deadline of {deadline:g} s")
        self.stage = stage


Where = Literal["thread", "process", "main"]
PLACES = ("thread", "process", "main")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a start. Its arguments are the results of the stages with the same names."""

    name: str
    call: Callable[..., Any]
    takes: tuple[str, ...] = ()  # stages whose results are its arguments, in order
    needs: tuple[str, ...] = ()  # those and other stages that must finish first
    where: Where = "thread"
    deadline: float | None = None


def declare(
    call: Callable[..., Any],
    name: str,
    needs: Sequence[str],
    where: str,
    deadline: float | None,
) -> Stage:
    """Make a stage from a function and its options."""
    if where not in PLACES:
        raise StageError(
            f"the stage {name} has where={where!r}; it must be one of {', '.join(PLACES)}",
            code="stage-place-unknown",
        )
    if deadline is not None and deadline <= 0:
        raise StageError(
            f"the stage {name} has a deadline of {deadline} s; it must be greater than 0",
            code="stage-deadline-invalid",
        )
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(call).parameters.values()
    if any(parameter.kind in kinds for parameter in parameters):
        raise StageError(
            f"the stage {name} has * or ** parameters; name the stages that it needs",
            code="stage-arguments-unnamed",
        )
    takes = tuple(p.name for p in parameters if p.default is inspect.Parameter.empty)
    all_needs = tuple(dict.fromkeys((*takes, *needs)))
    return Stage(name=name, call=call, takes=takes, needs=all_needs, where=where, deadline=deadline)  # type: ignore[arg-type]


def order(stages: Sequence[Stage], inputs: Sequence[str] = ()) -> list[Stage]:
    """Sort stages so that each comes after what it needs, otherwise in order of declaration.

    The order depends only on the declarations, so it is the same on all ranks.
    """
    names = [stage.name for stage in stages]
    for name in names:
        if names.count(name) > 1 or name in inputs:
            raise StageError(
                f"duplicate stage {name}; each name can be used once",
                code="stage-twice",
                stage=name,
            )
    for stage in stages:
        for need in stage.needs:
            if need not in names and need not in inputs:
                available = ", ".join([*inputs, *names])
                raise StageError(
                    f"the stage {stage.name} needs {need}, which does not exist; "
                    f"there are {available}",
                    code="stage-unknown",
                    stage=need,
                )
    ordered: list[Stage] = []
    done = set(inputs)
    remaining = list(stages)
    while remaining:
        ready = next((stage for stage in remaining if done.issuperset(stage.needs)), None)
        if ready is None:
            cycle = _find_cycle(remaining, done)
            raise StageError(
                f"the stages {' -> '.join(cycle)} form a cycle",
                code="stages-in-a-circle",
                stages=cycle,
            )
        remaining.remove(ready)
        ordered.append(ready)
        done.add(ready.name)
    return ordered


def _find_cycle(stages: Sequence[Stage], done: set[str]) -> list[str]:
    by_name = {stage.name: stage for stage in stages}
    path = [stages[0].name]
    while True:
        needs = by_name[path[-1]].needs
        following = next(need for need in needs if need not in done)
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)
