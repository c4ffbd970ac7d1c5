"""Plans: what may stand in them, and the sentence for everything that may not."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from headway.errors import UsageError
from headway.launch.chaos import Fault, network, parse, parse_inline
from headway.launch.chaos.plan import KINDS


@pytest.fixture(autouse=True)
def _a_cable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "impossible", lambda device: "")


def one(**table: Any) -> Fault:
    (fault,) = parse({"fault": [table]}, "plan.toml").faults
    return fault


WHOLE: dict[str, dict[str, Any]] = {
    "kill": {"who": 1},
    "terminate": {},
    "stop": {"who": 0},
    "raise": {"who": "random"},
    "disk": {"path": "checkpoints"},
    "corrupt": {"path": "checkpoints"},
    "network": {"device": "eth0"},
    "data": {"delay_s": 0.5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_with_no_more_than_it_needs(kind: str) -> None:
    fault = one(kind=kind, after_s=3, **WHOLE[kind])
    assert (fault.number, fault.kind, fault.after_s) == (1, kind, 3.0)
    assert fault.text.endswith(" after 3 s")


@pytest.mark.parametrize(
    ("table", "by_rank"),
    [
        ({"kind": "kill", "who": 1, "at_step": 3}, True),
        ({"kind": "kill", "who": "random", "steps_between": [2, 3]}, True),
        ({"kind": "kill", "who": 1, "after_s": 3}, False),
        ({"kind": "kill", "who": "agent", "at_step": 3}, False),
        ({"kind": "stop", "who": "all", "at_step": 3}, False),
        ({"kind": "terminate", "at_step": 3}, False),
        ({"kind": "raise", "who": 1, "after_s": 3}, True),
        ({"kind": "data", "delay_s": 1, "after_s": 3}, True),
        ({"kind": "corrupt", "path": ".", "at_step": 3}, False),
    ],
)
def test_who_carries_it_out(table: dict[str, Any], by_rank: bool) -> None:
    assert one(**table).by_rank is by_rank


def test_what_is_not_said_has_a_default() -> None:
    disk = one(kind="disk", path="checkpoints", at_step=1)
    assert (disk.who, disk.mode, disk.errno) == ("all", "fail", errno.EIO)
    assert disk.path == os.path.realpath("checkpoints")
    assert one(kind="disk", path=".", mode="full", at_step=1).errno == errno.ENOSPC
    assert one(kind="disk", path=".", errno="EROFS", at_step=1).errno == errno.EROFS
    assert one(kind="disk", path=".", errno=5, at_step=1).errno == errno.EIO
    assert (one(kind="terminate", at_step=1).who, one(kind="terminate", at_step=1).grace_s) == (
        "launcher",
        30.0,
    )
    assert one(kind="corrupt", path=".", when="restart").on_restart
    assert one(kind="kill", who=1, at_step=1, attempt=[0, 2]).attempts == (0, 2)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({}, "kind is None, but it must be one of"),
        ({"kind": "burn"}, 'kind is \'burn\', but it must be one of "kill", "terminate"'),
        ({"kind": ["kill"]}, "kind is ['kill'], but"),
        ({"kind": "kill", "at_step": 1}, "'kill' needs 'who': who = 1"),
        ({"kind": "data", "at_step": 1}, "'data' needs 'delay_s': delay_s = 0.5"),
        ({"kind": "kill", "who": 1}, "nothing says when; give one of at_step, after_s, every_s"),
        (
            {"kind": "corrupt", "path": "."},
            "give one of at_step, after_s, every_s, steps_between, when",
        ),
        (
            {"kind": "kill", "who": 1, "at_step": 1, "after_s": 2},
            "at_step and after_s both say when",
        ),
        ({"kind": "kill", "who": 1, "when": "restart"}, "'when' says nothing of 'kill'"),
        (
            {"kind": "kill", "who": 1, "at_step": 1, "path": "."},
            "'path' says nothing of 'kill', which takes who, at_step",
        ),
        (
            {"kind": "corrupt", "path": ".", "when": "noon"},
            "when is 'noon', but it must be \"restart\"",
        ),
        (
            {"kind": "kill", "who": -1, "at_step": 1},
            "who is -1, but it must be the number of a rank",
        ),
        (
            {"kind": "kill", "who": True, "at_step": 1},
            "who is True, but it must be the number of a rank",
        ),
        ({"kind": "kill", "who": "boss", "at_step": 1}, '"random" or "all" or "agent"'),
        ({"kind": "raise", "who": "agent", "at_step": 1}, '"random" or "all"'),
        (
            {"kind": "kill", "who": 1, "at_step": 0},
            "at_step is 0, but it must be a whole number from 1 on",
        ),
        (
            {"kind": "kill", "who": 1, "at_step": 2.5},
            "at_step is 2.5, but it must be a whole number",
        ),
        (
            {"kind": "kill", "who": 1, "at_step": "ten"},
            "at_step is 'ten', but it must be a whole number",
        ),
        (
            {"kind": "kill", "who": 1, "after_s": -1},
            "after_s is -1, but it must be a number of seconds",
        ),
        ({"kind": "kill", "who": 1, "after_s": float("nan")}, "after_s is nan, but"),
        (
            {"kind": "kill", "who": 1, "every_s": 0},
            "every_s is 0, but it must be more than 0 seconds",
        ),
        (
            {"kind": "kill", "who": 1, "steps_between": [60, 20]},
            "steps_between is [60, 20], but it must be two",
        ),
        (
            {"kind": "kill", "who": 1, "steps_between": 20},
            "steps_between is 20, but it must be two",
        ),
        ({"kind": "kill", "who": 1, "at_step": 1, "attempt": "first"}, "attempt is 'first', but"),
        ({"kind": "kill", "who": 1, "at_step": 1, "attempt": []}, "attempt is [], but"),
        ({"kind": "kill", "who": 1, "at_step": 1, "attempt": [-1]}, "attempt is [-1], but"),
        ({"kind": "kill", "who": 1, "at_step": 1, "times": 0}, "times is 0, but"),
        (
            {"kind": "kill", "who": 1, "at_step": 1, "node": 3},
            "node is 3, but it must be the name of a host",
        ),
        ({"kind": "terminate", "at_step": 1, "grace_s": "long"}, "grace_s is 'long', but"),
        ({"kind": "stop", "who": 1, "at_step": 1, "for_s": -2}, "for_s is -2, but"),
        (
            {"kind": "raise", "who": 1, "at_step": 1, "exception": "Boom: x"},
            "exception is 'Boom: x', but",
        ),
        (
            {"kind": "raise", "who": 1, "at_step": 1, "exception": "print"},
            "exception is 'print', but",
        ),
        (
            {"kind": "raise", "who": 1, "at_step": 1, "exception": "UnicodeDecodeError: x"},
            "one that takes a text",
        ),
        ({"kind": "raise", "who": 1, "at_step": 1, "exception": 3}, "exception is 3, but"),
        ({"kind": "disk", "path": "", "at_step": 1}, "path is '', but it must be a folder"),
        (
            {"kind": "disk", "path": ".", "mode": "odd", "at_step": 1},
            "mode is 'odd', but it must be one of",
        ),
        (
            {"kind": "disk", "path": ".", "delay_s": 1, "at_step": 1},
            "delay_s goes with mode = \"slow\", not 'fail'",
        ),
        (
            {"kind": "disk", "path": ".", "mode": "full", "errno": 5, "at_step": 1},
            'errno goes with mode = "fail"',
        ),
        ({"kind": "disk", "path": ".", "errno": "EHUH", "at_step": 1}, "errno is 'EHUH', but"),
        ({"kind": "disk", "path": ".", "errno": 99999, "at_step": 1}, "errno is 99999, but"),
        (
            {"kind": "corrupt", "path": ".", "how": "bend", "at_step": 1},
            "how is 'bend', but it must be one of",
        ),
        ({"kind": "network", "device": 7, "at_step": 1}, "device is 7, but"),
        ({"kind": "data", "delay_s": 0, "at_step": 1}, "delay_s is 0, but it must be more than 0"),
    ],
)
def test_what_is_wrong_is_named(table: dict[str, Any], sentence: str) -> None:
    good = {"kind": "kill", "who": 0, "at_step": 1}
    with pytest.raises(UsageError) as told:
        parse({"fault": [good, table]}, "plan.toml")
    assert str(told.value).startswith("plan.toml: fault 2: ")
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "the plan has no [[fault]]"),
        ({"fault": []}, "the plan has no [[fault]]"),
        ({"fault": {"kind": "kill"}}, "`fault` must be a list of tables"),
        ({"fault": ["kill"]}, "`fault` must be a list of tables"),
        ({"faults": []}, "'faults' is no part of a plan"),
        ({"seed": "7", "fault": []}, "seed is '7', but it must be a whole number"),
    ],
)
def test_the_plan_itself_may_be_wrong(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=r"^plan\.toml: ") as told:
        parse(data, "plan.toml")
    assert sentence in str(told.value)


def test_a_device_that_cannot_be_cut_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(UsageError, match="fault 1: there is no network device 'ether-9' here, but"):
        one(kind="network", device="ether-9", at_step=1)
    monkeypatch.setattr(network, "_may", lambda: False)
    with pytest.raises(UsageError, match="cutting 'lo' needs root"):
        one(kind="network", device="lo", at_step=1)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"kind": "kill", "who": 1, "at_step": 30}, "kill rank 1 at step 30"),
        ({"kind": "kill", "who": "all", "at_step": 3}, "kill everything at step 3"),
        (
            {"kind": "kill", "who": "agent", "every_s": 60, "times": 2},
            "kill the agent every 60 s on average, 2 times at most",
        ),
        (
            {"kind": "terminate", "after_s": 1.5, "grace_s": 5},
            "terminate the job, 5 s of grace, after 1.5 s",
        ),
        (
            {"kind": "stop", "who": "random", "steps_between": [2, 9], "for_s": 3},
            "stop a random rank for 3 s every 2-9 steps",
        ),
        (
            {"kind": "raise", "who": "all", "at_step": 3, "exception": "ValueError: x"},
            "raise 'ValueError: x' in all ranks at step 3",
        ),
        (
            {"kind": "disk", "path": "/c", "mode": "slow", "at_step": 3},
            "slow disk below /c for all ranks at step 3",
        ),
        (
            {"kind": "corrupt", "path": "/c", "when": "restart", "attempt": 1},
            "corrupt (flip) the newest checkpoint below /c before a restart of attempt 1",
        ),
        (
            {"kind": "network", "device": "eth0", "at_step": 3, "node": "n1"},
            "cut the network at eth0 at step 3, on n1",
        ),
        (
            {"kind": "data", "delay_s": 0.5, "who": 2, "at_step": 3},
            "delay each batch of rank 2 by 0.5 s at step 3",
        ),
    ],
)
def test_a_fault_in_words(table: dict[str, Any], text: str) -> None:
    assert one(**table).text == text


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("kill rank=1 step=30", {"kind": "kill", "who": 1, "at_step": 30}),
        ("kill who=agent after=2.5", {"kind": "kill", "who": "agent", "after_s": 2.5}),
        (
            "stop rank=0 between=20..60 for=3",
            {"kind": "stop", "who": 0, "steps_between": [20, 60], "for_s": 3},
        ),
        (
            "kill rank=0 step=3 attempt=0,2",
            {"kind": "kill", "who": 0, "at_step": 3, "attempt": [0, 2]},
        ),
        (
            "kill rank=0 step=3 attempt=1 times=2",
            {"kind": "kill", "who": 0, "at_step": 3, "attempt": 1, "times": 2},
        ),
        ("terminate every=9 grace=5", {"kind": "terminate", "every_s": 9, "grace_s": 5}),
        (
            "raise who=all step=3 exception='ValueError: a; b'",
            {"kind": "raise", "who": "all", "at_step": 3, "exception": "ValueError: a; b"},
        ),
        (
            "disk path=7 mode=fail errno=EROFS at_step=3",
            {"kind": "disk", "path": "7", "mode": "fail", "errno": "EROFS", "at_step": 3},
        ),
        (
            "corrupt path=c how=zero when=restart",
            {"kind": "corrupt", "path": "c", "how": "zero", "when": "restart"},
        ),
        (
            "network device=eth0 step=3 node=n1",
            {"kind": "network", "device": "eth0", "at_step": 3, "node": "n1"},
        ),
        ("disk path=7 errno=30 step=3", {"kind": "disk", "path": "7", "errno": 30, "at_step": 3}),
        ("data delay=0.5 step=3", {"kind": "data", "delay_s": 0.5, "at_step": 3}),
    ],
)
def test_the_short_form_says_the_same(text: str, table: dict[str, Any]) -> None:
    assert parse_inline(f" {text} ;; seed=7;") == parse({"seed": 7, "fault": [table]}, "x")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the plan has no"),
        ("kil rank=1", "'kil' is neither a file nor a kind of fault"),
        ("faults.yaml", "'faults.yaml' is neither a file nor"),
        ("kill rank 1", "fault 1: 'rank' is not of the form key=value"),
        ("kill rank=1 step=3; stop rank=x step=3", "fault 2: who is 'x', but"),
        ("kill 'rank=1", "cannot be read: No closing quotation"),
        ("seed=x; kill rank=1 step=3", "seed is 'x', but"),
    ],
)
def test_the_short_form_may_be_wrong(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=r"^--chaos: ") as told:
        parse_inline(text)
    assert sentence in str(told.value)


def test_one_plan_has_one_mark() -> None:
    first, again = parse_inline("kill rank=1 step=3"), parse_inline("kill who=1 at_step=3")
    assert first.mark == again.mark
    assert first.mark != parse_inline("seed=1; kill rank=1 step=3").mark
