"""The state in the store: in a folder and behind a URL, and who may write it."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Any

import pytest

from headway.errors import UsageError
from headway.fleet.alerts.state import (
    FIRING,
    PENDING,
    RESOLVED,
    STATE_FILE,
    Alert,
    AlertStateStore,
    Notification,
    State,
)
from headway.fleet.alerts.state import message as message_of
from headway.fleet.store.parquet import Store
from tests.support import has_code

pytestmark = pytest.mark.timeout(60)
AT = 1_790_000_000.25


def alert(state: str, **fields: Any) -> Alert:
    return Alert(f"id-{state}", "r", "all", "info", ("x",), state, AT, AT, "bad", 1.5, **fields)


STATE = State(
    (alert(FIRING, count=1), alert(RESOLVED, until=AT + 1, acknowledged_by="kim"), alert(PENDING)),
    (Notification("id.1", "x", AT, message_of(alert(FIRING), "firing", 1), 2, AT + 9, "no"),),
)


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    where = str(tmp_path) if request.param == "folder" else f"memory://{secrets.token_hex(8)}"
    return Store(where)


def by_id(state: State) -> dict[str, Alert]:
    return {one.id: one for one in state.alerts}


def test_what_is_saved_is_loaded(store: Store) -> None:
    assert AlertStateStore(store).load() == (State(), None)
    AlertStateStore(store).save(STATE, None)
    found, watcher = AlertStateStore(store).load()
    assert (by_id(found), found.outbox, watcher) == (by_id(STATE), STATE.outbox, None)


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    AlertStateStore(store).save(State(), None)
    path = Path(store.files.path("alerts.json"))
    assert path.stat().st_mode & 0o777 == 0o600


def test_acknowledgements_wait_until_they_are_read(store: Store) -> None:
    kept = AlertStateStore(store)
    assert kept.acks() == {}
    kept.acknowledge("a", "kim")
    kept.acknowledge("b", None)
    store.files.put("alerts/acks/c.json", b"torn")
    store.files.put("alerts/acks/note.txt", b"no ack")
    assert kept.acks() == {"a": "kim", "b": None}
    kept.delete_ack("a")
    kept.delete_ack("a")
    assert kept.acks() == {"b": None}


def test_only_one_watches(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = AlertStateStore(store)
    kept.save(STATE, AT + 100)
    assert by_id(kept.claim(AT)) == by_id(STATE)  # it was this process
    with monkeypatch.context() as other:
        other.setattr(os, "getpid", os.getppid)
        kept.save(STATE, AT + 100)
    with pytest.raises(UsageError, check=has_code("store-watched")) as error:
        kept.claim(AT)
    assert error.value.fields == {"pid": os.getppid(), "host": socket.gethostname()}
    assert kept.claim(AT + 100) is not None  # it has not been heard of for too long
    with monkeypatch.context() as other:
        other.setattr(socket, "gethostname", lambda: "elsewhere")
        kept.save(STATE, AT + 100)
    with pytest.raises(UsageError, check=has_code("store-watched")) as error:
        kept.claim(AT)
    assert error.value.fields["host"] == "elsewhere"


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"3", b"{}", b'{"alerts": [{}], "pending": [], "outbox": []}', b"[" * 100_000),
        b'{"alerts": [], "pending": [], "outbox": [], "watcher": {"host": "x"}}',
        b'{"alerts": [], "pending": [], "outbox": [], "watcher": 5}',
        b'{"schema": [9], "alerts": 1}',
    ],
)
def test_what_is_no_such_file_is_told(store: Store, text: bytes) -> None:
    store.files.put(STATE_FILE, text)
    with pytest.raises(UsageError, check=has_code("alerts-file-damaged")):
        AlertStateStore(store).load()
