"""Tuning in real processes: what is told of it, and that only what was recorded is pruned."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.compile.autotune.advice import FILE
from headway.journal.reader import Journal, read_journals

TUNING = Path(__file__).parent / "tuning"
SOURCE = Path(__file__).parents[2] / "src"
HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
pytestmark = pytest.mark.timeout(100)


class Job:
    """A folder with the job in it, and its runs."""

    def __init__(self, folder: Path, *, real: bool) -> None:
        self.folder = folder
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY")}
        self.env |= {"HEADWAY_STRICT": "1", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        # The probe is below the launcher's own path; Triton, where there is none, beside the job.
        self.env["PYTHONPATH"] = str(SOURCE if real else TUNING / "without")
        for path in TUNING.glob("*.py"):
            shutil.copy(path, folder)

    def headway(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "headway", *words],
            cwd=self.folder,
            env=self.env | {"PYTHONPATH": f"{SOURCE}:{self.env['PYTHONPATH']}"},
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def run(self, name: str, *words: str, autotune: str = "") -> dict[str, Any]:
        flags = ["--autotune", autotune] if autotune else []
        command = [sys.executable, "scale.py", *words]
        told = self.headway("run", "-o", name, *flags, "--no-report", "--", *command)
        found: dict[str, Any] = json.loads(told.splitlines()[-1])
        return found

    def journal(self, name: str) -> Journal:
        journals, problems = read_journals(str(self.folder / name / "journal"))
        assert not problems
        (found,) = (one for one in journals if one.role == "process")
        return found

    def notes(self, name: str) -> list[str]:
        return [event["text"] for event in self.journal(name).named("note")]


@pytest.fixture(params=[pytest.param(True, id="triton", marks=needs_triton), "without"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(tmp_path, real=request.param is True)


DECORATOR = '@triton.autotune(configs=configs(), key=["n", "mode"], do_bench=bench)'
SMALL, LARGE = "1000=1.0,1.01,3.0,inf", "5000=2.0,1.0,1.5,nan"


def test_what_is_told_of_a_tuning(job: Job) -> None:
    job.run("one", SMALL, "1000/causal=4,3,2,1", "1000=9")
    events = list(job.journal("one").named("autotune_kernel", "autotune"))
    kernel, first, second = events
    assert (kernel["name"], kernel["kind"], kernel["names"]) == ("scale", "triton", ["n", "mode"])
    lines = (TUNING / "scale.py").read_text().splitlines()
    assert kernel["where"].endswith(f"scale.py:{lines.index(DECORATOR) + 1}")
    assert [config["BLOCK"] for config in kernel["configs"]] == [64, 128, 256, 64]
    assert kernel["configs"][3]["pre_hook"] == "hook" and "pre_hook" not in kernel["configs"][0]
    assert first["key"][:2] == [1000, "plain"] and first["ms"] == [1.0, 1.01, 3.0, None]
    assert second["key"][:2] == [1000, "causal"] and second["ms"] == [4.0, 3.0, 2.0, 1.0]
    assert len(first["s"]) == 4 and sum(first["s"]) <= first["seconds"]
    assert {event["kernel"] for event in events} == {kernel["kernel"]}


def test_only_what_was_recorded_is_pruned(job: Job) -> None:
    assert job.run("one", SMALL, LARGE)["1000"]["benchmarked"] == 4
    assert "pruned at most" in job.headway("autotune", "one")
    told = job.run("two", "1000=", "5000=", "7=1,1,1,2", "1000/causal=2,1,2,2", autotune="one")
    assert [told[key]["benchmarked"] for key in told] == [0, 0, 4, 4]
    assert [told[key]["best"] for key in told] == [
        [128, False],
        [128, False],
        [64, False],
        [128, False],
    ]
    taken = [event.get("taken") for event in job.journal("two").named("autotune")]
    assert [bool(each) for each in taken] == [True, True, False, False]
    assert job.notes("two") == []


def test_the_shapes_of_two_runs_make_one_file(job: Job) -> None:
    job.run("one", SMALL)
    job.headway("autotune", "one")
    job.run("two", "1000=", "7=1,1,1,2", autotune="one")
    said = job.headway("autotune", "two", "-o", "second.json")
    assert "name that run too" in said
    job.headway("autotune", "one", "two", "-o", "both.json")
    told = job.run("three", "1000=", "7=", autotune="both.json")
    assert [told[key]["benchmarked"] for key in told] == [0, 0]


def test_a_config_with_a_hook_is_not_taken_for_the_one_without(job: Job) -> None:
    job.run("one", "1000=3,2,4,1")
    job.headway("autotune", "one")
    told = job.run("two", "1000=", autotune="one")["1000"]
    assert told == {"benchmarked": 0, "hooked": 3, "best": [64, True]}


def test_a_kernel_that_has_changed_starts_over(job: Job) -> None:
    job.run("one", SMALL)
    job.headway("autotune", "one")
    path = job.folder / "scale.py"
    path.write_text("# a line more\n\n" + path.read_text())
    assert job.run("moved", "1000=", autotune="one")["1000"]["benchmarked"] == 0
    path.write_text(path.read_text().replace("return x * F", "return x * F + 0"))
    assert job.run("two", SMALL, autotune="one")["1000"]["benchmarked"] == 4
    assert job.notes("two") == ["scale is not as it was recorded: every config is tried"]


def test_a_constant_that_has_changed_starts_over(job: Job) -> None:
    job.run("one", SMALL)
    job.headway("autotune", "one")
    path = job.folder / "scale.py"
    path.write_text(path.read_text().replace("tl.constexpr(2)", "tl.constexpr(2.0)"))
    assert job.run("two", SMALL, autotune="one")["1000"]["benchmarked"] == 4


def test_other_configs_than_were_recorded_start_over(job: Job) -> None:
    job.run("one", LARGE)
    job.headway("autotune", "one")
    path = job.folder / "scale.py"
    text = path.read_text()
    path.write_text(text.replace("range(3)", "range(4)"))
    assert job.run("more", "5000=2,1,3,3,3", autotune="one")["5000"]["benchmarked"] == 5
    path.write_text(text.replace("range(3)", "range(2)"))
    assert job.run("less", "5000=", autotune="one")["5000"]["benchmarked"] == 0
    path.write_text(text.replace("range(3)", "range(1)"))  # the kept one is gone
    assert job.run("gone", "5000=1,2", autotune="one")["5000"]["benchmarked"] == 2


@pytest.mark.parametrize(
    ("field", "note"),
    [
        ("gpu", "what was recorded is of gpu another, this is "),
        ("triton", "what was recorded is of triton another, this is "),
    ],
)
def test_another_gpu_or_triton_starts_over(job: Job, field: str, note: str) -> None:
    job.run("one", SMALL)
    job.headway("autotune", "one")
    path = job.folder / "one" / FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: "another"}))
    assert job.run("two", SMALL, autotune="one")["1000"]["benchmarked"] == 4
    (said,) = job.notes("two")
    assert said.startswith(note)


def test_kernels_of_one_name_in_two_files(job: Job) -> None:
    job.run("one", SMALL, "1000/other=3,2,1,4")
    job.headway("autotune", "one")
    told = job.run("two", "1000=", "1000/other=", autotune="one")
    assert [told[key]["best"] for key in told] == [[64, False], [256, False]]
    assert job.run("three", "1000/other=", autotune="one")["1000/other"]["benchmarked"] == 0


def test_a_file_that_is_damaged_costs_nothing_but_its_use(job: Job) -> None:
    job.run("one", SMALL)
    job.headway("autotune", "one")
    path = job.folder / "one" / FILE
    content = json.loads(path.read_text())
    content["kernels"][0].pop("keys")
    path.write_text(json.dumps(content))
    job.env.pop("HEADWAY_STRICT")
    assert job.run("two", SMALL, autotune="one")["1000"]["benchmarked"] == 4
    (note,) = job.notes("two")
    assert note.startswith("switched off, KeyError")


def test_wrong_use_is_one_sentence(job: Job) -> None:
    said = job.headway("run", "--autotune", "nothing", "--", "true", code=2)
    assert said.startswith("headway: there is no run and no file at nothing")
    job.run("one", SMALL)
    assert "type `headway autotune one`" in job.headway(
        "run", "--autotune", "one", "--", "true", code=2
    )
    assert "--loss is -1" in job.headway("autotune", "one", "--loss", "-1", code=2)
    (job.folder / "mine.txt").write_text("mine")
    said = job.headway("autotune", "one", "-o", "mine.txt", code=2)
    assert said == "headway: mine.txt exists already; add --force to overwrite it\n"
    job.headway("run", "-o", "none", "--no-report", "--", sys.executable, "-c", "")
    assert "no autotuning was recorded in none" in job.headway("autotune", "none", code=2)


def test_the_code_to_paste_prunes_like_the_file(job: Job) -> None:
    job.run("one", SMALL, LARGE)
    code = job.headway("autotune", "one", "--code")
    names: dict[str, Any] = {}
    names["triton"] = SimpleNamespace(Config=lambda kwargs, **options: (kwargs, options))
    exec(code, names)
    assert names["configs"] == [({"BLOCK": 128}, {"num_warps": 4, "num_stages": 3})]


def test_everything_as_json(job: Job) -> None:
    job.run("one", SMALL, LARGE)
    told = json.loads(job.headway("autotune", "one", "--json", "--loss", "0"))
    (kernel,) = told["kernels"]
    assert (told["loss_percent"], kernel["kept"]) == (0.0, [0, 1])
    ranking = told["ranking"][kernel["id"]]
    assert ranking[0] == {"config": 1, "won": 1, "median_percent": 0.5, "worst_percent": 1.0}
    assert json.loads((job.folder / "one" / FILE).read_text())["kernels"] == told["kernels"]


@needs_triton
def test_kernels_that_are_compiled_are_known_again(tmp_path: Path) -> None:
    job = Job(tmp_path, real=True)
    job.env |= {"TRITON_INTERPRET": "0", "NO_LAUNCH": "1"}
    assert job.run("one", SMALL, LARGE)["1000"]["benchmarked"] == 4
    job.headway("autotune", "one")
    told = job.run("two", "1000=", "5000=", "7=1,1,1,2", autotune="one")
    assert [told[key]["benchmarked"] for key in told] == [0, 0, 4]
    path = job.folder / "scale.py"
    path.write_text(path.read_text().replace("return x * F", "return x * F + 0"))
    assert job.run("three", SMALL, autotune="one")["1000"]["benchmarked"] == 4


class Generated:
    """A kernel of torch's own, below a run of its own each time."""

    def __init__(self, job: Job, *, sizes_in_text: bool) -> None:
        self.job = job
        text = (TUNING / "relu.txt").read_text()
        self.path = job.folder / "c0ffee.py"
        self.path.write_text(text if sizes_in_text else text.replace("    xnumel = 1000000\n", ""))

    def run(self, name: str, size: int, times: str, autotune: str = "") -> dict[str, Any]:
        for kept in self.job.folder.glob("*.best_config"):  # torch's own result, of all configs
            kept.unlink()
        return self.again(name, size, times, autotune)

    def again(self, name: str, size: int, times: str, autotune: str = "") -> dict[str, Any]:
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(self.job.folder / f"cache-{name}")}
        self.job.env |= {**cache, "TRITON_INTERPRET": "0"}
        flags = ["--autotune", autotune] if autotune else []
        command = [sys.executable, "inductor.py", str(self.path), str(size), times]
        told = self.job.headway("run", "-o", name, *flags, "--no-report", "--", *command)
        found: dict[str, Any] = json.loads(told.splitlines()[-1])
        return found


