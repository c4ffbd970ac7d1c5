"""What a command line means to the interpreter that runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headway.launch.warm.interpreter_command import ColdStartRequired, Invocation, read_command
from tests.support import has_code

PYTHON = sys.executable


def parse(*words: str) -> Invocation:
    return read_command(PYTHON, ["python", *words], None)


@pytest.mark.parametrize(
    ("words", "kind", "program", "args"),
    [
        (["a.py"], "script", "a.py", ()),
        (["a.py", "-u", "b"], "script", "a.py", ("-u", "b")),
        (["-m", "a.b", "-c"], "module", "a.b", ("-c",)),
        (["-ma.b"], "module", "a.b", ()),
        (["-c", "1", "x"], "command", "1", ("x",)),
        (["-uc1"], "command", "1", ()),
        (["-"], "script", "-", ()),
    ],
)
def test_the_program(words: list[str], kind: str, program: str, args: tuple[str, ...]) -> None:
    invocation = parse(*words)
    assert (invocation.kind, invocation.program, invocation.args) == (kind, program, args)
    assert invocation.argv == ("python", *words)


def test_options() -> None:
    invocation = parse("-uBW", "ignore", "-Xdev", "-W", "error", "-O", "a.py", "-v")
    assert invocation.unbuffered
    assert invocation.options == (
        ("B", ""),
        ("W", "ignore"),
        ("X", "dev"),
        ("W", "error"),
        ("O", ""),
    )


@pytest.mark.parametrize("words", [["-i", "a.py"], ["-V"], ["--help"], ["-x", "a.py"], ["-m"]])
def test_what_is_no_program(words: list[str]) -> None:
    with pytest.raises(ColdStartRequired, check=has_code("python-option-unknown")):
        parse(*words)
    with pytest.raises(ColdStartRequired, check=has_code("python-without-program")):
        parse()


def executable(path: Path, first: str) -> str:
    path.write_text(f"{first}\nrest\n")
    path.chmod(0o755)
    return str(path)


def test_a_script_by_its_first_line(tmp_path: Path) -> None:
    tool = executable(tmp_path / "torchrun", f"#!{PYTHON}")
    invocation = read_command(tool, ["torchrun", "--x", "y"], None)
    assert invocation.argv == (PYTHON, tool, "--x", "y")
    assert (invocation.comm, invocation.kind, invocation.program) == ("torchrun", "script", tool)
    assert invocation.runs("torchrun", "torch.distributed.run")
    module = read_command(PYTHON, [PYTHON, "-m", "torch.distributed.run", "x.py"], None)
    assert module.runs("torchrun", "torch.distributed.run")
    assert not read_command(PYTHON, [PYTHON, "x.py"], None).runs(
        "torchrun", "torch.distributed.run"
    )


def test_an_option_in_the_first_line(tmp_path: Path) -> None:
    tool = executable(tmp_path / "tool", f"#! {PYTHON} -u ")
    assert read_command(tool, ["tool"], None).unbuffered


def test_env_in_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "python9").symlink_to(PYTHON)
    tool = executable(tmp_path / "tool", "#!/usr/bin/env python9")
    invocation = read_command(tool, ["tool", "a"], str(tmp_path))
    assert invocation.executable == str(tmp_path / "python9")
    assert (invocation.argv, invocation.comm) == (("python9", tool, "a"), "python9")


def test_a_path_that_is_too_long_for_a_first_line(tmp_path: Path) -> None:
    first = f"#!/bin/sh\n'''exec' {PYTHON} \"$0\" \"$@\"\n' '''"
    tool = executable(tmp_path / "tool", first)
    assert read_command(tool, ["tool", "a"], None).argv == (PYTHON, tool, "a")


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ("#!/bin/bash", "not-a-python-program"),
        ("#!/bin/sh", "not-a-python-program"),
        ("\x7fELF", "not-a-python-program"),
        ("#!/usr/bin/env -i x", "first-line-unknown"),
    ],
)
def test_other_programs(tmp_path: Path, first: str, code: str) -> None:
    with pytest.raises(ColdStartRequired, check=has_code(code)):
        read_command(executable(tmp_path / "tool", first), ["tool"], None)


def test_a_shim_is_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(ColdStartRequired, check=has_code("not-a-python-program")):
        read_command(executable(tmp_path / "python", "#!/bin/bash"), ["python", "a.py"], None)
