"""Tables that the backward pass changes: images by the rows that were looked up."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import lazy

if TYPE_CHECKING:
    from torch import Tensor

    from headway.checkpoint.engine.capture import ChangedRows, StateCapture
    from headway.checkpoint.engine.gpu_transfer import Gpu
    from tests.fused_tables import SplitTableBatchedEmbeddingBagsCodegen, Training
else:
    Gpu = lazy("headway.checkpoint.engine.gpu_transfer:Gpu")
    StateCapture = lazy("headway.checkpoint.engine.capture:StateCapture")
    SplitTableBatchedEmbeddingBagsCodegen = lazy(
        "tests.fused_tables:SplitTableBatchedEmbeddingBagsCodegen"
    )
    Training = lazy("tests.fused_tables:Training")

torch = lazy("torch")
nn = lazy("torch.nn")
ages = lazy("headway.checkpoint.engine.rows")
device_rows = lazy("headway.checkpoint.engine.rows")
fused = lazy("headway.checkpoint.engine.fbgemm")
tracking = lazy("headway.checkpoint.engine.tracking")
DeviceTensors = lazy("headway.checkpoint.engine.dense:DeviceTensors")
DeviceRows = lazy("headway.checkpoint.engine.rows:DeviceRows")
FbgemmTables = lazy("headway.checkpoint.engine.fbgemm:FbgemmTables")
trackable_modules = lazy("headway.checkpoint.engine.fbgemm:trackable_modules")
gpu_of = lazy("headway.checkpoint.engine.gpu_transfer:gpu_of")
Optimizer = lazy("tests.fused_tables:Optimizer")
Where = lazy("tests.fused_tables:Where")

pytestmark = pytest.mark.timeout(60)
NOTHING: Any = lambda _: None  # noqa: E731


def none_left(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though other tests of this process may have."""
    monkeypatch.setattr(fused, "_has_compiled", lambda: False)


class Images:
    """Two, taken in turn, and what was said of the last."""

    def __init__(self, training: Training, taker: StateCapture) -> None:
        self.training, self.taker = training, taker
        self.views = [[torch.zeros_like(t) for t in training.state().values()] for _ in range(2)]
        self.count = 0
        self.changed: list[ChangedRows] = []

    def begin(self) -> None:
        self.count += 1
        tensors = list(self.training.state().values())
        self.taker.capture(self.count % 2, tensors, self.views[self.count % 2], self.told)

    def told(self, good: bool, changed: list[ChangedRows]) -> None:
        assert good
        self.changed = changed

    def end(self) -> list[Tensor]:
        self.taker.wait()
        return self.views[self.count % 2]


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("differ", [False, True])
def test_an_image_is_the_moment_of_its_save(differ: bool) -> None:
    training = Training(differ=differ)
    taker = StateCapture([], 2, [training.tables])
    images = Images(training, taker)
    for number in range(8):
        for _ in range(3):
            training.step()
        wanted = training.clone()
        images.begin()
        training.step()
        training.step()
        assert same(images.end(), wanted), number
        told = {tuple(one.tensors): len(one.ids) for one in images.changed}
        if number:  # a few rows of the large ones; the small one changes as a whole
            assert 0 < told[0, 3] < 300 and 0 < told[1, 4] < 300 and (2, 5) not in told
    taker.close()


def test_a_lookup_before_a_save_and_its_change_after_it() -> None:
    """As trainings do that look up the next batch before the last one has changed anything."""
    training = Training()
    taker = StateCapture([], 2, [training.tables])
    images = Images(training, taker)
    for number in range(6):
        ahead = training.forward()
        training.step()
        wanted = training.clone()
        images.begin()
        ahead.backward()
        assert same(images.end(), wanted), number
    taker.close()


@pytest.mark.parametrize("under_way", [False, True])
def test_rows_that_are_reset_are_not_missed(under_way: bool) -> None:
    training = Training()
    taker = StateCapture([], 2, [training.tables])
    images = Images(training, taker)
    for number in range(5):
        training.step()
        if not under_way:
            training.tables.reset_embedding_weight_momentum(50 * number)
        wanted = training.clone()
        images.begin()
        if under_way:
            training.tables.reset_embedding_weight_momentum(50 * number)
        training.step()
        assert same(images.end(), wanted), number
    assert len(taker.tracker.tables) == 3
    taker.close()


def test_what_is_kept_of_rows_may_be_changed_by_hand() -> None:
    """As TorchRec does it when it loads the state of an optimizer."""
    training = Training()
    taker = StateCapture([], 2, [training.tables])
    images = Images(training, taker)
    for number in range(5):
        training.step()
        training.tables.split_optimizer_states()[1][0].mul_(0.5)
        wanted = training.clone()
        images.begin()
        assert same(images.end(), wanted), number
    taker.close()


def test_a_copy_of_a_module_is_not_tracked() -> None:
    training = Training()
    taker = StateCapture([], 2, [training.tables])
    images = Images(training, taker)
    images.begin()
    images.end()
    for other in (copy.deepcopy(training.tables), pickle.loads(pickle.dumps(training.tables))):
        before = [tensor.clone() for tensor in training.state().values()]
        other(**training.batch()).sum().backward()
        other.reset_embedding_weight_momentum(50)
        assert not other.momentum[:50].any()
        assert same(list(training.state().values()), before)
    assert all(rows._missing[-1] == [] for rows in taker.tracker.tables.values())
    taker.close()


