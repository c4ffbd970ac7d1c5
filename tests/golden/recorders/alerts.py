"""The state of alerts in a store: alerts in each state, and what is still to be sent."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.golden.cases import asked, command
from tests.golden.recorders import fleet_store

RULE = """
[[rule]]
name = "{name}"
kind = "threshold"
metric = "ett"
by = ["team"]
{side} = {limit}
over = "3650d"
{more}
"""
CHANNELS = """
[to.page]
command = ["false"]

[to.chat]
command = ["true"]
"""


def _rules(side: str) -> str:
    """One rule that is bad for all teams, one that waits, and one that gets well."""
    rules = [
        RULE.format(name="trains", side="below", limit=101, more='to = ["page", "chat"]'),
        RULE.format(name="waits", side="below", limit=101, more='for = "2h"\nto = "chat"'),
        RULE.format(name="ends", side=side, limit=101, more='to = "chat"\nclear_for = "0s"'),
    ]
    Path("rules.toml").write_text("".join(rules) + CHANNELS)
    return "rules.toml"


def _state(files: Path) -> None:
    fleet_store._ingest(Path("store"), "everything", "preempted")
    for side in ("below", "above"):
        rules = _rules(side)
        assert command("fleet", "alerts", "--store", "store", "--rules", rules, "--once")[0] == 1
    found = asked("fleet", "alerts", "--store", "store", "--list", "--json")
    firing = [one["id"] for one in found["alerts"] if one["state"] == "firing"]
    for number, alert in enumerate(firing):
        ack = ["fleet", "alerts", "--store", "store", "--ack", alert, "--by", f"person{number}"]
        assert command(*ack)[0] == 0
        if not number:  # the next round takes it over; the other one stays where it is
            assert command("fleet", "alerts", "--store", "store", "--rules", rules)[0] == 1
    assert {one["state"] for one in found["alerts"]} == {"firing", "resolved"}
    assert found["pending"] and found["outbox"]
    (files / "store").mkdir()
    for name in ("store.json", "alerts.json", "alerts"):
        copy = shutil.copytree if Path("store", name).is_dir() else shutil.copy
        copy(f"store/{name}", files / "store" / name)


RECORDERS = {
    "state": (_state, "alerts in every state, unsent notifications, an acknowledgement", ()),
}
