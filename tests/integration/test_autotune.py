"""Tuning in real processes: what is recorded, and that only recorded keys are pruned."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.compile.autotune.advice import ADVICE_FILE, find_advice_file
from headway.journal.reader import Journal, read_journals
from headway.launch.attempt import BOOT
from headway.probe import ENV_AUTOTUNE
from tests.support import HEADWAY, ForkServer, Golden, cli, codes, probe_env

TUNING = Path(__file__).parent / "tuning"
HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
pytestmark = pytest.mark.timeout(200)


class Job:
    """A folder with the job and its runs."""

    def __init__(self, folder: Path, *, real: bool) -> None:
        self.folder = folder
        # Where there is no Triton, the stand-in beside the job.
        self.path = (str(BOOT),) if real else (str(BOOT), str(TUNING / "without"))
        self.more = {"TRITON_INTERPRET": "1"}
        shutil.copytree(
            TUNING, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("without")
        )

    def env(self, name: str, autotune: str = "") -> dict[str, str]:
        """The environment of a process of that run, as set by the launcher."""
        (self.folder / name / "journal").mkdir(parents=True)
        output = (
            {ENV_AUTOTUNE: str(find_advice_file(str(self.folder / autotune)))} if autotune else {}
        )
        path = {"PYTHONPATH": ":".join(self.path)}
        return probe_env(self.folder / name / "journal", **(path | self.more | output))

    def run(self, name: str, *words: str, autotune: str = "") -> dict[str, Any]:
        return _last(self.called([sys.executable, "scale.py", *words], self.env(name, autotune)))

    def launch(self, name: str, command: list[str], *flags: str) -> str:
        """The same with the launcher."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY")}
        env |= {"HEADWAY_STRICT": "1", "OMP_NUM_THREADS": "1", **self.more}
        env["PYTHONPATH"] = ":".join(self.path[1:])
        words = [HEADWAY, "run", "-o", name, *flags, "--no-report", "--", *command]
        return self.called(words, env)

    def called(self, words: list[str], env: dict[str, str]) -> str:
        done = subprocess.run(
            words, cwd=self.folder, env=env, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def verb(self, *words: str) -> str:
        done = cli("autotune", *words, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *words: str) -> str:
        """The code of the problem."""
        done = cli(*words, cwd=self.folder)
        assert done.returncode == 2
        (code,) = codes(done.stderr)
        return code

    def journal(self, name: str) -> Journal:
        journals, problems = read_journals(str(self.folder / name / "journal"))
        assert not problems
        (result,) = (process for process in journals if process.role == "process")
        return result

    def notes(self, name: str) -> list[str]:
        return [event["code"] for event in self.journal(name).named("note")]


def _last(printed: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


SMALL, LARGE = "1000=1.0,1.01,3.0,inf", "5000=2.0,1.0,1.5,nan"


@pytest.fixture(
    scope="module", params=[pytest.param(True, id="triton", marks=needs_triton), "without"]
)
def real(request: pytest.FixtureRequest) -> bool:
    return request.param is True


@pytest.fixture
def job(real: bool, tmp_path: Path) -> Job:
    return Job(tmp_path, real=real)


@pytest.fixture(scope="module")
def recorded(real: bool, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job with a run that tuned two sizes, and its advice file."""
    job = Job(tmp_path_factory.mktemp("recorded"), real=real)
    job.run("one", SMALL, LARGE)
    job.verb("one")
    return job


@pytest.fixture
def tuned(job: Job, recorded: Job) -> Job:
    shutil.copytree(recorded.folder / "one", job.folder / "one")
    return job


DECORATOR = '@triton.autotune(configs=configs(), key=["n", "mode"], do_bench=bench)'


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


def test_only_what_was_recorded_is_pruned(tuned: Job) -> None:
    words = ["1000=", "5000=", "7=1,1,1,2", "1000/causal=2,1,2,2"]
    output = _last(tuned.launch("two", [sys.executable, "scale.py", *words], "--autotune", "one"))
    assert [output[key]["benchmarked"] for key in output] == [0, 0, 4, 4]
    assert [output[key]["best"] for key in output] == [
        [128, False],
        [128, False],
        [64, False],
        [128, False],
    ]
    used = [event.get("taken") for event in tuned.journal("two").named("autotune")]
    assert [bool(each) for each in used] == [True, True, False, False]
    assert tuned.notes("two") == []


def test_the_shapes_of_two_runs_make_one_file(tuned: Job, golden: Golden) -> None:
    tuned.run("two", "1000=", "7=1,1,1,2", autotune="one")
    text = tuned.verb("two", "-o", "second.json")
    golden("autotune_two.txt", _without_figures(text.replace(str(tuned.folder), "FOLDER")))
    tuned.verb("one", "two", "-o", "both.json")
    output = tuned.run("three", "1000=", "7=", autotune="both.json")
    assert [output[key]["benchmarked"] for key in output] == [0, 0]


def _without_figures(text: str) -> str:
    """What a run took, and the machine."""
    text = re.sub(r"recorded on .*", "recorded on MACHINE", text)
    return re.sub(r" +\d+\.\d\d\b", " N", re.sub(r"\(\d+%\)", "(N%)", text))


def test_a_config_with_a_hook_is_not_taken_for_the_one_without(job: Job) -> None:
    job.run("one", "1000=3,2,4,1")
    job.verb("one")
    output = job.run("two", "1000=", autotune="one")["1000"]
    assert output == {"benchmarked": 0, "hooked": 3, "best": [64, True]}


def test_a_kernel_that_has_changed_starts_over(tuned: Job) -> None:
    path = tuned.folder / "scale.py"
    path.write_text("# a line more\n\n" + path.read_text())
    assert tuned.run("moved", "1000=", autotune="one")["1000"]["benchmarked"] == 0
    path.write_text(path.read_text().replace("return x * F", "return x * F + 0"))
    assert tuned.run("two", SMALL, autotune="one")["1000"]["benchmarked"] == 4
    assert tuned.notes("two") == ["autotune-kernel-changed"]


def test_a_constant_that_has_changed_starts_over(tuned: Job) -> None:
    path = tuned.folder / "scale.py"
    path.write_text(path.read_text().replace("tl.constexpr(2)", "tl.constexpr(2.0)"))
    assert tuned.run("two", SMALL, autotune="one")["1000"]["benchmarked"] == 4


def test_other_configs_than_were_recorded_start_over(tuned: Job) -> None:
    path = tuned.folder / "scale.py"
    text = path.read_text()
    path.write_text(text.replace("range(3)", "range(4)"))
    assert tuned.run("more", "5000=2,1,3,3,3", autotune="one")["5000"]["benchmarked"] == 5
    path.write_text(text.replace("range(3)", "range(2)"))
    assert tuned.run("less", "5000=", autotune="one")["5000"]["benchmarked"] == 0
    path.write_text(text.replace("range(3)", "range(1)"))  # the kept one is gone
    assert tuned.run("gone", "5000=1,2", autotune="one")["5000"]["benchmarked"] == 2


@pytest.mark.parametrize("field", ["gpu", "triton"])
def test_another_gpu_or_triton_starts_over(tuned: Job, field: str) -> None:
    path = tuned.folder / "one" / ADVICE_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: "another"}))
    assert tuned.run("two", SMALL, autotune="one")["1000"]["benchmarked"] == 4
    assert tuned.notes("two") == ["autotune-machine-mismatch"]


def test_kernels_of_one_name_in_two_files(job: Job) -> None:
    job.run("one", SMALL, "1000/other=3,2,1,4")
    job.verb("one")
    output = job.run("two", "1000=", "1000/other=", autotune="one")
    assert [output[key]["best"] for key in output] == [[64, False], [256, False]]
    assert job.run("three", "1000/other=", autotune="one")["1000/other"]["benchmarked"] == 0


def test_a_file_that_is_damaged_costs_nothing_but_its_use(tuned: Job) -> None:
    path = tuned.folder / "one" / ADVICE_FILE
    content = json.loads(path.read_text())
    content["kernels"][0].pop("keys")
    path.write_text(json.dumps(content))
    tuned.more["HEADWAY_STRICT"] = ""
    assert tuned.run("two", SMALL, autotune="one")["1000"]["benchmarked"] == 4
    (note,) = tuned.journal("two").named("note")
    assert note["code"] == "hook-off" and "KeyError" in note["text"]


def test_wrong_use_is_one_sentence(tuned: Job) -> None:
    assert tuned.refused("run", "--autotune", "nothing", "--", "true") == "run-not-found"
    (tuned.folder / "one" / ADVICE_FILE).unlink()
    assert tuned.refused("run", "--autotune", "one", "--", "true") == "autotune-file-missing"
    assert tuned.refused("autotune", "one", "--loss", "-1") == "loss-out-of-range"
    (tuned.folder / "mine.txt").write_text("mine")
    assert tuned.refused("autotune", "one", "-o", "mine.txt") == "target-exists"
    tuned.launch("none", [sys.executable, "-c", ""])
    assert tuned.refused("autotune", "none") == "autotuning-not-recorded"


def test_the_code_to_paste_prunes_like_the_file(tuned: Job) -> None:
    code = tuned.verb("one", "--code")
    names: dict[str, Any] = {}
    names["triton"] = SimpleNamespace(Config=lambda kwargs, **options: (kwargs, options))
    exec(code, names)
    assert names["configs"] == [({"BLOCK": 128}, {"num_warps": 4, "num_stages": 3})]


def test_everything_as_json(tuned: Job) -> None:
    output = json.loads(tuned.verb("one", "--json", "--loss", "0"))
    (kernel,) = output["kernels"]
    assert (output["loss_percent"], kernel["kept"]) == (0.0, [0, 1])
    ranking = output["ranking"][kernel["id"]]
    assert ranking[0] == {"config": 1, "won": 1, "median_percent": 0.5, "worst_percent": 1.0}
    assert (
        json.loads((tuned.folder / "one" / ADVICE_FILE).read_text())["kernels"] == output["kernels"]
    )


@needs_triton
def test_kernels_that_are_compiled_are_known_again(tmp_path: Path) -> None:
    job = Job(tmp_path, real=True)
    job.more |= {"TRITON_INTERPRET": "0", "NO_LAUNCH": "1"}
    assert job.run("one", SMALL, LARGE)["1000"]["benchmarked"] == 4
    job.verb("one")
    output = job.run("two", "1000=", "5000=", "7=1,1,1,2", autotune="one")
    assert [output[key]["benchmarked"] for key in output] == [0, 0, 4]
    path = job.folder / "scale.py"
    path.write_text(path.read_text().replace("return x * F", "return x * F + 0"))
    assert job.run("three", SMALL, autotune="one")["1000"]["benchmarked"] == 4


class Generated:
    """A kernel generated by torch, with a separate run each time."""

    def __init__(self, job: Job, forks: ForkServer, *, sizes_in_text: bool) -> None:
        self.job, self.forks = job, forks
        text = (TUNING / "relu.txt").read_text()
        self.path = job.folder / "c0ffee.py"
        self.path.write_text(text if sizes_in_text else text.replace("    xnumel = 1000000\n", ""))

    def run(self, name: str, size: int, times: str, autotune: str = "") -> dict[str, Any]:
        for stored in self.job.folder.glob("*.best_config"):  # torch's own result, of all configs
            stored.unlink()
        return self.again(name, size, times, autotune)

    def again(self, name: str, size: int, times: str, autotune: str = "") -> dict[str, Any]:
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(self.job.folder / f"cache-{name}")}
        self.job.more |= {**cache, "TRITON_INTERPRET": "0"}
        script = self.job.folder / "inductor.py"
        argv = (str(self.path), str(size), times)
        code, stderr = self.forks.run(script, *argv, env=self.job.env(name, autotune))
        assert code == 0, stderr
        return _last((self.job.folder / "stdout").read_text())


@pytest.fixture
def plain(tmp_path: Path) -> Job:
    """With the installed torch, and Triton if available."""
    return Job(tmp_path, real=True)


@pytest.fixture
def kernel(plain: Job, fork_server: ForkServer) -> Generated:
    return Generated(plain, fork_server, sizes_in_text=True)


def test_a_generated_kernel_is_compiled_for_the_kept_config_only(
    plain: Job, kernel: Generated
) -> None:
    assert kernel.run("one", 1000000, "2.0,1.0") == {
        "compiled": [4, 8],
        "benchmarked": [4, 8],
        "ran": [[512, 8]] * 3,
    }
    (event,) = plain.journal("one").named("autotune")
    assert (event["kind"], event["key"], event["ms"]) == ("inductor", [1000000], [2.0, 1.0])
    plain.verb("one")
    assert kernel.run("two", 1000000, "0", autotune="one") == {
        "compiled": [8],
        "benchmarked": [],
        "ran": [[512, 8]] * 3,
    }
    (event,) = plain.journal("two").named("autotune")
    assert (event["taken"]["XBLOCK"], event["of"], event["seconds"]) == (512, 2, 0.0)


@pytest.mark.slow
def test_the_number_of_a_kernel_and_of_its_device_do_not_matter(
    plain: Job, kernel: Generated
) -> None:
    kernel.run("one", 1000000, "2.0,1.0")
    plain.verb("one")
    text = kernel.path.read_text().replace("index=0", "index=3")
    kernel.path = plain.folder / "decaf.py"
    kernel.path.write_text(text)
    assert kernel.run("two", 1000000, "0", autotune="one")["compiled"] == [8]
    kernel.path.write_text(text.replace("x0 = xindex", "x0 = xindex + 0"))
    assert kernel.run("three", 1000000, "2.0,1.0", autotune="one")["compiled"] == [4, 8]


@pytest.mark.slow
def test_the_result_that_torch_has_kept_of_all_configs_goes_before(
    plain: Job, kernel: Generated
) -> None:
    kernel.run("one", 1000000, "2.0,1.0")
    plain.verb("one")
    (stored,) = plain.folder.glob("*.best_config")
    content = json.loads(stored.read_text())
    stored.write_text(json.dumps(content | {"XBLOCK": 1024, "num_warps": 4}))
    assert kernel.again("two", 1000000, "0", autotune="one")["ran"] == [[1024, 4]] * 3
    assert json.loads(stored.read_text())["num_warps"] == 4


@needs_triton
def test_sizes_that_come_with_the_launch_are_looked_at_there(
    plain: Job, fork_server: ForkServer
) -> None:
    kernel = Generated(plain, fork_server, sizes_in_text=False)
    kernel.run("one", 1000000, "1.0,2.0")
    plain.verb("one")
    output = kernel.run("two", 1000000, "0", autotune="one")
    assert (output["compiled"], output["benchmarked"]) == ([4], [])
    output = kernel.run("three", 5000, "2.0,1.0", autotune="one")
    assert (output["compiled"], output["benchmarked"]) == ([4, 4, 8], [4, 8])
    assert output["ran"] == [[512, 8]] * 3
    (event,) = plain.journal("three").named("autotune")
    assert (event["key"], event["ms"]) == ([5000], [2.0, 1.0])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_product_takes_the_choice_that_was_best(plain: Job) -> None:
    def run(name: str, size: int, autotune: str = "") -> list[dict[str, Any]]:
        plain.more["TORCHINDUCTOR_CACHE_DIR"] = str(plain.folder / f"cache-{name}")
        plain.called([sys.executable, "product.py", str(size)], plain.env(name, autotune))
        return list(plain.journal(name).named("autotune"))

    (event,) = run("one", 32)
    assert (event["kind"], len(event["ms"]), event["of"]) == ("template", 2, 2)
    assert "bmm" in plain.verb("one")  # the name of the kernel
    (event,) = run("two", 32, "one")
    assert "ms" not in event and event["of"] == 2 and event["taken"]["choice"]
    (event,) = run("three", 64, "one")
    assert len(event["ms"]) == 2


@needs_triton
def test_ranks_are_taken_together(plain: Job) -> None:
    def run(name: str, words: str, *flags: str) -> list[dict[str, Any]]:
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [sys.executable, *ranks, "scale.py", words]
        plain.launch(name, command, *flags)
        journals, _ = read_journals(str(plain.folder / name / "journal"))
        assert sorted(process.rank for process in journals if process.rank is not None) == [0, 1]
        return [event for process in journals for event in process.named("autotune")]

    assert [len(event["ms"]) for event in run("one", SMALL)] == [4, 4]
    output = json.loads(plain.verb("one", "--json"))
    (kernel,) = output["kernels"]
    assert len(kernel["keys"]) == 1
    used = run("two", "1000=", "--autotune", "one")
    assert [event["taken"]["BLOCK"] for event in used] == [64, 64]
