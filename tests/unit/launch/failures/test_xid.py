"""Xids."""

from __future__ import annotations

import pytest

from headway.launch.failures import Fact, classify, failed
from headway.launch.failures.xid import Xid, faulty_gpus, parse, role


def line(number: int, pid: int = 7, gpu: str = "0000:3b:00") -> str:
    return f"NVRM: Xid (PCI:{gpu}): {number}, pid={pid}, name=python, Ch 00000008"


def test_parse() -> None:
    assert parse(line(79)) == Xid(79, "0000:3b:00", "7")
    assert parse("NVRM: Xid (PCI:0000:84:00): 63, Row Remapper: pending") == Xid(
        63, "0000:84:00", ""
    )
    assert parse("node n7 reported XID error 94") == Xid(94, "", "")
    assert parse("no such thing") is None


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (48, ("gpu_hardware", "root")),
        (79, ("gpu_hardware", "root")),
        (94, ("gpu_hardware", "root")),
        (119, ("gpu_hardware", "root")),
        (149, ("gpu_hardware", "root")),
        (13, ("cuda_fault", "root")),
        (31, ("cuda_fault", "root")),
        (43, ("cuda_fault", "symptom")),
        (45, ("cuda_fault", "symptom")),
        (63, ("unknown", "fact")),
        (92, ("unknown", "fact")),
    ],
)
def test_role(number: int, expected: tuple[str, str]) -> None:
    assert role(number)[:2] == expected


def test_many_processes_on_one_gpu() -> None:
    assert faulty_gpus(Xid(31, "a", str(pid)) for pid in (1, 2, 3)) == {"a"}
    assert faulty_gpus(Xid(31, gpu, "1") for gpu in "abc") == set()


def test_rows_remapped_are_no_failure() -> None:
    assert not failed([Fact(source="kernel", text=line(63)), Fact(source="kernel", text=line(92))])


def test_the_cause_of_secondary_ones_is_another() -> None:
    facts = [Fact(source="kernel", text=line(number)) for number in (43, 45)]
    oom = Fact(source="exception", text="torch.OutOfMemoryError: CUDA out of memory")
    assert classify([*facts, oom]).category == "gpu_oom"
    assert classify([*facts, Fact(source="kernel", text=line(79))]).signature == "xid_79"
