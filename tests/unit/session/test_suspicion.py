"""Which boosters may be to blame for a bad end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.launch.failures import Fact
from headway.session.registry import BOOSTERS
from headway.session.suspicion import AsyncSaveState, Suspicion, async_save_state, find_suspects


def suspects(**arguments: Any) -> Suspicion:
    defaults: dict[str, Any] = {
        "enabled": BOOSTERS,
        "facts": [],
        "error_frames": [],
        "category": "user_code",
        "stepped": True,
        "async_save": AsyncSaveState(),
        "active": [],
    }
    return find_suspects(**{**defaults, **arguments})


def test_a_job_of_its_own_fault_has_no_suspect() -> None:
    at = "/x/headway/probe/hooks/checkpoint.py:80"  # it stands in every traceback of a save
    ours = Fact(source="log", text="KeyError: 1", within=f"{at}:around train.py:main")
    assert suspects(error_frames=["train.py:3", at], facts=[ours]) == Suspicion()
    assert suspects(stepped=False) == Suspicion()  # nothing has acted
    assert suspects(stepped=False, category="host_oom", active=["learn"]) == Suspicion()


def test_an_error_that_was_raised_in_our_files() -> None:
    place = "/x/headway/checkpoint/async_save/queue.py"
    raised = Fact(source="log", text="WriteFailed: x", within=f"train.py:main {place}:raise_failed")
    for arguments in ({"error_frames": [f"{place}:150"]}, {"facts": [raised]}):
        assert list(suspects(**arguments).evident) == ["async_save"]
        assert suspects(**arguments, enabled=["warm"]) == Suspicion()
    survived = Fact(source="log", text="x", within=place, survived=True)
    assert suspects(facts=[survived]) == Suspicion()
    assert list(suspects(error_frames=["/x/headway/probe/autotune/advice.py:9"]).evident) == [
        "autotune"
    ]


def test_what_has_acted_before_a_first_step_that_never_came() -> None:
    suspicion = suspects(stepped=False, category="compile", active=["compile_cache", "learn"])
    assert suspicion.evident == {} and set(suspicion.tentative) == {"compile_cache", "learn"}
    assert suspects(stepped=True, category="compile", active=["learn"]) == Suspicion()


def test_a_copy_for_a_save_may_crash_the_job() -> None:
    crashed = suspects(category="native_crash", async_save=AsyncSaveState(recent=True))
    assert list(crashed.tentative) == ["async_save"]
    killed = suspects(category="unknown", async_save=AsyncSaveState(recent=True))
    assert killed == Suspicion()
    failed = suspects(category="unknown", async_save=AsyncSaveState(failed="OSError: no space"))
    assert "OSError: no space" in failed.evident["async_save"]


S = 1_000_000_000


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], AsyncSaveState()),
        ([{"ev": "saving", "t": S}], AsyncSaveState(recent=True)),
        (
            [{"ev": "saving", "t": S}, {"ev": "behind", "t": S, "end": 2 * S, "bytes": 1}],
            AsyncSaveState(),
        ),
        (
            [{"ev": "saving", "t": 8 * S}, {"ev": "behind", "t": S, "end": 9 * S, "bytes": 1}],
            AsyncSaveState(recent=True),
        ),
        (
            [
                {"ev": "saving", "t": S},
                {"ev": "behind", "t": S, "end": S, "bytes": 1, "error": "E"},
            ],
            AsyncSaveState(failed="E"),
        ),
        ([{"ev": "behind", "t": S, "why": "an open file"}], AsyncSaveState()),
    ],
)
def test_what_journals_say_of_saves(
    tmp_path: Path, events: list[dict[str, Any]], expected: AsyncSaveState
) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(event, separators=(",", ":")) for event in events]
    path.write_text("\n".join([*lines, '{"ev":"saving","t":']))
    assert async_save_state([str(path), str(tmp_path / "gone")], 10 * S) == expected
