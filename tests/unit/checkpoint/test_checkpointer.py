"""Which image a save takes, and what a Checkpointer refuses."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headway.checkpoint.preemption import Preemption
from headway.checkpoint.schedule import Level
from headway.checkpoint.store.commit import Draft
from headway.checkpoint.store.layout import data_name
from headway.checkpoint.store.store import Store
from headway.errors import HeadwayWarning, SaveFailed, UsageError
from tests.support import has_code, lazy, wait_until
from tests.unit.checkpoint.buffer_maps import mapped_buffers as images_here

if TYPE_CHECKING:
    from tests.writers import Started

torch = lazy("torch")
nn = lazy("torch.nn")
load = lazy("torch.distributed.checkpoint.state_dict_loader:load")
choice = lazy("headway.checkpoint.checkpointer:_choose_buffer")
writer_name = lazy("headway.checkpoint.writer.client:writer_name")
newest_common_save = lazy("headway.checkpoint.restore:newest_common_save")
Checkpointer = lazy("headway.checkpoint.checkpointer:Checkpointer")
StateCapture = lazy("headway.checkpoint.engine.capture:StateCapture")
HostTensors = lazy("headway.checkpoint.engine.dense:HostTensors")
StagingBuffers = lazy("headway.checkpoint.staging:StagingBuffers")
CheckpointReader = lazy("headway.checkpoint.format.checkpoint_reader:CheckpointReader")

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("writers")]


@pytest.mark.parametrize(
    ("level", "busy", "images"),
    [
        ("memory", [(False, False), (False, False)], [0]),  # the older one
        ("memory", [(False, True), (False, False)], [0]),
        ("memory", [(True, False), (False, False)], [1]),  # it is written by one rank: not by any
        ("disk", [(True, False), (False, False)], [1]),
        ("memory", [(True, False), (False, True)], []),  # none is free on all ranks: left out
        ("disk", [(True, False), (False, True)], [0]),  # waits for the older one
    ],
)
def test_all_ranks_take_the_same_image(
    level: Level, busy: list[tuple[bool, bool]], images: list[int]
) -> None:
    everyone: list[dict[str, Any]] = [{"busy": one, "wanted": n} for n, one in enumerate(busy)]
    assert choice(level, everyone) == {"images": images, "wanted": 0}


def test_a_store_of_the_ranks_that_is_gone_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> bool:
        raise RuntimeError("unreachable")

    monkeypatch.setattr(Preemption, "should_stop", gone)
    checkpointer = Checkpointer(
        tmp_path, {"model": nn.Linear(2, 2)}, grace_s=5.0, writer_idle_s=0.1
    )
    with pytest.warns(HeadwayWarning, match=r"unreachable.*\[ranks-store-gone\]"):
        assert checkpointer.due(1) is None
    assert checkpointer.due(2) is None and not checkpointer.preempted
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    checkpointer.close()


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, writer_idle_s=0.1)
    with pytest.raises(UsageError, check=has_code("level-unknown")):
        checkpointer.save(1, level="tape")
    with pytest.raises(UsageError, check=has_code("anchor-not-to-disk")):
        checkpointer.save(1, level="memory", anchor=True)
    with pytest.raises(UsageError, check=has_code("no-interval")):
        checkpointer.due(1)
    checkpointer.close()


@pytest.mark.parametrize("images", [0, 3, -1, 2.0, "2", None])
def test_there_are_one_or_two_images(images: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code("images-invalid")):
        Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, buffers=images)


def test_one_image_is_not_enough_for_snapshots(tmp_path: Path) -> None:
    parts = {"model": nn.Linear(2, 2)}
    with pytest.raises(UsageError, check=has_code("one-image-for-snapshots")):
        Checkpointer(tmp_path, parts, buffers=1, memory_interval=3)
    checkpointer = Checkpointer(tmp_path, parts, buffers=1, writer_idle_s=0.1)
    with pytest.raises(UsageError, check=has_code("one-image-for-snapshots")):
        checkpointer.save(1, level="memory")
    checkpointer.close()


def test_a_snapshot_does_not_wait_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, drain = threading.Event(), HostTensors.drain

    def slowly(images: Any) -> bool:
        assert go_on.wait(30)
        return drain(images)

    monkeypatch.setattr(HostTensors, "drain", slowly)  # as while it is on its way from a GPU
    one = Checkpointer(tmp_path, {"w": torch.zeros(4)}, memory_interval=3, writer_idle_s=0.1)
    assert not one.save(1, level="memory").skipped
    assert one.save(2, level="memory").skipped
    assert not go_on.is_set(), "nobody waited"
    go_on.set()
    one.wait()
    assert not one.save(3, level="memory").skipped
    one.close()


@pytest.mark.parametrize("images", [1, 2])
def test_no_image_is_filled_before_it_is_written(images: int, tmp_path: Path) -> None:
    """Both saves are of the moment of their call, however slow the disk is."""
    state = {"w": torch.zeros(1 << 18)}
    one = Checkpointer(tmp_path, state, buffers=images, rate=4e6, writer_idle_s=0.1)
    for step in (1, 2, 3):
        state["w"].fill_(float(step))
        one.save(step)
    assert len(images_here()) == images
    one.close()
    for checkpoint in Store(tmp_path).checkpoints():
        found = {"w": torch.empty(1 << 18)}
        load(found, storage_reader=CheckpointReader(checkpoint.path, check=True), no_dist=True)
        assert bool((found["w"] == checkpoint.step).all())


class Live:
    """A table and what its optimizer keeps of it, by names of their own; read in place."""

    def __init__(self) -> None:
        self.table = nn.EmbeddingBag(100, 4, sparse=True)
        self.optimizer = torch.optim.Adagrad(self.table.parameters())

    def state_dict(self) -> dict[str, Any]:
        weight = self.table.weight
        return {"weight": weight.detach(), "sum": self.optimizer.state[weight]["sum"]}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        """Nothing is left to do."""

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.table(torch.randint(100, (1, 5))).sum().backward()
        self.optimizer.step()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("told", [True, False])
def test_an_optimizer_that_is_no_part_can_be_told_of(told: bool, tmp_path: Path) -> None:
    live = Live()
    optimizers = [live.optimizer] if told else []
    one = Checkpointer(tmp_path, {"live": live}, optimizers=optimizers, writer_idle_s=0.1)
    for step in (1, 2, 3):
        live.step()
        one.save(step)
        one.wait()
    one.close()
    kinds = [checkpoint.manifest.kind for checkpoint in Store(tmp_path).checkpoints()]
    assert kinds == (["delta", "delta", "full"] if told else ["full", "full"])
    other = Live()
    again = Checkpointer(tmp_path, {"live": other}, writer_idle_s=0.1)
    restored = again.restore()
    again.close()
    assert restored is not None and restored.step == 3
    for name, tensor in live.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


@pytest.mark.parametrize("kills", [2, 3])
@pytest.mark.filterwarnings(r"ignore:.*\[writer-restarted\]")
def test_writers_that_are_killed_during_one_save_end_no_training(
    kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writers: list[Started]
) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, writer_idle_s=0.1)
    tell, left = StagingBuffers.send, [kills]

    def told(staging: Any, op: str, *descriptors: int, **message: Any) -> None:
        if op == "filling" and left[0]:
            left[0] -= 1
            writers[-1].kill()
            wait_until(lambda: writers[-1].poll() is not None)
        tell(staging, op, *descriptors, **message)

    monkeypatch.setattr(StagingBuffers, "send", told)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        first = checkpointer.save(1)
    codes = [one.message.code for one in seen if isinstance(one.message, HeadwayWarning)]
    assert codes == ["writer-restarted"] * 2 + ["step-not-saved"] * (kills == 3)
    assert len(writers) == 3 and first.skipped == (kills == 3)
    assert not checkpointer.save(2).skipped
    checkpointer.close()
    steps = [one.step for one in Store(tmp_path).checkpoints()]
    assert steps == ([2] if kills == 3 else [2, 1])


@pytest.mark.filterwarnings(r"ignore:.*\[writer-restarted\]")
def test_writers_that_are_killed_after_each_save_leave_something_to_restore(
    tmp_path: Path, writers: list[Started]
) -> None:
    state = {"w": torch.zeros(1 << 18)}
    checkpointer = Checkpointer(tmp_path, state, writer_idle_s=0.1)
    for step in range(1, 5):
        state["w"].fill_(float(step))
        checkpointer.save(step)
        writers[-1].kill()
        wait_until(lambda: writers[-1].poll() is not None)
    steps = [one.step for one in Store(tmp_path).checkpoints()]
    assert steps[0] == 4 and not list(tmp_path.glob(".draft-*"))
    checkpointer._capture.close()
    checkpointer._staging.disconnect()


def test_a_store_that_does_not_answer_costs_saves_and_not_the_training(tmp_path: Path) -> None:
    """To open a pipe that nobody reads waits for ever, as a server of files can."""
    options = {"writer_idle_s": 0.1, "store_timeout_s": 0.2}
    checkpointer = Checkpointer(tmp_path, {"w": torch.zeros(4)}, **options)
    with Draft(tmp_path, 1, f"{checkpointer._attempt}-1", 1) as draft:
        data = f"{draft.folder}/{data_name(0)}"
        os.mkfifo(data)
        checkpointer.save(1)
        checkpointer.save(2)
        for step in (3, 4):
            with pytest.warns(HeadwayWarning, match=r"\[step-not-saved\]"):
                assert checkpointer.save(step).skipped
        with pytest.raises(SaveFailed, check=has_code("store-silent")):
            checkpointer.close()
        os.close(os.open(data, os.O_RDONLY))  # it answers: the writer fails, or goes on, and ends


def test_images_that_do_not_fit_into_memory_are_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.checkpoint.staging.available_memory", lambda: 3 << 20)
    checkpointer = Checkpointer(tmp_path, {"w": torch.zeros(1 << 18)}, writer_idle_s=0.1)
    with pytest.warns(HeadwayWarning, match=r"\[step-not-saved\]$"):
        assert checkpointer.save(1).skipped
    monkeypatch.setattr("headway.checkpoint.staging.available_memory", lambda: 8 << 20)
    assert not checkpointer.save(2).skipped
    checkpointer.close()
    assert [one.step for one in Store(tmp_path).checkpoints()] == [2]


@pytest.mark.parametrize(("given", "expected"), [(0.0, 0.0), (None, 600.0)])
def test_a_writer_waits_for_a_rank_as_long_as_it_was_told(
    given: float | None, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    seen: list[float] = []

    def staging(name: str, writer_idle_s: float, **options: Any) -> Any:
        seen.append(writer_idle_s)
        return StagingBuffers(name, 0.1, **options)

    monkeypatch.setattr("headway.checkpoint.checkpointer.StagingBuffers", staging)
    Checkpointer(tmp_path, {"w": torch.zeros(1)}, writer_idle_s=given).close()
    assert seen == [expected]


def test_all_ranks_choose_the_same_of_two_saves_of_one_step() -> None:
    saves = {"b-1": 5, "c-1": 4, "a-1": 5}
    other = dict(reversed(saves.items()))
    assert newest_common_save([saves, other]) == newest_common_save([other, saves]) == "b-1"
    assert newest_common_save([saves, {"z": 9}]) == ""


def test_a_store_is_known_by_its_folder(tmp_path: Path) -> None:
    """Two containers may have the same path, and share the folder of sockets."""
    store = tmp_path / "store"
    first = writer_name(str(store), 0)
    assert writer_name(str(store), 0) == first != writer_name(str(store), 1)
    store.rename(tmp_path / "other")
    assert writer_name(str(store), 0) != first