@pytest.fixture
def plain(tmp_path: Path) -> Job:
    """With the torch that is here, and Triton if that has one."""
    return Job(tmp_path, real=True)


def test_a_generated_kernel_is_compiled_for_the_kept_config_only(plain: Job) -> None:
    kernel = Generated(plain, sizes_in_text=True)
    assert kernel.run("one", 1000000, "2.0,1.0") == {
        "compiled": [4, 8],
        "benchmarked": [4, 8],
        "ran": [[512, 8]] * 3,
    }
    (event,) = plain.journal("one").named("autotune")
    assert (event["kind"], event["key"], event["ms"]) == ("inductor", [1000000], [2.0, 1.0])
    plain.headway("autotune", "one")
    assert kernel.run("two", 1000000, "0", autotune="one") == {
        "compiled": [8],
        "benchmarked": [],
        "ran": [[512, 8]] * 3,
    }
    (event,) = plain.journal("two").named("autotune")
    assert (event["taken"]["XBLOCK"], event["of"], event["seconds"]) == (512, 2, 0.0)


@pytest.mark.slow
def test_the_number_of_a_kernel_and_of_its_device_do_not_matter(plain: Job) -> None:
    kernel = Generated(plain, sizes_in_text=True)
    kernel.run("one", 1000000, "2.0,1.0")
    plain.headway("autotune", "one")
    text = kernel.path.read_text().replace("index=0", "index=3")
    kernel.path = plain.folder / "decaf.py"
    kernel.path.write_text(text)
    assert kernel.run("two", 1000000, "0", autotune="one")["compiled"] == [8]
    kernel.path.write_text(text.replace("x0 = xindex", "x0 = xindex + 0"))
    assert kernel.run("three", 1000000, "2.0,1.0", autotune="one")["compiled"] == [4, 8]


