"""Plans: what is allowed in them, and the error for everything else."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from headway.chaos import network
from headway.chaos.plan import KINDS, Fault, parse_inline_plan, parse_plan
from headway.errors import UsageError
from tests.support import Golden, has_code


@pytest.fixture(autouse=True)
def _a_cable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "unusable_reason", lambda device: "")


def one(**table: Any) -> Fault:
    (fault,) = parse_plan({"fault": [table]}, "plan.toml").faults
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
    assert "3 s" in fault.text


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
    ("table", "code", "key"),
    [
        ({}, "fault-value-invalid", "kind"),
        ({"kind": "burn"}, "fault-value-invalid", "kind"),
        ({"kind": ["kill"]}, "fault-value-invalid", "kind"),
        ({"kind": "kill", "at_step": 1}, "fault-key-missing", "who"),
        ({"kind": "data", "at_step": 1}, "fault-key-missing", "delay_s"),
        ({"kind": "kill", "who": 1}, "fault-moment-not-unique", None),
        ({"kind": "corrupt", "path": "."}, "fault-moment-not-unique", None),
        ({"kind": "kill", "who": 1, "at_step": 1, "after_s": 2}, "fault-moment-not-unique", None),
        ({"kind": "kill", "who": 1, "when": "restart"}, "fault-key-unknown", "when"),
        ({"kind": "kill", "who": 1, "at_step": 1, "path": "."}, "fault-key-unknown", "path"),
        ({"kind": "corrupt", "path": ".", "when": "noon"}, "fault-value-invalid", "when"),
        ({"kind": "kill", "who": -1, "at_step": 1}, "fault-value-invalid", "who"),
        ({"kind": "kill", "who": True, "at_step": 1}, "fault-value-invalid", "who"),
        ({"kind": "kill", "who": "boss", "at_step": 1}, "fault-value-invalid", "who"),
        ({"kind": "raise", "who": "agent", "at_step": 1}, "fault-value-invalid", "who"),
        ({"kind": "kill", "who": 1, "at_step": 0}, "fault-value-invalid", "at_step"),
        ({"kind": "kill", "who": 1, "at_step": 2.5}, "fault-value-invalid", "at_step"),
        ({"kind": "kill", "who": 1, "at_step": "ten"}, "fault-value-invalid", "at_step"),
        ({"kind": "kill", "who": 1, "after_s": -1}, "fault-value-invalid", "after_s"),
        ({"kind": "kill", "who": 1, "after_s": float("nan")}, "fault-value-invalid", "after_s"),
        ({"kind": "kill", "who": 1, "every_s": 0}, "fault-value-invalid", "every_s"),
        (
            {"kind": "kill", "who": 1, "steps_between": [60, 20]},
            "fault-value-invalid",
            "steps_between",
        ),
        ({"kind": "kill", "who": 1, "steps_between": 20}, "fault-value-invalid", "steps_between"),
        (
            {"kind": "kill", "who": 1, "at_step": 1, "attempt": "first"},
            "fault-value-invalid",
            "attempt",
        ),
        ({"kind": "kill", "who": 1, "at_step": 1, "attempt": []}, "fault-value-invalid", "attempt"),
        (
            {"kind": "kill", "who": 1, "at_step": 1, "attempt": [-1]},
            "fault-value-invalid",
            "attempt",
        ),
        ({"kind": "kill", "who": 1, "at_step": 1, "times": 0}, "fault-value-invalid", "times"),
        ({"kind": "kill", "who": 1, "at_step": 1, "node": 3}, "fault-value-invalid", "node"),
        ({"kind": "terminate", "at_step": 1, "grace_s": "long"}, "fault-value-invalid", "grace_s"),
        ({"kind": "stop", "who": 1, "at_step": 1, "for_s": -2}, "fault-value-invalid", "for_s"),
        (
            {"kind": "raise", "who": 1, "at_step": 1, "exception": "Boom: x"},
            "fault-value-invalid",
            "exception",
        ),
        (
            {"kind": "raise", "who": 1, "at_step": 1, "exception": "print"},
            "fault-value-invalid",
            "exception",
        ),
        (
            {"kind": "raise", "who": 1, "at_step": 1, "exception": "UnicodeDecodeError: x"},
            "fault-value-invalid",
            "exception",
        ),
        (
            {"kind": "raise", "who": 1, "at_step": 1, "exception": 3},
            "fault-value-invalid",
            "exception",
        ),
        ({"kind": "disk", "path": "", "at_step": 1}, "fault-value-invalid", "path"),
        ({"kind": "disk", "path": ".", "mode": "odd", "at_step": 1}, "fault-value-invalid", "mode"),
        (
            {"kind": "disk", "path": ".", "delay_s": 1, "at_step": 1},
            "fault-mode-mismatch",
            "delay_s",
        ),
        (
            {"kind": "disk", "path": ".", "mode": "full", "errno": 5, "at_step": 1},
            "fault-mode-mismatch",
            "errno",
        ),
        (
            {"kind": "disk", "path": ".", "errno": "EHUH", "at_step": 1},
            "fault-value-invalid",
            "errno",
        ),
        (
            {"kind": "disk", "path": ".", "errno": 99999, "at_step": 1},
            "fault-value-invalid",
            "errno",
        ),
        (
            {"kind": "corrupt", "path": ".", "how": "bend", "at_step": 1},
            "fault-value-invalid",
            "how",
        ),
        ({"kind": "network", "device": 7, "at_step": 1}, "fault-value-invalid", "device"),
        ({"kind": "data", "delay_s": 0, "at_step": 1}, "fault-value-invalid", "delay_s"),
    ],
)
def test_what_is_wrong_is_named(table: dict[str, Any], code: str, key: str | None) -> None:
    good = {"kind": "kill", "who": 0, "at_step": 1}
    with pytest.raises(UsageError, check=has_code(code)) as error:
        parse_plan({"fault": [good, table]}, "plan.toml")
    fields = error.value.fields
    assert (fields["fault"], fields.get("key")) == (2, key)
    assert str(error.value).startswith("plan.toml: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({}, "plan-empty"),
        ({"fault": []}, "plan-empty"),
        ({"fault": {"kind": "kill"}}, "plan-faults-invalid"),
        ({"fault": ["kill"]}, "plan-faults-invalid"),
        ({"faults": []}, "plan-key-unknown"),
        ({"seed": "7", "fault": []}, "plan-seed-invalid"),
    ],
)
def test_the_plan_itself_may_be_wrong(data: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError, match=r"^plan\.toml:", check=has_code(code)):
        parse_plan(data, "plan.toml")


def test_a_device_that_cannot_be_cut_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    impossible = has_code("network-fault-impossible")
    with pytest.raises(UsageError, match="ether-9", check=impossible) as error:
        one(kind="network", device="ether-9", at_step=1)
    assert error.value.fields["fault"] == 1
    monkeypatch.setattr(network, "_is_permitted", lambda: False)
    with pytest.raises(UsageError, match="'lo'", check=impossible):
        one(kind="network", device="lo", at_step=1)


def test_faults_in_words(golden: Golden) -> None:
    tables: list[dict[str, Any]] = [
        {"kind": "kill", "who": 1, "at_step": 30},
        {"kind": "kill", "who": "all", "at_step": 3},
        {"kind": "kill", "who": "agent", "every_s": 60, "times": 2},
        {"kind": "terminate", "after_s": 1.5, "grace_s": 5},
        {"kind": "stop", "who": "random", "steps_between": [2, 9], "for_s": 3},
        {"kind": "raise", "who": "all", "at_step": 3, "exception": "ValueError: x"},
        {"kind": "disk", "path": "/c", "mode": "slow", "at_step": 3},
        {"kind": "corrupt", "path": "/c", "when": "restart", "attempt": 1},
        {"kind": "network", "device": "eth0", "at_step": 3, "node": "n1"},
        {"kind": "data", "delay_s": 0.5, "who": 2, "at_step": 3},
    ]
    golden("faults.txt", "".join(f"{one(**table).text}\n" for table in tables))


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
    assert parse_inline_plan(f" {text} ;; seed=7;") == parse_plan(
        {"seed": 7, "fault": [table]}, "x"
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "plan-empty"),
        ("kil rank=1", "fault-kind-unknown"),
        ("faults.yaml", "fault-kind-unknown"),
        ("kill rank 1", "fault-word-invalid"),
        ("kill rank=1 step=3; stop rank=x step=3", "fault-value-invalid"),
        ("kill 'rank=1", "plan-unreadable"),
        ("seed=x; kill rank=1 step=3", "plan-seed-invalid"),
    ],
)
def test_the_short_form_may_be_wrong(text: str, code: str) -> None:
    with pytest.raises(UsageError, match=r"^--chaos:", check=has_code(code)):
        parse_inline_plan(text)


def test_one_plan_has_one_mark() -> None:
    first, again = (
        parse_inline_plan("kill rank=1 step=3"),
        parse_inline_plan("kill who=1 at_step=3"),
    )
    assert first.mark == again.mark
    assert first.mark != parse_inline_plan("seed=1; kill rank=1 step=3").mark
