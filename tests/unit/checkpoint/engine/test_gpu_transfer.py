"""Pieces over the bus; here without a GPU, whose own test is in tests/gpu."""

from __future__ import annotations

import threading

import pytest

from tests.support import lazy

torch = lazy("torch")
lanes_module = lazy("headway.checkpoint.engine.gpu_transfer")
PinnedTransfer = lazy("headway.checkpoint.engine.gpu_transfer:PinnedTransfer")
byte_blocks = lazy("headway.checkpoint.engine.gpu_transfer:byte_blocks")

pytestmark = pytest.mark.timeout(60)
SHAPES = [(3, 5), (), (1000,), (0, 4), (7, 1)]


def types() -> list[torch.dtype]:
    return [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


def tensors(seed: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, 2, shape, generator=draw).to(dtype)
        for shape in SHAPES
        for dtype in types()
    ]


@pytest.mark.parametrize("way", ["to_host", "to_device"])
@pytest.mark.parametrize("piece", [16, 4096])
def test_all_bytes_arrive(way: str, piece: int) -> None:
    lanes = PinnedTransfer(torch.device("cpu"), threads=3, block_bytes=piece)
    for seed in (1, 2):  # buffers are used again
        source, target = tensors(seed), tensors(0)
        getattr(lanes, way)(list(zip(target, source, strict=True)))
        assert all(torch.equal(a, b) for a, b in zip(target, source, strict=True))


def test_when_there_are_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python gives none to a process that ends."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    lanes, (source, target) = (
        PinnedTransfer(torch.device("cpu"), threads=3, block_bytes=16),
        (tensors(1), tensors(0)),
    )
    monkeypatch.setattr(threading.Thread, "start", refused)
    lanes.to_host(list(zip(target, source, strict=True)))
    assert all(torch.equal(a, b) for a, b in zip(target, source, strict=True))


@pytest.mark.parametrize("numpy", [True, False])
@pytest.mark.parametrize("shape", [(9,), (9, 4), (9, 2, 3), (9, 0)])
def test_rows_arrive_where_they_belong(
    shape: tuple[int, ...], numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "HAS_NUMPY", numpy)
    lanes = PinnedTransfer(torch.device("cpu"), threads=3, block_bytes=64)
    ids = torch.tensor([8, 0, 3])
    parts, expected = [], []
    for dtype in types():
        table, rows = torch.zeros(shape, dtype=dtype), torch.ones(3, *shape[1:], dtype=dtype)
        expected.append(table.index_copy(0, ids, rows))
        parts.append((table, ids, rows))
    lanes.to_rows(parts)
    assert all(torch.equal(table, e) for (table, _, _), e in zip(parts, expected, strict=True))


def test_a_failure_in_a_lane_is_raised() -> None:
    lanes = PinnedTransfer(torch.device("cpu"), threads=2, block_bytes=64)

    def fails(*_: object) -> None:
        raise BufferError

    with pytest.raises(BufferError):
        lanes._transfer([(torch.zeros(1000), torch.ones(1000))], None, fails)


def test_pieces_are_no_longer_than_asked_for() -> None:
    pairs = [(torch.zeros(10, 3), torch.zeros(10, 3)), (torch.zeros(2), torch.zeros(2))]
    assert [len(a) for a, _ in byte_blocks(pairs, 50)] == [50, 50, 20, 8]
