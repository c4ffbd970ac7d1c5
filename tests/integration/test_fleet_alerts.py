"""`headway fleet alerts` as a person types it: real receivers, real `kill -9`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.fleet.store import Store
from headway.ledger.leaves import EFFECTIVE

from ..unit.fleet.alerts.receivers import Hook, served
from ..unit.fleet.made import rows_of

pytestmark = pytest.mark.timeout(120)
RULE = """
[[rule]]
name = "ads trains"
kind = "threshold"
metric = "ett"
below = 85
where = { team = "ads" }
clear_for = "0s"
to = [%s]
"""


@pytest.fixture
def hook() -> Iterator[Hook]:
    with served(Hook()) as found:
        yield found
        found.hold.set()


class Fleet:
    """A store with one run, rules, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(str(folder / "store"))

    def run(self, ett: float) -> None:
        """One run that ended an hour ago; written again, it is another one."""
        now = datetime.now(timezone.utc).replace(tzinfo=None)
        leaves = {EFFECTIVE: 36 * ett, "waste.data_stall": 3600 - 36 * ett}
        self.store.write(
            rows_of("run", start=now - timedelta(hours=2), leaves=leaves, team="ads"),
            as_of=time.time(),
        )

    def rules(self, **channels: str) -> None:
        names = ", ".join(f'"{name}"' for name in channels)
        tables = "".join(f"[to.{name}]\n{text}\n" for name, text in channels.items())
        (self.folder / "rules.toml").write_text(RULE % names + tables)

    @property
    def flags(self) -> list[str]:
        return ["--store", self.store.url, "--rules", str(self.folder / "rules.toml")]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "headway", "fleet", "alerts", *self.flags, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def once(self) -> int:
        return main(["fleet", "alerts", *self.flags, "--once"])

    def kept(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "store" / "alerts.json").read_text())
        return found


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet(tmp_path)
    made.run(80)
    return made


def until(true: Callable[[], object]) -> None:
    for _ in range(1500):
        if true():
            return
        time.sleep(0.02)
    pytest.fail("it did not come to that")


def ended(process: subprocess.Popen[str]) -> str:
    """What it said, once it has ended."""
    return process.communicate(timeout=60)[0]