@pytest.mark.slow
def test_the_result_that_torch_has_kept_of_all_configs_goes_before(plain: Job) -> None:
    kernel = Generated(plain, sizes_in_text=True)
    kernel.run("one", 1000000, "2.0,1.0")
    plain.headway("autotune", "one")
    (kept,) = plain.folder.glob("*.best_config")
    content = json.loads(kept.read_text())
    kept.write_text(json.dumps(content | {"XBLOCK": 1024, "num_warps": 4}))
    assert kernel.again("two", 1000000, "0", autotune="one")["ran"] == [[1024, 4]] * 3
    assert json.loads(kept.read_text())["num_warps"] == 4


@needs_triton
def test_sizes_that_come_with_the_launch_are_looked_at_there(plain: Job) -> None:
    kernel = Generated(plain, sizes_in_text=False)
    kernel.run("one", 1000000, "1.0,2.0")
    plain.headway("autotune", "one")
    told = kernel.run("two", 1000000, "0", autotune="one")
    assert (told["compiled"], told["benchmarked"]) == ([4], [])
    told = kernel.run("three", 5000, "2.0,1.0", autotune="one")
    assert (told["compiled"], told["benchmarked"]) == ([4, 4, 8], [4, 8])
    assert told["ran"] == [[512, 8]] * 3
    (event,) = plain.journal("three").named("autotune")
    assert (event["key"], event["ms"]) == ([5000], [2.0, 1.0])


