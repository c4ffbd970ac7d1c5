"""Differences between machines, and the digests of a job's code and configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.compile.cache.keys import (
    code_digest,
    config_digest,
    describe_difference,
    differing_facts,
)
from headway.probe.host_facts import compile_key
from tests.support import Golden
from tests.unit.compile.cache.sample_archives import FACTS, fill

OTHERS: list[dict[str, Any]] = [
    {"torch": "2.12.0"},
    {"cuda": "12.8"},
    {"gpu": ["NVIDIA H200"]},
    {"isa": ["avx", "avx512f"]},
    {"isa": ["avx"]},
    {"env": {"TRITON_X": "1"}},
    {"new": "x"},
    {"python": "cpython-312", "torch": "2.12.0"},
]


def test_the_difference_in_words(golden: Golden) -> None:
    golden("differences.txt", "".join(f"{describe_difference(FACTS, FACTS | o)}\n" for o in OTHERS))


@pytest.mark.parametrize("other", OTHERS)
def test_a_machine_that_differs_has_another_key(other: dict[str, Any]) -> None:
    assert set(differing_facts(FACTS, FACTS | other)) == set(other)
    assert compile_key(FACTS) != compile_key(FACTS | other)


def test_the_same_machine_has_the_same_key() -> None:
    assert describe_difference(FACTS, dict(FACTS)) == "" and compile_key(FACTS) == compile_key(
        dict(FACTS)
    )


def test_where_torch_lies_makes_no_other_key() -> None:
    assert compile_key(FACTS) == compile_key(FACTS | {"place": ["/elsewhere", "/usr"]})
    assert differing_facts(FACTS, FACTS | {"place": None}) == []


@pytest.mark.parametrize("junk", [None, 3, [], "x", {"a": []}, [[1]], {"env": {"a": {}}}])
def test_words_for_whatever_a_store_says(junk: Any) -> None:
    """The facts of other machines are not signed; they are only used in messages."""
    for name in FACTS:
        assert (
            describe_difference(FACTS, FACTS | {name: junk})
            or FACTS[name] == junk
            or name == "place"
        )


def test_the_code_of_a_job_is_in_its_scripts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    first = code_digest(["torchrun", "--nproc", "8", str(script), "--lr", "0.1"])
    assert first == code_digest(["python", str(script), "--lr", "0.2"])
    script.write_text("two")
    assert code_digest(["python", str(script)]) != first
    assert (
        code_digest(["python", str(tmp_path / "not there.py")])
        == code_digest(["python", "\0.py"])
        == ""
    )
    (tmp_path / "folder.py").mkdir()
    code_digest(["python", str(tmp_path / "folder.py")])


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (["python", "-m", "pkg.train", "--lr", "1"], "pkg/train.py"),
        (["torchrun", "--nproc", "2", "-m", "pkg.train"], "pkg/train.py"),
        (["accelerate", "launch", "--module", "pkg"], "pkg/__main__.py"),
        (["bash", "job.sh"], "job.sh"),
    ],
)
def test_the_code_of_a_job_without_a_script_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, {"pkg/train.py": b"one", "pkg/__main__.py": b"one", "job.sh": b"one"})
    first = code_digest(command)
    assert first and first == code_digest([*command, "--more"])
    (tmp_path / file).write_text("two")
    assert code_digest(command) not in ("", first)


def test_the_code_of_a_job_that_is_text() -> None:
    first = code_digest(["python", "-u", "-c", "train(1)"])
    assert first and first != code_digest(["python", "-u", "-c", "train(2)"])
    assert code_digest(["srun", "-c", "8", "train"]) == ""


def test_the_configuration_is_in_its_words_and_files(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text("layers: 2")
    words = ["python", "train.py", f"--config={file}"]
    first = config_digest(words)
    assert first == config_digest(words) != config_digest([*words, "--wide"])
    file.write_text("layers: 3")
    assert config_digest(words) != first
    assert config_digest(["python", "t.py", "\udcff"])  # bytes that are no text
    assert config_digest([*words, "--token=a"]) == config_digest([*words, "--token=b"])
