"""Images of tables that are trained while they are made."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import examples, lazy

if TYPE_CHECKING:
    from torch import Tensor


torch = lazy("torch")
nn = lazy("torch.nn")
rows_module = lazy("headway.checkpoint.engine.rows")
HostRows = lazy("headway.checkpoint.engine.rows:HostRows")
DeviceRows = lazy("headway.checkpoint.engine.rows:DeviceRows")
RowTracker = lazy("headway.checkpoint.engine.tracking:RowTracker")

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]


def image_of(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.full_like(tensor, -1) for tensor in tensors]


def equal(image: list[Tensor], tensors: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(image, tensors, strict=True))


@st.composite
def histories(draw: Any) -> list[tuple[str, Any]]:
    """What may happen to a table of 12 rows: changes, saves into either image, some copying."""
    ids = st.lists(st.integers(0, 11), min_size=1, max_size=6)
    act = st.one_of(
        st.tuples(st.just("change"), ids),
        st.tuples(st.just("save"), st.integers(0, 1)),
        st.tuples(st.just("copy"), st.integers(1, 3)),
        st.tuples(st.just("elsewhere"), st.just(0)),
    )
    return draw(st.lists(act, max_size=40))


@settings(max_examples=examples(200), deadline=None)
@given(history=histories(), block=st.sampled_from([1, 3, 100]))
def test_an_image_is_the_table_at_the_moment_of_its_save(
    history: list[tuple[str, Any]], block: int
) -> None:
    table, kept = torch.randn(12, 3), torch.zeros(12)
    rows = HostRows([table, kept], buffers=2)
    rows.block = block
    images = [image_of([table, kept]) for _ in range(2)]
    going: tuple[int, list[Tensor]] | None = None

    def finish() -> None:
        if going is not None:
            rows.finish_copy()
            assert equal(images[going[0]], going[1])

    for act, value in history:
        if act == "change":
            ids = torch.tensor(value)
            rows.copy_before_update(ids)
            rows.mark_changed(ids)
            table[ids] += 1
            kept[ids] += 0.5
        elif act == "save":
            finish()
            going = value, [table.clone(), kept.clone()]
            rows.start_copy(value, images[value])
        elif act == "copy":
            for _ in range(value):
                rows.copy_block()
        else:
            finish()
            going = None
            table += 10
            rows.mark_all_changed()
    finish()


def test_only_rows_that_have_changed_are_copied_again() -> None:
    table = torch.randn(1000, 4)
    rows = HostRows([table], buffers=1)
    image = image_of([table])
    rows.start_copy(0, image)
    assert rows.copy_block() == table.nbytes and rows.copy_block() == 0
    ids = torch.tensor([3, 500, 3])
    rows.copy_before_update(ids)
    rows.mark_changed(ids)
    table[ids] = 7.0
    rows.start_copy(0, image)
    assert rows.copy_block() == 2 * 16 and rows.copy_block() == 0
    assert equal(image, [table])


def test_a_long_list_is_shortened_or_everything() -> None:
    table = torch.zeros(8, 1)
    rows = HostRows([table], buffers=1)
    image = image_of([table])
    rows.start_copy(0, image)
    rows.finish_copy()
    for _ in range(20):
        rows.mark_changed(torch.tensor([5, 6]))
    assert sum(ids.numel() for ids in rows._missing[0] or ()) <= 8
    rows.mark_changed(torch.arange(8))
    rows.mark_changed(torch.arange(8))
    assert rows._missing[0] is None


def trained(steps: int, optimizer: str, save_at: list[int], block: int) -> None:
    """A real training with a thread that copies; each image is compared with a clone."""
    torch.manual_seed(0)
    bags = nn.ModuleList(nn.EmbeddingBag(500, 8, sparse=True) for _ in range(3))
    kinds: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
        "sparse adam": lambda p: torch.optim.SparseAdam(list(p), lr=0.1),
    }
    opt = kinds[optimizer](bags.parameters())
    tracker = RowTracker([opt], buffers=2)
    held: list[tuple[list[Tensor], list[Tensor]]] = []
    images: list[dict[int, Tensor]] = [{}, {}]
    threads: list[threading.Thread] = []
    for step in range(steps):
        loss = sum((bag(torch.randint(0, 500, (16, 4))) ** 2).sum() for bag in bags)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step not in save_at:
            continue
        for thread in threads:
            thread.join()
        live = dict(enumerate(tensors(bags, opt)))
        found = tracker.find(live)
        assert len(found) == len(live)
        image = images[len(held) % 2]
        image.update({n: image.get(n, torch.empty_like(t)) for n, t in live.items()})
        held.append(([t.detach().clone() for t in live.values()], list(image.values())))
        tables = dict.fromkeys(found.values())
        for rows in tables:
            rows.block = block
            numbers = [n for n, owner in found.items() if owner is rows]
            places = {t.data_ptr(): n for n, t in live.items() if n in numbers}
            parts = [image[places[part.data_ptr()]] for part in rows.tensors]
            rows.start_copy((len(held) - 1) % 2, parts)
        threads = [threading.Thread(target=rows.finish_copy) for rows in tables]
        for thread in threads:
            thread.start()
        if len(held) >= 2:
            assert equal(held[-2][1], held[-2][0])
    for thread in threads:
        thread.join()
    assert len(held) == len(save_at)
    assert equal(held[-1][1], held[-1][0]) and not tracker.invalidated


def tensors(bags: nn.Module, opt: torch.optim.Optimizer) -> list[Tensor]:
    found = [p.detach() for p in bags.parameters()]
    for state in opt.state.values():
        found += [value for value in state.values() if torch.is_tensor(value) and value.dim()]
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "sparse adam"])
def test_real_training_while_images_are_made(optimizer: str) -> None:
    trained(30, optimizer, [2, 3, 9, 10, 11, 20, 29], block=7)


def test_a_change_past_the_optimizer_is_noticed() -> None:
    bag = nn.Embedding(50, 4, sparse=True)
    opt = torch.optim.Adagrad(bag.parameters())
    tracker = RowTracker([opt], buffers=1)

    def step() -> None:
        bag(torch.tensor([1, 2])).sum().backward()
        opt.step()
        opt.zero_grad()

    step()
    live = dict(enumerate(tensors(bag, opt)))
    image = [torch.empty_like(t) for t in live.values()]
    (rows,) = set(tracker.find(live).values())
    rows.start_copy(0, image)
    rows.finish_copy()
    with torch.no_grad():
        bag.weight[40] = 3.0
    tracker.find(live)
    rows.start_copy(0, image)
    rows.finish_copy()
    assert equal(image, list(live.values())) and not tracker.invalidated
    step()
    rows.start_copy(0, image)
    rows.block = 1
    rows.copy_block()
    with torch.no_grad():
        bag.weight.mul_(2)
    step()
    assert tracker.invalidated


@pytest.mark.parametrize("shared", [True, False])
def test_a_change_past_the_optimizer_is_noticed_though_others_step(shared: bool) -> None:
    bags = nn.ModuleList(nn.Embedding(50, 4, sparse=True) for _ in range(2))
    groups = [bags.parameters()] if shared else [bag.parameters() for bag in bags]
    opts = [torch.optim.SGD(group, lr=0.1) for group in groups]
    tracker = RowTracker(opts, buffers=1)

    def step(looked_up: Sequence[nn.Module]) -> None:
        for opt in opts:
            opt.zero_grad()
        sum(bag(torch.tensor([1, 2])).sum() for bag in looked_up).backward()
        for opt in opts:
            opt.step()

    step(bags)
    live = dict(enumerate(bag.weight.detach() for bag in bags))
    images = [image_of([tensor]) for tensor in live.values()]
    for change in (0.0, 3.0):
        with torch.no_grad():
            bags[1].weight[40] = change
        step(bags[:1])
        for number, rows in tracker.find(live).items():
            rows.start_copy(0, images[number])
            rows.finish_copy()
        assert all(equal(images[number], [live[number]]) for number in live)


def test_what_may_change_as_a_whole_is_not_tracked() -> None:
    dense, momentum = nn.Embedding(9, 2), nn.Embedding(9, 2, sparse=True)
    plain = torch.optim.Adagrad(dense.parameters())
    heavy = torch.optim.SGD(momentum.parameters(), lr=0.1, momentum=0.9)
    tracker = RowTracker([plain, heavy], buffers=2)
    for module, opt in ((dense, plain), (momentum, heavy)):
        module(torch.tensor([1])).sum().backward()
        opt.step()
    live = {0: dense.weight.detach(), 1: momentum.weight.detach()}
    assert tracker.find(live) == {}


def test_a_gradient_that_becomes_dense_ends_the_tracking() -> None:
    bag = nn.Embedding(9, 2, sparse=True)
    opt = torch.optim.SGD(bag.parameters(), lr=0.1)
    tracker = RowTracker([opt], buffers=1)
    bag(torch.tensor([1])).sum().backward()
    opt.step()
    live = {0: bag.weight.detach()}
    (rows,) = tracker.find(live).values()
    image = image_of([live[0]])
    rows.start_copy(0, image)
    before = live[0].clone()
    bag.weight.grad = torch.ones(9, 2)
    opt.step()
    assert equal(image, [before])
    assert tracker.find(live) == {}


def test_blocks_are_small() -> None:
    assert HostRows([torch.zeros(10, 4)], buffers=1).block * 16 <= rows_module.BLOCK_BYTES


def gathered(images: int = 2) -> tuple[DeviceRows, list[Tensor], list[list[Tensor]]]:
    """A table that is treated as on a GPU, and images that hold it."""
    draw = torch.Generator().manual_seed(3)
    live = [torch.randn(50, 4, generator=draw), torch.zeros(50, 4)]
    rows = DeviceRows(live, images)
    views = [[torch.zeros(50, 4), torch.zeros(50, 4)] for _ in range(images)]
    for image in range(images):
        assert not rows.start_copy(image, views[image]), "nothing is in it yet"
        for view, tensor in zip(views[image], live, strict=True):
            view.copy_(tensor)
    rows.take_changes()
    return rows, live, views


def test_rows_of_a_gpu_are_those_of_the_save() -> None:
    rows, (table, sums), views = gathered()
    draw = torch.Generator().manual_seed(4)
    noted = []
    for step in range(80):
        ids = torch.randint(0, 40, (5,), generator=draw)
        noted.append(ids)
        rows.copy_before_update(ids)
        rows.mark_changed(ids)
        table[ids] += 1
        sums[ids] = step
        if step % 16 == 15:  # by then more ids were noted than there are rows
            image = step // 16 % 2
            assert rows.start_copy(image, views[image])
            wanted = [table.clone(), sums.clone()]
            rows.prepare()
            table.zero_()  # as the optimizer may from now on
            rows.finish_copy()
            table.copy_(wanted[0])
            assert equal(views[image], wanted)
    changed = rows.take_changes()
    assert changed is not None
    assert torch.equal(rows.ids(changed), torch.cat(noted).unique())


def test_an_optimizer_waits_until_rows_of_a_gpu_are_gathered() -> None:
    rows, (table, _), views = gathered()
    rows.mark_changed(torch.tensor([3]))
    rows.start_copy(0, views[0])
    wanted = table.clone()

    def optimizer() -> None:
        rows.copy_before_update(torch.tensor([3]))
        table.zero_()

    thread = threading.Thread(target=optimizer)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    rows.prepare()
    thread.join()
    rows.finish_copy()
    assert torch.equal(views[0][0], wanted)


def test_an_optimizer_does_not_wait_for_rows_that_nobody_wants() -> None:
    rows, _, views = gathered()
    rows.mark_changed(torch.tensor([3]))
    rows.start_copy(0, views[0])
    assert rows.abandon()
    rows.copy_before_update(torch.tensor([3]))
    rows.finish_copy()
    assert not rows.start_copy(0, views[0]), "it lacks everything"


def test_a_change_past_the_optimizer_is_noticed_when_the_image_is_made() -> None:
    bag = nn.Embedding(50, 4, sparse=True)
    opt = torch.optim.SGD(bag.parameters(), lr=0.1)
    tracker = RowTracker([opt], buffers=1)

    def step() -> None:
        bag(torch.tensor([1, 2])).sum().backward()
        opt.step()
        opt.zero_grad()

    step()
    live = {0: bag.weight.detach()}
    (rows,) = tracker.find(live).values()
    rows.start_copy(0, image_of([live[0]]))
    step()
    rows.finish_copy()
    assert tracker.is_consistent()
    rows.start_copy(0, image_of([live[0]]))
    with torch.no_grad():
        bag.weight.clamp_(-1, 1)
    rows.finish_copy()
    assert not tracker.is_consistent()
    assert tracker.find(live) == {}, "it may happen again: from now on the table is copied"
    step()
    assert tracker.is_consistent()


def by_closure(bag: nn.Module, opt: Any, draw: Any) -> None:
    """As Lightning steps: the gradients are made within the step."""

    def closure() -> Tensor:
        opt.zero_grad()
        loss = bag(torch.randint(0, len(bag.weight), (3,), generator=draw)).square().sum()
        loss.backward()
        return loss

    opt.step(closure)


def by_itself(bag: nn.Module, opt: Any, draw: Any) -> None:
    opt.zero_grad()
    bag(torch.randint(0, len(bag.weight), (3,), generator=draw)).square().sum().backward()
    opt.step()


def decays(opt: Any, *_: Any) -> None:
    for group in opt.param_groups:
        for parameter in group["params"]:
            parameter.detach().mul_(0.5)


def spreads(opt: Any, *_: Any) -> None:
    for group in opt.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter).to_sparse(1)


def hooked_before(opt: Any, change: Any) -> None:
    opt.register_step_pre_hook(change)


def hooked_after(opt: Any, change: Any) -> None:
    opt.register_step_post_hook(change)


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "SparseAdam"])
@pytest.mark.parametrize("order", ["first", "last", "between"])
@pytest.mark.parametrize(
    ("step", "hooked", "change"),
    [
        (by_closure, None, None),
        (by_closure, hooked_before, spreads),
        (by_itself, hooked_before, decays),
        (by_itself, hooked_before, spreads),
        (by_itself, hooked_after, decays),
    ],
)
def test_an_image_is_right_or_torn_whatever_is_in_a_step(
    optimizer: str, order: str, step: Any, hooked: Any, change: Any
) -> None:
    """Of a step that makes its gradients, and with hooks of others before and after those here."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    bag = nn.Embedding(50, 4, sparse=True)
    opt = getattr(torch.optim, optimizer)(list(bag.parameters()), lr=0.1)
    if hooked is not None and order == "first":
        hooked(opt, change)
    tracker = RowTracker([opt], buffers=2)
    if hooked is not None and order == "last":
        hooked(opt, change)
    step(bag, opt, draw)
    images: dict[int, list[Tensor]] = {}
    for number in range(8):
        live = tensors(bag, opt)
        wanted = [tensor.clone() for tensor in live]
        image = images.setdefault(number % 2, image_of(live))
        found = tracker.find(dict(enumerate(live)))
        for rows in dict.fromkeys(found.values()):
            rows.block = 1
            places = {tensor.data_ptr(): view for tensor, view in zip(live, image, strict=True)}
            rows.start_copy(number % 2, [places[part.data_ptr()] for part in rows.tensors])
            rows.copy_block()
        for at in set(range(len(live))) - found.keys():
            image[at].copy_(live[at])
        if hooked is not None and order == "between" and number == 3:
            hooked(opt, change)
        step(bag, opt, draw)
        for rows in dict.fromkeys(found.values()):
            rows.finish_copy()
        torn = tracker.invalidated or not tracker.is_consistent()
        tracker.invalidated = False
        assert torn or equal(image, wanted), number
    tracker.close()
    assert hooked is not None or set(found) == set(range(len(live))), "it is tracked to the end"


def test_a_momentum_that_is_set_later_ends_the_tracking() -> None:
    bag = nn.Embedding(9, 2, sparse=True)
    opt = torch.optim.SGD(bag.parameters(), lr=0.1)
    tracker = RowTracker([opt], buffers=1)
    by_itself(bag, opt, None)
    live = {0: bag.weight.detach()}
    assert tracker.find(live)
    torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=10)
    assert opt.param_groups[0]["momentum"]
    bag(torch.tensor([1])).sum().backward()
    opt.step()
    assert not tracker.find(live)
