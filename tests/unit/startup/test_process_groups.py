"""Process groups, as one rank of many on the fake backend."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headway.errors import UsageError
from tests.support import Golden, has_code, lazy

dist = lazy("torch.distributed")
groups = lazy("headway.startup.process_groups")
init_device_mesh = lazy("torch.distributed.device_mesh:init_device_mesh")
MINUTE = timedelta(minutes=1)


def as_rank(rank: int, world: int, check: Callable[[], Any]) -> Any:
    return groups.audit(check, world_size=world, rank=rank)


def test_a_mesh_of_64_ranks_makes_48_groups_and_a_partition_3() -> None:
    def ours() -> None:
        groups.ensure(*groups.partition({"pp": 4, "dp": 4, "tp": 4}).values())

    mesh = as_rank(37, 64, lambda: init_device_mesh("cpu", (4, 4, 4)))
    assert (mesh.calls, mesh.member, mesh.useful) == (48, 3, 3)
    partition = as_rank(37, 64, ours)
    assert (partition.calls, partition.member, partition.useful) == (3, 3, 3)


def test_the_groups_of_a_partition_are_those_of_the_mesh() -> None:
    def compare() -> None:
        names = ("pp", "dp", "tp")
        mesh = init_device_mesh("cpu", (2, 3, 4), mesh_dim_names=names)
        ours = groups.partition({"pp": 2, "dp": 3, "tp": 4})
        for name in names:
            theirs = dist.get_process_group_ranks(mesh.get_group(name))
            assert list(ours[name].ranks) == theirs
            assert dist.get_process_group_ranks(ours[name].pg()) == theirs

    for rank in (0, 7, 23):
        as_rank(rank, 24, compare)


def test_asked_twice_made_once_and_only_when_used() -> None:
    def ask() -> None:
        group = groups.group([3, 1], purpose="tensor")
        assert groups.group((1, 3), purpose="tensor") is group
        assert groups.group([1, 3], backend="FAKE", purpose="tensor") is group
        assert groups.split([[0, 2], [1, 3]], purpose="tensor") is group
        assert groups.group([1, 3], purpose="data") is not group
        assert group.ranks == (1, 3) and group.member and not group.is_created
        assert group.pg() is group.pg()
        assert group.is_created and dist.get_process_group_ranks(group.pg()) == [1, 3]

    assert as_rank(1, 4, ask).calls == 1


def test_the_whole_world_is_the_default_group() -> None:
    def ask() -> None:
        assert groups.group(range(4)).pg() is dist.group.WORLD
        assert groups.partition({"dp": 4, "tp": 1})["dp"].pg() is dist.group.WORLD
        apart = groups.group(range(4), purpose="apart", timeout=MINUTE)
        assert apart.pg() is not dist.group.WORLD

    result = as_rank(0, 4, ask)
    assert (result.calls, result.useful) == (1, 0)


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda: groups.group([0, 0]), "rank-twice"),
        (lambda: groups.group([0, 4]), "rank-out-of-range"),
        (lambda: groups.group([-1]), "rank-out-of-range"),
        (lambda: groups.group([]), "rank-out-of-range"),
        (lambda: groups.group(["a"]), "rank-not-an-integer"),
        (lambda: groups.split([[0, 1], [1, 2]]), "rank-twice"),
        (lambda: groups.split([]), "split-without-parts"),
        (lambda: groups.partition({"dp": 3}), "shape-world-size-mismatch"),
        (lambda: groups.partition({"dp": 4, "tp": 0}), "shape-invalid"),
        (lambda: groups.group([1, 2]).pg(), "rank-not-in-group"),
        (lambda: groups.split([[1, 2]]).pg(), "rank-not-in-group"),
    ],
)
def test_wrong_use_is_one_sentence(ask: Callable[[], Any], code: str) -> None:
    with pytest.raises(UsageError, check=has_code(code)) as error:
        as_rank(0, 4, ask)
    assert "\n" not in str(error.value)
    assert not dist.is_initialized()


def test_other_options_need_another_purpose() -> None:
    def ask() -> None:
        groups.group([0, 1], purpose="tensor")
        groups.group([0, 1], purpose="slow", timeout=MINUTE)
        groups.group([0, 1], purpose="tensor", timeout=MINUTE)

    with pytest.raises(UsageError, check=has_code("group-options-differ")):
        as_rank(0, 4, ask)


def test_a_rank_that_a_split_leaves_out() -> None:
    def ask() -> None:
        left_out = groups.split([[0, 1]], purpose="tensor")
        groups.ensure(left_out)
        assert left_out.ranks == () and not left_out.member and not left_out.is_created
        assert groups.split([[1, 0]], purpose="tensor") is left_out
        assert groups.group([0, 1], purpose="tensor").ranks == (0, 1)

    assert as_rank(3, 4, ask).calls == 0


def test_taken_down_and_made_again_under_another_name() -> None:
    def ask() -> None:
        group = groups.group([0, 1])
        first = group.pg().group_name
        group.destroy()
        assert not group.is_created
        second = group.pg().group_name
        dist.destroy_process_group(group.pg())  # behind its back
        assert not group.is_created
        third = group.pg().group_name
        assert len({first, second, third}) == 3
        groups.destroy()
        assert not group.is_created and dist.is_initialized()

    assert as_rank(0, 4, ask).calls == 3


def test_a_group_does_not_outlive_its_job() -> None:
    groups_kept: list[Any] = []
    as_rank(0, 4, lambda: groups_kept.append(groups.group([0, 1])))

    def ask() -> None:
        assert groups.group([0, 1]) is not groups_kept[0]
        with pytest.raises(UsageError, check=has_code("group-outdated")):
            groups_kept[0].pg()

    as_rank(0, 4, ask)


def test_names_do_not_depend_on_what_a_rank_has_made_before() -> None:
    names = []

    def ask() -> None:
        names.append(groups.group([0, 1], purpose="tensor").pg().group_name)

    def ask_late() -> None:
        groups.group([0, 2]).pg()
        dist.new_group([0, 3])
        ask()

    as_rank(0, 4, ask)
    as_rank(0, 4, ask_late)
    as_rank(1, 4, ask)
    assert len(set(names)) == 1


@pytest.mark.parametrize("rank", [1, 3])
def test_one_split_makes_all_parts_where_the_default_group_is_bound(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """No such device is needed: the test checks that torch is called once, for all parts."""
    splits: list[dict[str, Any]] = []
    signature = inspect.signature(dist.split_group)

    def split_group(*args: Any, **kwargs: Any) -> Any:
        splits.append(dict(signature.bind(*args, **kwargs).arguments))
        return None if rank == 3 else dist.new_group([0, 1])

    monkeypatch.setattr("headway.startup.process_groups._splits", lambda default: True)
    monkeypatch.setattr(dist, "split_group", split_group)

    def ask() -> None:
        group = groups.split([[0, 1], [2]], purpose="tensor")
        lone = groups.group([1, 3])
        groups.ensure(group, lone)
        groups.ensure(group, lone)
        assert group.is_created is (rank == 1) and lone.is_created

    as_rank(rank, 4, ask)
    (requests,) = splits
    assert requests["split_ranks"] == [[0, 1], [2]] and requests["group_desc"] == "tensor"


def test_an_audit_counts_the_job_that_starts_by_itself(golden: Golden) -> None:
    def setup() -> None:
        dist.init_process_group("nccl")
        dist.new_subgroups(group_size=2)
        dist.new_group()
        dist.new_group([0, 1])

    result = as_rank(0, 8, setup)
    assert (result.calls, result.member, result.useful) == (6, 3, 1)
    assert (result.sites[0].calls, result.sites[0].member) == (4, 1)
    assert result.sites[0].where.endswith(" setup")
    golden("audit.txt", re.sub(r"\S+:\d+", "FILE:LINE", f"{result}\n"))
    assert dist.init_process_group is dist.distributed_c10d.init_process_group


def test_an_audit_is_no_part_of_a_job() -> None:
    with pytest.raises(UsageError, check=has_code("process-group-initialized")):
        as_rank(0, 2, lambda: groups.audit(list, world_size=2))
    with pytest.raises(UsageError, check=has_code("rank-out-of-range")):
        as_rank(2, 2, list)
