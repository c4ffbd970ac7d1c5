"""What a machine could not do now is tried again; what an anchor cannot become is not."""

from __future__ import annotations

import builtins
import errno
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.errors import PublishDeferred, PublishFailed
from headway.publish import claims, validate
from headway.publish import watch as watching
from headway.publish.anchor import find_anchor, pending_anchors
from headway.publish.store import SnapshotStore
from headway.publish.validate import CheckResult, TargetCheck, check_here
from headway.storage.place import open_place
from tests.support import codes, has_code, lazy
from tests.unit.publish.anchors import checkpoint, recipe, state

torch = lazy("torch")
is_transient = lazy("headway.publish.failures:is_transient")
publish = lazy("headway.publish.job:publish")
trained = lazy("tests.unit.publish.dlrm:trained")


def no_room(check: TargetCheck) -> CheckResult:
    return CheckResult(error="it was ended by SIGKILL in a fresh process", transient=True)


def slow(check: TargetCheck) -> CheckResult:
    return replace(check_here(check), latency_ms=10**6)


class Worker:
    """Looks at an anchor once in a while."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **sections: str) -> None:
        monkeypatch.setattr("headway.publish.validate.TIMED_S", 0)
        monkeypatch.setattr(watching, "time", self)
        self.now = 1e9
        self.url, self.store = str(folder / "anchor"), SnapshotStore(folder / "store")
        self.recipe = recipe(folder, **sections)
        self.tried = 0

    def time(self) -> float:
        return self.now

    def look(self, examine: Callable[[TargetCheck], CheckResult]) -> list[str]:
        """The codes of what it said."""
        lines: list[str] = []

        def counted(*args: Any, **more: Any) -> Any:
            self.tried += 1
            return publish(*args, **more)

        how = {"once": True, "check_target": examine, "publish": counted}
        watching.watch(self.url, self.recipe, self.store, log=lines.append, **how)  # type: ignore[arg-type]
        return codes("\n".join(lines))

    @property
    def outcome_of(self) -> dict[str, Any]:
        (anchor,) = pending_anchors(self.url)
        return self.store.outcome_of(anchor.key(self.recipe.digest))


@pytest.mark.parametrize(
    ("examine", "limits"), [(no_room, ""), (slow, "latency_ms = 1000")], ids=["no room", "slow"]
)
def test_it_is_tried_again_later(
    examine: Callable[[TargetCheck], CheckResult],
    limits: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint(tmp_path / "anchor", state(trained()), 1)
    worker = Worker(tmp_path, monkeypatch, limits=limits)
    assert worker.look(examine) == ["snapshot-deferred"]
    assert worker.look(examine) == [] and worker.tried == 1, "it is too early"
    assert (worker.outcome_of["tries"], worker.outcome_of["again"]) == (
        1,
        worker.now + watching.FIRST_RETRY_S,
    )
    worker.now += watching.FIRST_RETRY_S
    assert worker.look(examine) == ["snapshot-deferred"]
    assert worker.outcome_of["again"] == worker.now + 2 * watching.FIRST_RETRY_S
    worker.now += 2 * watching.FIRST_RETRY_S
    assert worker.look(check_here) == [""] and worker.store.latest() is not None
    assert worker.outcome_of.keys() == {"snapshot"}


def test_in_the_end_it_is_turned_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(tmp_path / "anchor", state(trained()), 1)
    worker = Worker(tmp_path, monkeypatch)
    for _ in range(watching.MAX_TRIES):
        assert worker.look(no_room) == ["snapshot-deferred"]
        worker.now += watching.MAX_RETRY_S
    assert worker.outcome_of.keys() == {"rejected"}
    assert worker.look(check_here) == [] and worker.tried == watching.MAX_TRIES


def test_a_clock_that_was_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(tmp_path / "anchor", state(trained()), 1)
    worker = Worker(tmp_path, monkeypatch)
    worker.look(no_room)
    worker.now -= 10**8
    assert worker.look(check_here) == [""]


def test_who_waits_for_it_still_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(tmp_path / "anchor", state(trained()), 1)
    worker = Worker(tmp_path, monkeypatch)
    worker.look(no_room)
    (anchor,) = pending_anchors(worker.url)
    names = open_place(worker.url).list_names(claims.CLAIMS_FOLDER)
    assert len(names) == 1 and not claims.release_anchor(anchor, "another")
    worker.now += watching.MAX_RETRY_S
    worker.look(lambda check: replace(check_here(check), finite=False))
    assert worker.outcome_of.keys() == {"rejected"} and claims.release_anchor(anchor, "another")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOMEM])
def test_a_disk_that_does_not_answer(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint is as good as before."""
    checkpoint(tmp_path / "anchor", state(trained()), 1)
    worker = Worker(tmp_path, monkeypatch)
    name, opened = str(tmp_path / "anchor"), builtins.open

    def refused(path: Any, *args: Any, **more: Any) -> Any:
        if str(path).startswith(name) and str(path).endswith((".metadata", ".distcp")):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", refused)
        (code,) = worker.look(check_here)
    assert code in ("not-readable", "store-failed")
    worker.now += watching.MAX_RETRY_S
    assert worker.look(check_here) == [""]


def test_what_a_fresh_process_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    check = TargetCheck("safetensors", {}, {}, "a:b", ".")

    def ended(code: int) -> CheckResult:
        monkeypatch.setattr(
            subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], code)
        )
        return validate.check_in_subprocess(check)

    assert [ended(-number).transient for number in (signal.SIGKILL, signal.SIGTERM)] == [True, True]
    assert [ended(-number).transient for number in (signal.SIGSEGV, signal.SIGILL)] == [
        False,
        False,
    ]
    assert ended(1).error and not ended(1).transient

    def late(*args: Any, **more: Any) -> None:
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", late)
    assert validate.check_in_subprocess(check).transient


def caused(error: Exception, by: Exception) -> Exception:
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."), True),
        (caused(RuntimeError("compile error"), OSError(errno.EIO, "")), True),
        (caused(ValueError(""), caused(KeyError("x"), MemoryError())), True),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (None, False),
    ],
)
def test_who_is_to_blame(error: Exception | None, passes: bool) -> None:
    assert is_transient(error) is passes


def test_no_memory_for_the_golden_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.publish import dlrm

    checkpoint(tmp_path / "anchor", state(trained()))
    store, parsed = SnapshotStore(tmp_path / "store"), recipe(tmp_path)
    anchor = find_anchor(str(tmp_path / "anchor"))
    error: Exception = MemoryError()

    def forward(*args: Any) -> None:
        raise error

    monkeypatch.setattr(dlrm.Dlrm, "forward", forward)
    with pytest.raises(PublishDeferred, check=has_code("machine-not-able")):
        publish(anchor, parsed, store, check_target=check_here)
    error = ValueError("no")
    with pytest.raises(PublishFailed, check=has_code("golden-inputs-failed")):
        publish(anchor, parsed, store, check_target=check_here)
