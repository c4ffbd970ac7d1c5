"""`headway fleet alerts` as a person types it: real receivers, real `kill -9`."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.fleet.store.parquet import Store
from headway.ledger.buckets import EFFECTIVE
from tests.integration.forks import command
from tests.support import Golden, codes, wait_until
from tests.unit.fleet.alerts.receivers import Hook, served
from tests.unit.fleet.store_rows import run_rows

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("store-forks")]
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

    def __init__(self, folder: Path, forks: ForkServerContext) -> None:
        self.folder, self.forks = folder, forks
        self.store = Store(str(folder / "store"))
        self.processes: list[ForkServerProcess] = []

    def run(self, ett: float) -> None:
        """One run that ended an hour ago; written again, it is another one."""
        now = datetime.now(UTC).replace(tzinfo=None)
        leaves = {EFFECTIVE: 36 * ett, "waste.data_stall": 3600 - 36 * ett}
        self.store.write(
            run_rows("run", start=now - timedelta(hours=2), leaves=leaves, team="ads"),
            as_of=time.time(),
        )

    def rules(self, **channels: str) -> None:
        names = ", ".join(f'"{name}"' for name in channels)
        tables = "".join(f"[to.{name}]\n{text}\n" for name, text in channels.items())
        (self.folder / "rules.toml").write_text(RULE % names + tables)

    @property
    def flags(self) -> list[str]:
        return ["--store", self.store.url, "--rules", str(self.folder / "rules.toml")]

    def start(self, *words: str) -> ForkServerProcess:
        """In a process of its own, which writes to `output`."""
        given = ["fleet", "alerts", *self.flags, *words]
        process = self.forks.Process(target=command, args=(given, self.folder, self.output))
        process.start()
        self.processes.append(process)
        return process

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def once(self) -> int:
        return main(["fleet", "alerts", *self.flags, "--once"])

    def kept(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "store" / "alerts.json").read_text())
        return found


@pytest.fixture
def fleet(tmp_path: Path, store_forks: ForkServerContext) -> Iterator[Fleet]:
    made = Fleet(tmp_path, store_forks)
    made.run(80)
    yield made
    for process in made.processes:
        process.kill()
        process.join()


def ended(process: ForkServerProcess) -> int | None:
    """Its exit code."""
    process.join(60)
    return process.exitcode


def test_from_bad_to_taken_on_to_good(
    fleet: Fleet, hook: Hook, capsys: pytest.CaptureFixture[str], golden: Golden
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
    assert main(["fleet", "alerts", *store, "--ack", alert["id"], "--by", "kim"]) == 0
    shown = capsys.readouterr().out.replace(alert["id"], "IDENTIFIER..")
    golden("alerts.txt", re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "2026-11-16 12:30", shown))
    assert main(["fleet", "alerts", *store, "--list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["alerts"]
    assert (listed["state"], listed["by"]) == ("acknowledged", "kim")
    assert fleet.once() == 0 and fleet.kept()["alerts"][0]["by"] == "kim"
    assert not list((fleet.folder / "store" / "alerts" / "acks").iterdir())
    assert main(["fleet", "alerts", *store, "--ack", alert["id"]]) == 2
    assert codes(capsys.readouterr().err) == ["alert-acknowledged"]

    fleet.run(95)
    assert fleet.once() == 0 and hook.events == ["firing", "resolved"]
    capsys.readouterr()
    assert main(["fleet", "alerts", *store, "--ack", alert["id"]]) == 2
    assert codes(capsys.readouterr().err) == ["alert-resolved"]
    assert hook.got[1]["alert"]["until"] is not None
    assert main(["fleet", "ett", *store]) == 0  # the store is as good as before


def test_the_page_shows_what_was_raised(fleet: Fleet, hook: Hook) -> None:
    pytest.importorskip("starlette")
    from headway.serve.sources import Source

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
    wait_until(lambda: hook.asked)
    process.kill()
    ended(process)
    (left,) = fleet.kept()["outbox"]
    hook.hold.set()
    wait_until(lambda: hook.got)
    assert fleet.once() == 0
    assert [one["id"] for one in hook.got] == [left["id"], left["id"]]
    assert fleet.kept()["outbox"] == [] and fleet.once() == 0
    assert len(hook.got) == 2


@pytest.mark.parametrize("first", ["tell", "kill"])
def test_killed_just_before_and_just_after_it_is_taken(
    fleet: Fleet, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = "cat > m; python3 -c \"import json; print(json.load(open('m'))['id'])\" >> got"
    kill = "test -e killed || { touch killed; kill -9 $PPID; sleep 60; }"
    line = "; ".join((tell, kill) if first == "tell" else (kill, tell))
    fleet.rules(script=f'shell = true\ncommand = """{line}"""'.replace('"import', '\\"import'))
    assert ended(fleet.start()) == -signal.SIGKILL
    (left,) = fleet.kept()["outbox"]
    monkeypatch.chdir(fleet.folder)
    assert [fleet.once(), fleet.once()] == [0, 0]
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
        log = capsys.readouterr().err
        found = [code for code in codes(log) if code]
        assert found == ["notification-refused"] * 3 + ["notifications-left"]
        assert log.count("'bad'") == log.count("503") == 3
        assert main(["fleet", "alerts", "--store", fleet.store.url, "--list"]) == 0
        assert codes(capsys.readouterr().err) == ["notification-unsent"]
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
        wait_until(lambda: other.asked and hook.events == ["firing"])
        fleet.run(95)
        wait_until(lambda: hook.events == ["firing", "resolved"])
        assert other.got == [] and other.asked == 1
        other.hold.set()
        wait_until(lambda: other.events == ["firing", "resolved"])
        process.terminate()
        ended(process)


def test_one_watches_and_what_it_leaves_is_taken_over(
    fleet: Fleet, hook: Hook, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.rules(hook=f'webhook = "{hook.url}"')
    first = fleet.start("--watch", "--every", "1")
    wait_until(lambda: hook.events == ["firing"])
    wait_until(lambda: not fleet.kept()["outbox"])  # killed before that, it would be sent again
    assert fleet.once() == 2
    error = capsys.readouterr().err
    assert codes(error) == ["store-watched"] and str(first.pid) in error
    first.kill()
    ended(first)
    second = fleet.start("--watch", "--every", "1")
    fleet.run(95)
    wait_until(lambda: hook.events == ["firing", "resolved"])
    second.terminate()
    assert ended(second) == 0 and fleet.kept()["watcher"] is None


def test_nothing_is_sent_while_nothing_can_be_kept(fleet: Fleet, hook: Hook) -> None:
    fleet.run(95)
    fleet.rules(hook=f'webhook = "{hook.url}"')
    process = fleet.start("--watch", "--every", "1")
    file = fleet.folder / "store" / "alerts.json"
    wait_until(file.exists)

    def blocked() -> bool:
        file.unlink(missing_ok=True)
        try:
            file.mkdir()
        except FileExistsError:
            return False  # it was written in between
        return True

    wait_until(blocked)
    fleet.run(80)
    wait_until(lambda: "80.0 %" in fleet.output.read_text())
    time.sleep(0.5)
    assert hook.got == [] and process.is_alive()
    file.rmdir()
    wait_until(lambda: hook.events == ["firing"])
    process.terminate()
    ended(process)
    assert codes(fleet.output.read_text()).count("alerts-not-saved") == 1
    assert fleet.kept()["outbox"] == []


def test_check_needs_no_store(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    fleet.rules(script='command = ["true"]')
    words = ["fleet", "alerts", "--check", "--rules", str(fleet.folder / "rules.toml")]
    assert main(words) == 0
    golden("alerts_check.txt", capsys.readouterr().out)
