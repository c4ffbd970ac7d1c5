"""Which commands are compatible with what a forkserver has loaded."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from headway.launch.warm.compatibility import Compatibility, file_identity, has_devices, same_file
from headway.launch.warm.interpreter_command import ColdStartRequired, read_command
from tests.support import has_code

PYTHON = sys.executable
ENV = {"PATH": "/bin", "HOME": "/root", "PYTHONPATH": "/boot", "TORCH_LOGS": "a"}


def kit(**fields: Any) -> Compatibility:
    defaults: dict[str, Any] = {
        "executable": PYTHON,
        "options": [],
        "flags": {},
        "warnings": [],
        "env": ENV,
        "preset": {},
        "reads": ["HOME", "HF_HOME"],
        "modules": ["torch", "numpy"],
    }
    return Compatibility(**{**defaults, **fields})


def fits(tmp_path: Path, *words: str, env: dict[str, str] | None = None, **fields: Any) -> str:
    """The code of the reason against a warm start, with its subject; empty if there is none."""
    if not (tmp_path / "a.py").exists():
        (tmp_path / "a.py").touch()
    invocation = read_command(PYTHON, [PYTHON, *(words or ("a.py",))], None)
    try:
        kit(**fields).check(invocation, {**ENV, **(env or {})}, str(tmp_path))
    except ColdStartRequired as why:
        return " ".join([why.code, *map(str, why.fields.values())])
    return ""


def test_the_same_again(tmp_path: Path) -> None:
    assert fits(tmp_path) == ""
    assert fits(tmp_path, "-u", "a.py") == ""
    assert fits(tmp_path, "-c", "1") == ""
    assert fits(tmp_path, "-m", "x") == ""


@pytest.mark.parametrize(
    "env",
    [
        {"RANK": "1"},
        {"HEADWAY_LAUNCH": "x"},
        {"OMP_NUM_THREADS": "4"},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
        {"TORCHELASTIC_RUN_ID": "1"},
        {"CUDA_VISIBLE_DEVICES": "1"},
        {"TZ": "UTC"},
        {"TORCHINDUCTOR_CACHE_DIR": "/c"},
    ],
)
def test_variables_that_do_not_matter(tmp_path: Path, env: dict[str, str]) -> None:
    assert fits(tmp_path, env=env, reads=["HOME", "CUDA_VISIBLE_DEVICES"]) == ""


@pytest.mark.parametrize(
    "env",
    [
        {"HF_HOME": "/h"},
        {"HOME": "/"},
        {"PYTHONHASHSEED": "1"},
        {"PYTHONPATH": "/other"},
        {"TORCH_LOGS": "b"},
        {"PYTORCH_CUDA_ALLOC_CONF": "x"},
        {"LD_PRELOAD": "x.so"},
        {"MKL_NUM_THREADS": "1"},
        {"OMP_NUM_THREADS": "4,2"},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"HEADWAY_OFF": "compile"},
        {"LANG": "C"},
    ],
)
def test_variables_that_are_read_at_import(tmp_path: Path, env: dict[str, str]) -> None:
    reads = ["HOME", "HF_HOME", "CUDA_VISIBLE_DEVICES", "HEADWAY_OFF"]
    assert fits(tmp_path, env=env, reads=reads) == f"environment-differs {next(iter(env))}"


def test_a_variable_that_is_gone(tmp_path: Path) -> None:
    invocation = read_command(PYTHON, [PYTHON, "-c", "1"], None)
    without = {key: value for key, value in ENV.items() if key != "TORCH_LOGS"}
    with pytest.raises(ColdStartRequired, check=has_code("environment-differs")) as why:
        kit().check(invocation, without, str(tmp_path))
    assert why.value.fields == {"variable": "TORCH_LOGS"}


def test_a_variable_that_the_script_sets_itself(tmp_path: Path) -> None:
    preset = {"TORCH_LOGS": "b"}
    assert fits(tmp_path, env={"TORCH_LOGS": "b"}, preset=preset) == ""
    assert fits(tmp_path, preset=preset) == ""
    assert fits(tmp_path, env={"TORCH_LOGS": "c"}, preset=preset) != ""


@pytest.mark.parametrize("words", [["-O", "a.py"], ["-Xdev", "a.py"], ["-W", "error", "a.py"]])
def test_options_of_the_interpreter(tmp_path: Path, words: list[str]) -> None:
    assert fits(tmp_path, *words) == f"python-option-differs {words[0][1]}"
    letter, _, value = words[0][1], "", words[0][2:] or (words[1] if words[0] == "-W" else "")
    fields = {"options": [(letter, value)], "warnings": [value] if letter == "W" else []}
    assert fits(tmp_path, *words, **fields) == ""
    assert fits(tmp_path, "a.py", **fields) != ""


def test_options_that_say_what_the_environment_has_said(tmp_path: Path) -> None:
    flags = {"dont_write_bytecode": 1}
    assert fits(tmp_path, "-B", "a.py", flags=flags) == ""
    assert fits(tmp_path, "-Wignore", "a.py", warnings=["ignore"]) == ""


def test_programs_that_are_none(tmp_path: Path) -> None:
    assert fits(tmp_path, "missing.py") == "program-not-a-file"
    assert fits(tmp_path, "-") == "program-not-a-file"
    assert fits(tmp_path, str(tmp_path)) == "program-not-a-file"
    with zipfile.ZipFile(tmp_path / "a.pyz", "w") as archive:
        archive.writestr("__main__.py", "")
    assert fits(tmp_path, "a.pyz") == "program-is-an-archive"


def test_a_tracker_of_multiprocessing_is_started_cold_without_a_word(tmp_path: Path) -> None:
    invocation = read_command(
        PYTHON, [PYTHON, "-c", "from multiprocessing.resource_tracker ..."], None
    )
    with pytest.raises(ColdStartRequired) as why:
        kit().check(invocation, ENV, str(tmp_path))
    assert str(why.value) == ""


def test_a_file_that_would_hide_a_module(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    assert fits(tmp_path) == ""  # a folder that is not a package
    (tmp_path / "numpy" / "__init__.py").touch()
    assert fits(tmp_path) == "module-shadowed numpy"
    assert fits(tmp_path, "-c", "1") == "module-shadowed numpy"


SETTING = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"


def test_a_script_that_sets_variables(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(SETTING)
    assert fits(tmp_path) == "program-sets-variable OMP_NUM_THREADS"
    assert fits(tmp_path, preset={"OMP_NUM_THREADS": "1"}) == ""
    mains = {os.path.realpath(path): file_identity(str(path))}
    assert fits(tmp_path, mains=mains) == ""
    path.write_text(SETTING + "# edited\n")
    assert fits(tmp_path, mains=mains) != ""


@pytest.mark.parametrize(
    "text",
    [
        "import os\nprint(os.environ['OMP_NUM_THREADS'])",
        "import os\nos.environ['WANDB_MODE'] = 'x'",
        "import os\nos.environ['PATH'] = os.environ['HOME']",
        "if os.environ['OMP_NUM_THREADS'] == '1': pass",
    ],
)
def test_a_script_that_only_looks(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.py").write_text(text)
    assert fits(tmp_path) == ""


def test_the_same_interpreter_by_another_name(tmp_path: Path) -> None:
    for name in ("python", "python3"):
        (tmp_path / name).symlink_to(PYTHON)
    assert same_file(str(tmp_path / "python"), str(tmp_path / "python3"))
    assert not same_file(str(tmp_path / "python"), PYTHON)  # of another environment


@pytest.mark.parametrize(
    ("value", "has"), [(None, True), ("0,1", True), ("", False), ("-1", False)]
)
def test_devices(value: str | None, has: bool) -> None:
    assert has_devices(value) is has