def test_from_bad_to_taken_on_to_good(
    fleet: Fleet, hook: Hook, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.rules(hook=f'webhook = "{hook.url}"')
    assert fleet.once() == 0 and hook.events == ["firing"]
    assert fleet.once() == 0 and hook.events == ["firing"]
    (alert,) = fleet.kept()["alerts"]
    shown = {name: alert[name] for name in ("state", "rule", "slice", "until")}
    assert shown == {"state": "firing", "rule": "ads trains", "slice": "team=ads", "until": None}
    assert datetime.fromisoformat(alert["since"])
    assert hook.got[0]["alert"]["id"] == alert["id"]

    store = ["--store", fleet.store.url]
    capsys.readouterr()
    assert main(["fleet", "alerts", *store, "--list"]) == 0
    told = capsys.readouterr().out
    assert alert["id"] in told and "ETT of team=ads is 80.0 %" in told
    assert main(["fleet", "alerts", *store, "--ack", alert["id"], "--by", "kim"]) == 0
    assert "kim has taken on" in capsys.readouterr().out
    assert main(["fleet", "alerts", *store, "--list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["alerts"]
    assert (listed["state"], listed["by"]) == ("acknowledged", "kim")
    assert fleet.once() == 0 and fleet.kept()["alerts"][0]["by"] == "kim"
    assert not list((fleet.folder / "store" / "alerts" / "acks").iterdir())
    assert main(["fleet", "alerts", *store, "--ack", alert["id"]]) == 2
    assert "was acknowledged by kim" in capsys.readouterr().err

    fleet.run(95)
    assert fleet.once() == 0 and hook.events == ["firing", "resolved"]
    assert main(["fleet", "alerts", *store, "--ack", alert["id"]]) == 2
    assert "is over" in capsys.readouterr().err
    assert hook.got[1]["alert"]["until"] is not None
    assert main(["fleet", "ett", *store]) == 0  # the store is as good as before


def test_the_page_shows_what_was_raised(fleet: Fleet, hook: Hook) -> None:
    pytest.importorskip("starlette")
    from headway.serve.source import Source

    fleet.rules(hook=f'webhook = "{hook.url}"')
    assert fleet.once() == 0
    source = Source(fleet.store, [])
    try:
        (row,) = source.alerts() or []
    finally:
        source.close()
    assert (row["state"], row["slice"]) == ("firing", "team=ads")


def test_killed_while_a_receiver_takes_it(fleet: Fleet, hook: Hook) -> None:
    hook.hold.clear()
    fleet.rules(hook=f'webhook = "{hook.url}"')
    process = fleet.start("--watch", "--every", "1")
    until(lambda: hook.asked)
    process.send_signal(signal.SIGKILL)
    ended(process)
    (left,) = fleet.kept()["outbox"]
    hook.hold.set()
    until(lambda: hook.got)
    assert fleet.once() == 0
    assert [one["id"] for one in hook.got] == [left["id"], left["id"]]
    assert fleet.kept()["outbox"] == [] and fleet.once() == 0
    assert len(hook.got) == 2


@pytest.mark.parametrize("first", ["tell", "kill"])
def test_killed_just_before_and_just_after_it_is_taken(fleet: Fleet, first: str) -> None:
    tell = "cat > m; python3 -c \"import json; print(json.load(open('m'))['id'])\" >> got"
    kill = "test -e killed || { touch killed; kill -9 $PPID; sleep 60; }"
    line = "; ".join((tell, kill) if first == "tell" else (kill, tell))
    fleet.rules(script=f'shell = true\ncommand = """{line}"""'.replace('"import', '\\"import'))
    process = fleet.start()
    ended(process)
    assert process.returncode == -signal.SIGKILL
    (left,) = fleet.kept()["outbox"]
    for _ in range(2):
        process = fleet.start()
        ended(process)
        assert process.returncode == 0
    told = (fleet.folder / "got").read_text().split()
    assert told == [left["id"]] * (2 if first == "tell" else 1)
    assert fleet.kept()["outbox"] == []


def test_a_channel_that_fails_holds_nobody_up_and_gets_it_later(
    fleet: Fleet, hook: Hook, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Hook()
    other.codes = [503] * 3
    with served(other):
        fleet.rules(bad=f'webhook = "{other.url}"', good=f'webhook = "{hook.url}"')
        assert fleet.once() == 1
        assert hook.events == ["firing"] and other.events == []
        told = capsys.readouterr().err.splitlines()
        refused = [line for line in told if "'bad' did not take" in line]
        assert len(refused) == 3 and refused[0].endswith("it answered 503 Service Unavailable")
        assert told[-1].startswith("headway: 1 notifications were not taken by bad; they are tried")
        assert fleet.once() == 0
        assert hook.events == ["firing"] and other.events == ["firing"]


def test_a_channel_that_hangs_holds_nobody_up_and_gets_all_in_order(
    fleet: Fleet, hook: Hook
) -> None:
    other = Hook()
    other.hold.clear()
    with served(other):
        fleet.rules(bad=f'webhook = "{other.url}"', good=f'webhook = "{hook.url}"')
        process = fleet.start("--watch", "--every", "1")
        until(lambda: other.asked and hook.events == ["firing"])
        fleet.run(95)
        until(lambda: hook.events == ["firing", "resolved"])
        assert other.got == [] and other.asked == 1
        other.hold.set()
        until(lambda: other.events == ["firing", "resolved"])
        process.terminate()
        ended(process)


def test_one_watches_and_what_it_leaves_is_taken_over(fleet: Fleet, hook: Hook) -> None:
    fleet.rules(hook=f'webhook = "{hook.url}"')
    first = fleet.start("--watch", "--every", "1")
    until(lambda: hook.events == ["firing"])
    second = fleet.start()
    assert ended(second).startswith(f"headway: process {first.pid} on ") and second.returncode == 2
    first.kill()
    ended(first)
    third = fleet.start("--watch", "--every", "1")
    fleet.run(95)
    until(lambda: hook.events == ["firing", "resolved"])
    third.terminate()
    ended(third)
    assert third.returncode == 0 and fleet.kept()["watcher"] is None


def test_nothing_is_sent_while_nothing_can_be_kept(fleet: Fleet, hook: Hook) -> None:
    fleet.run(95)
    fleet.rules(hook=f'webhook = "{hook.url}"')
    process = fleet.start("--watch", "--every", "1")
    file = fleet.folder / "store" / "alerts.json"
    until(file.exists)

    def blocked() -> bool:
        file.unlink(missing_ok=True)
        try:
            file.mkdir()
        except FileExistsError:
            return False  # it was written in between
        return True

    until(blocked)
    fleet.run(80)
    assert process.stdout is not None
    lines: list[str] = []
    while "ETT of team=ads is 80.0 %" not in "".join(lines):
        lines.append(process.stdout.readline())
    time.sleep(0.5)
    assert hook.got == [] and process.poll() is None
    file.rmdir()
    until(lambda: hook.events == ["firing"])
    process.terminate()
    said = "".join(lines) + ended(process)
    assert said.count("alerts cannot be kept, and nothing is sent until they are") == 1
    assert fleet.kept()["outbox"] == []


def test_check_needs_no_store(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.rules(script='command = ["true"]')
    words = ["fleet", "alerts", "--check", "--rules", str(fleet.folder / "rules.toml")]
    assert main(words) == 0
    assert capsys.readouterr().out == (
        "ads trains: threshold, ETT below 85.0 % of team=ads over 1d; warning, to script\n"
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--once", "no rules are named; give the file with --rules"),
        ("--check --rules none.toml", "--rules none.toml cannot be read: No such file"),
        ("--check --rules .", "--rules . cannot be read: Is a directory"),
        ("--check --rules bad.toml", "bad.toml line 2: 'nmae' is not known here; did you mean"),
        ("--check --rules binary.toml", "--rules binary.toml is no text in UTF-8"),
        ("--rules rules.toml", "no store is named; give it with --store, or set HEADWAY_STORE"),
        ("--rules rules.toml --store none", "there is no store at none; make one with"),
        ("--rules rules.toml --store store", "the rules need the environment variable NOT_SET"),
        ("--list --store none", "there is no store at none; make one with"),
        ("--list --watch", "argument --watch: not allowed with argument --list"),
        ("--ack x --store store", "there is no alert 'x'; see `headway fleet alerts --list`"),
        ("--ack ../x --store store", "there is no alert '../x'; see"),
        ("--every 5", "--every is for --watch, and must be 1 second or more"),
        ("--watch --every 0 --rules rules.toml", "--every is for --watch, and must be 1 second"),
        ("--watch --every nan --rules rules.toml", "--every is for --watch, and must be 1 second"),
        ("--by kim", "--by goes with --ack"),
        ("--json", "--json goes with --list"),
        ("--list --store torn", "torn/alerts.json is damaged, or not of `headway fleet alerts`"),
        ("--list --store own", "own/alerts.json is damaged, or not of `headway fleet alerts`"),
        ("--list --store newer", "newer/alerts.json has schema 9, and this Headway knows up to 1"),
        ("--list --store postgresql://h/x", "is a PostgreSQL, and this needs a store of files"),
    ],
)
def test_wrong_use_is_one_sentence(
    fleet: Fleet,
    words: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(fleet.folder)
    for name in ("HEADWAY_STORE", "NOT_SET"):
        monkeypatch.delenv(name, raising=False)
    fleet.rules(hook='webhook = "env:NOT_SET"')
    Path("bad.toml").write_text("[[rule]]\nnmae = 1\n" + 'name = "a"\nkind = "change"\n')
    Path("binary.toml").write_bytes(b"\xff\xfe")
    for name, text in {"torn": "{", "own": "[]", "newer": '{"schema": 9}'}.items():
        Path(name).mkdir()
        Path(name, "store.json").write_text("{}")
        Path(name, "alerts.json").write_text(text)
    try:
        code = main(["fleet", "alerts", *words.split()])
    except SystemExit as error:  # argparse
        code = int(str(error.code))
    told = capsys.readouterr().err
    assert code == 2 and why in told and told.count("\n") == 1
    assert not Path("store", "alerts.json").exists() and not os.path.exists("store/alerts")
