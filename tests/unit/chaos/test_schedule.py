"""The same seed gives the same faults at the same moments, over attempts and launches."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, pairwise
from typing import Any

from headway.chaos.plan import FaultPlan, parse_inline_plan
from headway.chaos.schedule import (
    FaultHistory,
    Moment,
    describe_schedule,
    drawn_rank,
    due_points,
    plan_moments,
)
from tests.support import Golden


def past(
    claimed: Mapping[int, set[str]] | None = None,
    *,
    earlier: Mapping[int, int] | None = None,
    ran_s: float = 0.0,
    steps: Mapping[int, int] | None = None,
) -> FaultHistory:
    return FaultHistory(
        claimed={number: frozenset(keys) for number, keys in (claimed or {}).items()},
        earlier=earlier or {},
        ran_s={1: ran_s},
        steps={1: steps or {}},
    )


def planned(text: str, attempt: int = 0, **more: Any) -> list[Moment]:
    return plan_moments(parse_inline_plan(text), attempt, past(**more))


def when(moments: list[Moment]) -> list[tuple[tuple[str, ...], int | None, float | None]]:
    return [(m.keys, m.step, m.after_s) for m in moments]


def test_a_step_is_meant_once_unless_attempts_are_named() -> None:
    assert when(planned("kill rank=1 step=30")) == [(("k0",), 30, None)]
    assert planned("kill rank=1 step=30", 1, claimed={1: {"k0"}}) == []
    assert when(planned("kill rank=1 step=30 times=3", 1, claimed={1: {"k0"}})) == [
        (("k1", "k2"), 30, None)
    ]
    several = "kill rank=1 step=30 attempt=0,2"
    assert when(planned(several, 0)) == [(("a0",), 30, None)]
    assert planned(several, 1) == []
    assert when(planned(several, 2, claimed={1: {"a0"}})) == [(("a2",), 30, None)]
    assert planned(several + " times=1", 2, claimed={1: {"a0"}}) == []


def test_a_time_comes_in_every_attempt() -> None:
    assert when(planned("kill rank=1 after=5")) == [(("a0",), None, 5.0)]
    assert when(planned("kill rank=1 after=5", 3, claimed={1: {"a0"}})) == [(("a3",), None, 5.0)]
    assert planned("kill rank=1 after=5 times=1", 3, claimed={1: {"a0"}}) == []


def test_before_a_restart_is_not_before_the_start() -> None:
    assert planned("corrupt path=c when=restart", 0) == []
    assert when(planned("corrupt path=c when=restart", 1)) == [(("a1",), None, None)]


def test_a_rate_is_counted_over_the_attempts() -> None:
    plan = parse_inline_plan("seed=7; kill rank=1 every=60")
    due = list(islice(due_points(plan.faults[0], 7), 4))
    assert due == sorted(due)
    first = plan_moments(plan, 0, past())
    assert [m.after_s for m in first[:4]] == due
    later = plan_moments(plan, 1, past({1: {"k0"}}, ran_s=due[0] + 1.0))
    assert later[0].keys == ("k1",)
    assert later[0].after_s == due[1] - due[0] - 1.0
    # Another launch of the run: the next fault is as far from its start as it was from the previous
    # fault.
    again = plan_moments(plan, 5, past({1: {"k0", "k1"}}, earlier={1: 2}))
    assert (again[0].keys, again[0].after_s) == (("k2",), due[2] - due[1])


def test_steps_between_are_counted_over_the_attempts() -> None:
    text = "seed=7; stop rank=1 between=20..60"
    steps = [m.step for m in planned(text)]
    assert len(steps) == 100
    gaps = [later - earlier for earlier, later in pairwise([0, *steps])]
    assert set(gaps) <= set(range(20, 61)) and len(set(gaps)) > 10
    later = planned(text, 1, claimed={1: {"k0"}}, steps={0: 500, 1: steps[0] + 3})
    assert [m.step for m in later[:2]] == [steps[1] - steps[0] - 3, steps[2] - steps[0] - 3]
    everybody = planned("seed=7; data delay=1 between=20..60", 1, steps={0: 40, 1: 41})
    assert all(m.step is not None and m.step > 0 for m in everybody)


def test_the_seed_decides_and_nothing_else() -> None:
    text = "kill who=random every=60; stop who=random step=3 times=2"
    assert planned(f"seed=1;{text}") == planned(f"seed=1;{text}")
    assert planned(f"seed=1;{text}") != planned(f"seed=2;{text}")
    alone = planned("seed=1; kill who=random every=60")
    assert [(m.after_s, m.draw) for m in alone] == [
        (m.after_s, m.draw) for m in planned(f"seed=1;{text}") if m.fault.kind == "kill"
    ]


def test_a_draw_means_a_rank_of_any_world() -> None:
    draws = [m.draw for m in planned("seed=3; kill who=random every=60")]
    assert all(draw is not None and 0 <= draw < 1 for draw in draws)
    assert {drawn_rank(draw, 4) for draw in draws if draw is not None} == {0, 1, 2, 3}
    assert drawn_rank(0.999999, 1) == 0


def test_at_most_so_many_times() -> None:
    assert len(planned("kill rank=1 every=60 times=3")) == 3
    assert planned("kill rank=1 every=60 times=3", claimed={1: {"k0", "k1", "k2"}}) == []


def test_the_schedule_can_be_told_before_a_job_runs(golden: Golden) -> None:
    plan: FaultPlan = parse_inline_plan(
        "seed=7; kill rank=1 step=30; stop who=random between=5..5 times=2"
    )
    golden("schedule.txt", "".join(f"{line}\n" for line in describe_schedule(plan)))
    assert [moment.step for moment in plan_moments(plan, 0, past())] == [30, 5, 10]
