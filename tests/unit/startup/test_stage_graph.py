"""Stages and their dependencies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.startup.stage_graph import Stage, StageError, declare, order
from tests.support import has_code


def stage(name: str, *needs: str) -> Stage:
    return Stage(name=name, call=lambda: None, needs=needs)


def test_arguments_are_needs() -> None:
    def build(device: Any, rows: Any, size: int = 3) -> None: ...

    declared = declare(build, "build", ["plan"], "main", 5.0)
    assert declared.takes == ("device", "rows")
    assert declared.needs == ("device", "rows", "plan")


def test_the_order_is_that_of_declaration_as_far_as_it_can_be() -> None:
    stages = [stage("c", "a"), stage("b"), stage("a", "b"), stage("d")]
    assert [stage_.name for stage_ in order(stages)] == ["b", "a", "c", "d"]


@pytest.mark.parametrize(
    ("stages", "code", "fields"),
    [
        (
            [stage("a", "b"), stage("b", "c"), stage("c", "a")],
            "stages-in-a-circle",
            {"stages": ["a", "b", "c", "a"]},
        ),
        ([stage("a", "a")], "stages-in-a-circle", {"stages": ["a", "a"]}),
        ([stage("x"), stage("y", "z")], "stage-unknown", {"stage": "z"}),
        ([stage("x"), stage("x")], "stage-twice", {"stage": "x"}),
        ([stage("given")], "stage-twice", {"stage": "given"}),
    ],
)
def test_what_cannot_be_run_is_said(
    stages: list[Stage], code: str, fields: dict[str, object]
) -> None:
    with pytest.raises(StageError, check=has_code(code)) as error:
        order(stages, ("given",))
    assert error.value.fields == fields


def test_odd_declarations() -> None:
    with pytest.raises(StageError, check=has_code("stage-place-unknown")):
        declare(lambda: None, "x", (), "moon", None)
    with pytest.raises(StageError, check=has_code("stage-deadline-invalid")):
        declare(lambda: None, "x", (), "main", 0.0)
    with pytest.raises(StageError, check=has_code("stage-arguments-unnamed")):
        declare(lambda *rest: None, "x", (), "main", None)


@st.composite
def graphs(draw: st.DrawFn) -> list[Stage]:
    count = draw(st.integers(1, 12))
    names = [f"s{number}" for number in range(count)]
    stages = [
        stage(
            name, *draw(st.lists(st.sampled_from(names[:at]), unique=True) if at else st.just([]))
        )
        for at, name in enumerate(names)
    ]
    return draw(st.permutations(stages))


@settings(derandomize=True, deadline=None)
@given(graphs())
def test_every_stage_comes_once_and_after_its_needs(stages: list[Stage]) -> None:
    ordered = order(stages)
    assert sorted(stage_.name for stage_ in ordered) == sorted(stage_.name for stage_ in stages)
    done: set[str] = set()
    for stage_ in ordered:
        assert done.issuperset(stage_.needs)
        done.add(stage_.name)
