"""Destruction of process groups."""

from __future__ import annotations

import pytest

from headway.probe.hooks import process_groups


class Group:
    group_name = "3"


def test_threads_of_gloo_get_a_moment_before_all_groups_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[object] = []
    monkeypatch.setattr(process_groups, "sleep", lambda seconds: happened.append("waited"))

    def destroy(group: object = None) -> None:
        happened.append(group)

    group = Group()
    process_groups._destroy(destroy, group)
    process_groups._destroy(destroy)
    assert happened == [group, "waited", None]