def test_all_arguments_by_place() -> None:
    training = Training(differ=True)
    told: list[Tensor] = []
    found = FbgemmTables(
        training.tables, lambda found: told.extend(found.values()), NOTHING, NOTHING
    )
    batch = training.batch()
    sizes = batch["batch_size_per_feature_per_rank"]
    training.tables(**batch).sum().backward()
    training.tables(batch["indices"], batch["offsets"], None, None, sizes).sum().backward()
    assert len(told) == 6 and same(told[:3], told[3:])
    found.close()


def test_lookups_that_change_nothing() -> None:
    training = Training()
    told: list[Tensor] = []
    found = FbgemmTables(training.tables, told.extend, NOTHING, NOTHING)
    with torch.no_grad():
        training.forward()
    training.forward()  # and nobody asks for the gradient
    assert not told
    training.step()
    assert [len(table) for table in told] == [6000, 3000, 20]
    found.close()
    training.step()
    assert len(told) == 3


def test_which_are_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    def tables() -> SplitTableBatchedEmbeddingBagsCodegen:
        return SplitTableBatchedEmbeddingBagsCodegen([5], [0], 4)

    plain, lamb, cached, decaying = (tables() for _ in range(4))
    lamb.optimizer = Optimizer.LAMB
    cached.embedding_specs = [(5, 4, Where.MANAGED_CACHING, "cuda")]
    decaying._used_rowwise_adagrad_with_global_weight_decay = True
    hidden, holder = tables(), nn.Module()
    vars(holder)["_lookups"] = [nn.Sequential(hidden)]  # so TorchRec has it
    root = nn.ModuleList([plain, lamb, cached, decaying, nn.Linear(2, 2), holder])
    assert list(trackable_modules([root, plain])) == [plain, hidden]

    class DMPCollection(nn.Sequential):
        """Of TorchRec: its ranks change each other's tables, by collectives that count nothing."""

    assert not list(trackable_modules([DMPCollection(plain)]))
    monkeypatch.setattr(fused, "_has_compiled", lambda: True)
    assert not list(trackable_modules([root]))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Nobody asks where the ids of a table end, and rows are gathered after the save."""
    for module in (fused, tracking):
        monkeypatch.setattr(module, "on_gpu", lambda _: True)
    monkeypatch.setattr(Gpu, "free_bytes", lambda _: 1 << 30)
    return gpu_of(torch.device("cpu"))


@pytest.mark.parametrize("differ", [False, True])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_tables_on_a_gpu_share_what_is_known_of_their_rows(differ: bool) -> None:
    training = Training(differ=differ)
    taker = StateCapture([], 2, [training.tables])
    images = Images(training, taker)
    before: list[Tensor] = []
    for number in range(6):
        for _ in range(ages.MAX_LISTS + 3 if number == 4 else 3):
            training.step()
        last, before = before, training.clone()
        images.begin()
        training.step()  # before the image is whole
        assert same(images.end(), before)
        if number < 2:
            continue  # all of it was copied
        assert {one.tensors[0] for one in images.changed} <= {0, 1, 2}
        for one in images.changed:
            for at in one.tensors:
                differs = (last[at] != before[at]).view(len(last[at]), -1).any(1)
                assert set(differs.nonzero().squeeze(1).tolist()) <= set(one.ids.tolist())
    assert len(images.changed) >= 2
    known = {id(rows._versions) for rows in taker.tracker.tables.values()}  # type: ignore[union-attr]
    assert len(known) == 1
    taker.close()


def stepped(training: Training) -> None:
    training.step()


def reset(training: Training) -> None:
    training.tables.reset_embedding_weight_momentum(50)


def captured(training: Training) -> None:
    (watched,) = fused._INSTANCES[training.tables]
    watched._on_lost(watched.tables)
    training.tables.weights.data.zero_()  # as a replay may from now on


@pytest.mark.parametrize("change", [stepped, reset, captured])
def test_without_room_on_the_gpu_a_table_is_read_before_it_changes(
    change: Callable[[Training], None], as_on_a_gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    taker = StateCapture([], 2, [training.tables])
    images = Images(training, taker)
    monkeypatch.setattr(Gpu, "free_bytes", lambda _: 0)
    begun, go_on = threading.Event(), threading.Event()
    to_host = as_on_a_gpu.transfer.to_host

    def slowly(*args: Any) -> None:
        begun.set()
        assert go_on.wait(20)
        to_host(*args)

    monkeypatch.setattr(as_on_a_gpu.transfer, "to_host", slowly)
    before = training.clone()
    images.begin()
    assert begun.wait(20)
    step = threading.Thread(target=change, args=[training])
    step.start()
    step.join(0.1)
    assert step.is_alive() and same(training.clone(), before)
    go_on.set()
    step.join(20)
    assert same(images.end(), before) and not same(training.clone(), before)
    taker.close()


@pytest.mark.parametrize(("shape", "fixed"), [((9,), set()), ((3, 4), set()), ((3, 4), {0})])
def test_without_room_on_the_gpu_what_may_change_unseen_is_waited_for(
    shape: tuple[int, ...], fixed: set[int], as_on_a_gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gpu, "free_bytes", lambda _: 0)
    live = torch.randn(shape).t()  # of one dimension it is contiguous
    images, view, before = DeviceTensors(as_on_a_gpu.device), torch.zeros(live.shape), live.clone()
    images.begin({0: live}, [view], fixed)
    live.zero_()
    assert images.drain()
    assert torch.equal(view, before)


def test_memory_of_a_gpu_in_pieces_that_are_too_small(
    as_on_a_gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "empty_like", none_left)
    images, live, view = DeviceTensors(as_on_a_gpu.device), torch.ones(9), torch.zeros(9)
    images.begin({0: live}, [view], set())
    live.zero_()
    assert images.drain()
    assert view.tolist() == [1.0] * 9


@pytest.mark.usefixtures("as_on_a_gpu")
def test_copies_of_tables_aside_are_given_back() -> None:
    training = Training()
    taker = StateCapture([], 2, [training.tables])
    images = Images(training, taker)
    for number in range(3):
        images.begin()
        images.end()
        (device,) = taker._devices.values()
        assert bool(device._gpu_copies) == (number < 2)
    taker.close()


@pytest.mark.parametrize("fails", ["_gather", "_marked_ids", "_global_ids"])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_without_room_on_the_gpu_for_rows(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    taker = StateCapture([], 2, [training.tables])
    images = Images(training, taker)
    where: Any = {"_gather": DeviceRows, "_marked_ids": device_rows, "_global_ids": FbgemmTables}[
        fails
    ]
    for number in range(5):
        with monkeypatch.context() as full:
            if number == 3:
                full.setattr(where, fails, none_left)
            training.step()
            before = training.clone()
            images.begin()
            assert same(images.end(), before)
        assert bool(images.changed) == (number > 0 and (number != 3 or fails == "_gather"))
        if number == 3 and fails == "_global_ids":
            break  # the next save finds nothing to build on, nor does the one after it
    taker.close()


@pytest.mark.filterwarnings(r"ignore:.*\[image-failed\]")
@pytest.mark.parametrize("fails", [(DeviceRows, "_gather"), (DeviceTensors, "begin")])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_a_failed_image_leaves_is_not_in_the_next(
    fails: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    taker = StateCapture([], 1, [training.tables])
    tensors = list(training.state().values())
    views = [torch.zeros_like(tensor) for tensor in tensors]
    told: list[bool] = []
    calls = 0

    def second_fails(rows: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2 or fails[0] is DeviceTensors:
            raise RuntimeError("no")
        return works(rows, *args)

    works = getattr(*fails)
    for number in range(4):
        training.step()
        if number == 3:
            training.tables.reset_embedding_weight_momentum(6000)
        before = training.clone()
        with monkeypatch.context() as broken:
            if number == 2:
                broken.setattr(*fails, second_fails)
            taker.capture(0, tensors, views, lambda good, _: told.append(good))
            training.step()  # it does not wait for what never comes
            taker.wait()
        assert told[-1] == (number != 2)
        assert not told[-1] or same(views, before)
    taker.close()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_an_interrupt_in_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    training = Training()
    told: list[bool] = []
    taker = StateCapture([], 1, [training.tables])
    tensors = list(training.state().values())
    views = [torch.zeros_like(tensor) for tensor in tensors]
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(DeviceTensors, "begin", interrupted)
        taker.capture(0, tensors, views, lambda good, _: told.append(good))
    assert told == [False]
    training.step()
    before = training.clone()
    taker.capture(0, tensors, views, lambda good, _: told.append(good))
    taker.wait()
    assert told == [False, True] and same(views, before)
    taker.close()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_first_image_in_inference_mode() -> None:
    training = Training()
    taker = StateCapture([], 2, [training.tables])
    images = Images(training, taker)
    for number in range(4):
        with torch.inference_mode(number < 2):
            images.begin()
        before = training.clone()
        training.step()
        assert same(images.end(), before)
    taker.close()


@pytest.mark.parametrize("copies", [True, False])
def test_before_a_step_nobody_knows_what_memory_a_gpu_can_spare(
    copies: bool, as_on_a_gpu: Gpu
) -> None:
    images, live, view = DeviceTensors(as_on_a_gpu.device), torch.ones(9), torch.zeros(9)
    images.begin({0: live}, [view], set(), copies=copies)
    assert bool(images._gpu_copies) == copies
    live.zero_()
    assert images.drain()
    assert view.tolist() == [1.0] * 9


def test_what_a_gpu_has_free_is_counted_at_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 80 GB with 30 GB of state, and once 40 GB of activations, which are cached."""
    cuda = {"mem_get_info": (8, 80), "memory_reserved": 72, "max_memory_allocated": 70}
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    assert gpu_of(torch.device("cpu")).free_bytes() == 6