@pytest.mark.slow
def test_a_product_takes_the_choice_that_was_best(plain: Job) -> None:
    def run(name: str, size: int, *flags: str) -> list[dict[str, Any]]:
        plain.env["TORCHINDUCTOR_CACHE_DIR"] = str(plain.folder / f"cache-{name}")
        command = [sys.executable, "product.py", str(size)]
        plain.headway("run", "-o", name, *flags, "--no-report", "--", *command)
        return list(plain.journal(name).named("autotune"))

    (event,) = run("one", 32)
    assert (event["kind"], len(event["ms"]), event["of"]) == ("template", 2, 2)
    said = plain.headway("autotune", "one")
    assert "bmm" in said
    (event,) = run("two", 32, "--autotune", "one")
    assert "ms" not in event and event["of"] == 2 and event["taken"]["choice"]
    (event,) = run("three", 64, "--autotune", "one")
    assert len(event["ms"]) == 2


@needs_triton
def test_ranks_are_taken_together(plain: Job) -> None:
    def run(name: str, words: str, *flags: str) -> list[dict[str, Any]]:
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [sys.executable, *ranks, "scale.py", words]
        plain.headway("run", "-o", name, *flags, "--no-report", "--", *command)
        journals, _ = read_journals(str(plain.folder / name / "journal"))
        assert sorted(one.rank for one in journals if one.rank is not None) == [0, 1]
        return [event for one in journals for event in one.named("autotune")]

    assert [len(event["ms"]) for event in run("one", SMALL)] == [4, 4]
    told = json.loads(plain.headway("autotune", "one", "--json"))
    (kernel,) = told["kernels"]
    assert len(kernel["keys"]) == 1
    taken = run("two", "1000=", "--autotune", "one")
    assert [event["taken"]["BLOCK"] for event in taken] == [64, 64]
