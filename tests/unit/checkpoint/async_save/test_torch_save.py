from __future__ import annotations

import collections
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.async_save import torch_save
from headway.checkpoint.async_save.background import WriteFailed, write_queue
from headway.checkpoint.engine import buffers
from headway.errors import SaveFailed
from headway.storage.atomic_file import PREFIX
from tests.support import AsyncSave, Disk, has_code, lazy, wait_until

torch = lazy("torch")
torch_dcp = lazy("torch.distributed.checkpoint")
gpu_of = lazy("headway.checkpoint.engine.gpu_transfer:gpu_of")
FakeTensorMode = lazy("torch._subclasses.fake_tensor:FakeTensorMode")

pytestmark = pytest.mark.timeout(60)


def state() -> dict[str, Any]:
    """All that a checkpoint may hold."""
    torch.manual_seed(1)
    base = torch.randn(64, 32)
    model = torch.nn.Linear(8, 4)
    return {
        "base": base,
        "view": base[3:7, ::2],
        "flat": base.view(-1),
        "half": torch.randn(33).to(torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "nothing": torch.empty(0, 5),
        "sparse": torch.eye(4).to_sparse(),
        "model": model.state_dict(),
        "weight": model.weight,
        "storage": torch.arange(5).untyped_storage(),
        "ordered": collections.OrderedDict(step=3, text="ü", data=b"\0\1"),
    }


def plain(obj: object, folder: Path, name: str) -> bytes:
    folder.mkdir()
    torch.save(obj, folder / name)
    return (folder / name).read_bytes()


@pytest.mark.parametrize("name", ["last.pt", "no_suffix", "zwölf.pt"])
def test_the_file_is_byte_for_byte_what_torch_writes(
    behind: AsyncSave, tmp_path: Path, name: str
) -> None:
    saved = state()
    behind(saved, tmp_path / name)
    write_queue.wait("the test")
    assert (tmp_path / name).read_bytes() == plain(saved, tmp_path / "plain", name)
    assert os.listdir(tmp_path / "plain") == [name]
    assert sorted(os.listdir(tmp_path)) == sorted([name, "plain"])


def test_it_is_the_state_at_the_call_whatever_changes_after_it(
    behind: AsyncSave, disk: Disk, tmp_path: Path
) -> None:
    saved = {"table": torch.randn(1000, 8), "numbers": [1, 2]}
    before = {"table": saved["table"].clone(), "numbers": [1, 2]}  # type: ignore[attr-defined]
    disk.free.clear()
    behind(saved, str(tmp_path / "a.pt"))
    saved["table"].fill_(7)  # type: ignore[attr-defined]
    saved["numbers"].append(3)  # type: ignore[attr-defined]
    assert write_queue.pending and not (tmp_path / "a.pt").exists()
    disk.free.set()
    write_queue.wait("the test")
    found = torch.load(tmp_path / "a.pt", weights_only=True)
    assert torch.equal(found["table"], before["table"]) and found["numbers"] == [1, 2]


def test_what_shares_memory_still_does(behind: AsyncSave, tmp_path: Path) -> None:
    behind(state(), tmp_path / "a.pt")
    write_queue.wait("the test")
    found = torch.load(tmp_path / "a.pt", weights_only=False)
    found["base"][3, 0] = 42
    assert found["view"][0, 0] == 42 and found["flat"][3 * 32] == 42


def test_saves_are_written_in_their_order(behind: AsyncSave, disk: Disk, tmp_path: Path) -> None:
    disk.free.clear()
    for number in range(3):
        behind(torch.tensor(number), tmp_path / "a.pt")
    assert len(write_queue.pending) == 3
    disk.free.set()
    write_queue.wait("the test")
    assert torch.load(tmp_path / "a.pt").item() == 2


def test_the_mode_stays_and_a_link_is_followed(behind: AsyncSave, tmp_path: Path) -> None:
    real = tmp_path / "real.pt"
    torch.save(1, real)
    real.chmod(0o640)
    (tmp_path / "link.pt").symlink_to(real)
    behind(2, tmp_path / "link.pt")
    write_queue.wait("the test")
    assert (tmp_path / "link.pt").is_symlink()
    assert torch.load(real) == 2 and real.stat().st_mode & 0o777 == 0o640


def test_memory_is_used_again(behind: AsyncSave, tmp_path: Path) -> None:
    taken = []
    for number in range(3):
        behind(torch.full((300_000,), number), tmp_path / "a.pt")
        write_queue.wait("the test")
        taken.append([id(piece) for piece in write_queue.pool._free if len(piece) >= 2_400_000])
    assert taken[0] == taken[1] == taken[2] != []


def plain_codes(events: list[dict[str, Any]]) -> list[str]:
    """Why saves were not written behind."""
    return [event["code"] for event in events if "why" in event]


class Own:
    """A pickle module of somebody's own."""

    Pickler, __name__ = pickle.Pickler, "own"


@pytest.mark.parametrize(
    ("make", "kwargs", "code"),
    [
        (lambda: 1, {"pickle_module": Own}, "pickle-module-not-supported"),
        (lambda: 1, {"_use_new_zipfile_serialization": False}, "format-not-supported"),
        (lambda: torch.empty(3, device="meta"), {}, "device-not-supported"),
        (lambda: torch.empty(3, device="meta").untyped_storage(), {}, "device-not-supported"),
    ],
)
def test_what_cannot_be_copied_is_saved_plainly_and_counted(
    behind: AsyncSave,
    tmp_path: Path,
    events: list[dict[str, Any]],
    make: Callable[[], Any],
    kwargs: dict[str, Any],
    code: str,
) -> None:
    target, obj = tmp_path / "a.pt", make()
    try:
        behind(obj, target, **kwargs)
    except NotImplementedError:  # torch cannot do it either
        assert isinstance(obj, torch.UntypedStorage)
    else:
        assert target.exists()
    assert not write_queue.pending
    (event,) = (event for event in events if event["ev"] == "behind")
    assert (event["path"], event["code"]) == (str(target), code) and event["why"]
    assert not list(tmp_path.glob(f"{PREFIX}*"))


def test_targets_that_a_rename_would_change(
    behind: AsyncSave, tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    torch.save(1, tmp_path / "a.pt")
    os.link(tmp_path / "a.pt", tmp_path / "b.pt")
    behind(2, tmp_path / "a.pt")
    assert torch.load(tmp_path / "b.pt") == 2
    behind(3, "/dev/null")
    with open(tmp_path / "c.pt", "wb") as file:
        behind(4, file)
    assert torch.load(tmp_path / "c.pt") == 4
    assert plain_codes(events) == ["several-links", "not-a-regular-file", "open-file"]


def test_under_a_dispatch_mode_it_is_a_plain_save(behind: AsyncSave, tmp_path: Path) -> None:
    with FakeTensorMode():
        behind({"a": 1}, tmp_path / "a.pt")
        assert not write_queue.pending
    with torch.serialization.skip_data():
        behind(torch.ones(3), tmp_path / "b.pt")
        assert not write_queue.pending
    with torch.inference_mode():
        behind(torch.ones(3), tmp_path / "c.pt")
    behind(torch.ones(3), tmp_path / "c.pt")
    write_queue.wait("the test")
    assert torch.load(tmp_path / "c.pt").tolist() == [1, 1, 1]


class SavesInside:
    """While it is pickled it saves to memory and to a file, and loads what it has saved."""

    def __init__(self, save: AsyncSave, path: Path) -> None:
        self.save, self.path = save, path

    def __getstate__(self) -> dict[str, Any]:
        buffer = io.BytesIO()
        self.save(torch.arange(1.0, 5.0), buffer)
        self.save(torch.arange(5.0, 9.0), self.path)
        with torch.serialization.skip_data():
            self.save(torch.ones(3), self.path.with_suffix(".skipped"))
        buffer.seek(0)
        return {"inner": buffer.getvalue(), "again": torch.load(buffer)}


def test_a_save_within_a_save_has_its_data(
    behind: AsyncSave, tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    outer = torch.arange(9.0)
    saved = {"first": outer, "object": SavesInside(behind, tmp_path / "b.pt"), "last": outer[2:]}
    behind(saved, tmp_path / "a.pt")
    assert len(write_queue.pending) == 1
    write_queue.wait("the test")
    found = torch.load(tmp_path / "a.pt", weights_only=False)
    assert torch.equal(found["first"], outer) and torch.equal(found["last"], outer[2:])
    within = vars(found["object"])
    assert torch.load(io.BytesIO(within["inner"])).tolist() == [1, 2, 3, 4]
    assert within["again"].tolist() == [1, 2, 3, 4]
    assert torch.load(tmp_path / "b.pt").tolist() == [5, 6, 7, 8]
    assert torch.load(tmp_path / "b.skipped").tolist() == [0, 0, 0]  # as it was asked for
    assert plain_codes(events) == ["nested-save"] * 2


def test_a_signal_handler_saves_while_torch_leaves_out_the_data(
    behind: AsyncSave, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, buffer = torch.arange(1.0, 5.0), io.BytesIO()
    leave_out = torch_save.Records.write_record_metadata

    def interrupted(records: torch_save.Records, name: str, size: int) -> None:
        behind(values, tmp_path / "emergency.pt")
        behind(values, buffer)
        torch_dcp.save({"values": values}, checkpoint_id=tmp_path / "dcp", no_dist=True)
        leave_out(records, name, size)

    monkeypatch.setattr(torch_save.Records, "write_record_metadata", interrupted)
    behind(torch.ones(3), tmp_path / "a.pt")
    write_queue.wait("the test")
    buffer.seek(0)
    for source in (tmp_path / "emergency.pt", buffer):
        assert torch.load(source).tolist() == [1, 2, 3, 4]
    into = {"values": torch.zeros(4)}
    torch_dcp.load(into, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert into["values"].tolist() == [1, 2, 3, 4]
    assert torch.load(tmp_path / "a.pt").tolist() == [1, 1, 1]


class FailsOnce:
    """As the handler of a signal that comes while it is pickled."""

    failed = False

    def __getstate__(self) -> dict[str, Any]:
        if not FailsOnce.failed:
            FailsOnce.failed = True
            raise TimeoutError("a handler")
        return {}


def test_an_exception_of_the_job_is_not_swallowed(behind: AsyncSave, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="a handler"):
        behind(FailsOnce(), tmp_path / "a.pt")
    assert not write_queue.pending and not os.listdir(tmp_path)


def test_copies_on_a_gpu_go_before_it_is_their_turn(
    behind: AsyncSave, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images: list[Any] = []

    def mark(made: Any) -> None:
        images.append(made)
        made._events.append((gpu_of(torch.device("cpu")), None))

    monkeypatch.setattr(torch_save.StorageCopy, "_record_events", mark)
    monkeypatch.setattr("headway.checkpoint.engine.gpu_transfer.on_gpu", lambda tensor: True)
    monkeypatch.setattr(torch_save, "_spare_gpu_bytes", lambda device: 1 << 30)
    disk.free.clear()
    for number in range(3):
        behind(torch.full((1000,), number), tmp_path / f"{number}.pt")
    wait_until(lambda: not any(one._on_gpu for one in images))
    assert len(write_queue.pending) == len(images) == 3
    disk.free.set()
    write_queue.wait("the test")
    for number in range(3):
        assert (torch.load(tmp_path / f"{number}.pt") == number).all()


def test_what_is_wrong_at_once_is_said_at_once(behind: AsyncSave, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Parent"):
        behind(1, tmp_path / "missing" / "a.pt")
    with pytest.raises((AttributeError, pickle.PicklingError)):
        behind(lambda: 1, tmp_path / "b.pt")
    with pytest.raises(TypeError):
        behind(1)
    with pytest.raises(AttributeError):
        behind(1, 5)
    assert not write_queue.pending and not list(tmp_path.glob(f"{PREFIX}*"))


def test_a_failed_write_is_raised_at_the_next_save_and_the_old_file_stays(
    behind: AsyncSave, disk: Disk, tmp_path: Path
) -> None:
    torch.save(1, tmp_path / "a.pt")
    disk.error = OSError(28, "No space left on device")
    behind(2, tmp_path / "a.pt")
    write_queue.wait("the test")
    disk.error = None
    with pytest.raises(WriteFailed, check=has_code("background-write-failed")) as raised:
        behind(3, tmp_path / "b.pt")
    assert isinstance(raised.value, SaveFailed)
    assert raised.value.fields["path"] == str(tmp_path / "a.pt")
    assert "OSError: [Errno 28]" in raised.value.fields["error"]
    write_queue.wait("the test")
    assert torch.load(tmp_path / "a.pt") == 1
    assert torch.load(tmp_path / "b.pt") == 3  # which was saved all the same
    assert sorted(os.listdir(tmp_path)) == ["a.pt", "b.pt"]


def test_without_memory_a_save_waits_for_an_older_one_and_then_is_plain(
    behind: AsyncSave,
    disk: Disk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    events: list[dict[str, Any]],
) -> None:
    disk.free.clear()
    behind(torch.ones(5000), tmp_path / "a.pt")
    write_queue.pool._free.clear()
    monkeypatch.setattr(buffers, "fits_in_memory", lambda size: False)
    waited: list[str] = []
    wait_for = write_queue.wait_for

    def wait(job: Any, why: str) -> None:
        waited.append(why)
        disk.free.set()
        wait_for(job, why)

    monkeypatch.setattr(write_queue, "wait_for", wait)
    behind(torch.ones(5000), tmp_path / "b.pt")
    assert waited == ["memory"]
    write_queue.wait("the test")
    write_queue.pool._free.clear()
    behind(torch.ones(700_000), tmp_path / "c.pt")
    assert not write_queue.pending and (tmp_path / "c.pt").exists()
    assert plain_codes(events) == ["no-memory"]


def test_the_journal_tells_of_the_call_and_of_the_write(
    behind: AsyncSave, tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    behind(torch.ones(1000), tmp_path / "a.pt")
    write_queue.wait("the test")
    path = str(tmp_path / "a.pt")
    told = {event.get("name", event["ev"]): event for event in events if "waited" not in event}
    written = told["checkpoint_save"]
    assert told["saving"]["path"] == written["path"] == told["behind"]["path"] == path
    assert written["background"] is True and written["file"]
    assert told["behind"]["bytes"] > 4000 and told["behind"]["blocked"] > 0
