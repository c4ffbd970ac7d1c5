"""Validate a snapshot before it serves: open each target in a fresh process, compare, time, limit.

A target may be compiled code that kills its process, so it is never opened in the process of the
publisher.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError, PublishDeferred, Reason
from headway.publish.recipe import Limits

# Reasons that may disappear in another try: lack of resources, or measurements on a busy machine.
TRANSIENT_CODES = ("target-not-examined", "target-too-slow", "target-has-slowed")
TIMED_S, MAX_TIMED_CALLS = 1.0, 50  # limits of the time and number of timed calls
CHECK_LIMIT_S = 1800.0  # for the whole check
# Signals from outside: the OOM killer, a scheduler, a user.
EXTERNAL_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU)


def target_reasons(name: str, answer: CheckResult, tolerance: float) -> Iterator[Reason]:
    """Reasons against a target: it fails, or its outputs are not finite or differ too much."""
    if answer.error and answer.transient:
        yield Reason(f"{name} cannot be checked now: {answer.error}", code="target-not-examined")
    elif answer.error:
        yield Reason(f"{name} cannot be served: {answer.error}", code="target-does-not-serve")
    elif not answer.finite:
        yield Reason(f"the outputs of {name} are not finite", code="target-not-finite")
    elif answer.difference > tolerance:
        yield Reason(
            f"{name} differs from the model by {answer.difference:.3g} on the golden inputs, "
            f"more than the tolerance {tolerance:g}",
            code="target-differs",
        )


def size_reasons(limits: Limits, now: int, before: int | None) -> Iterator[Reason]:
    """Reasons against the total size of all files, in bytes."""
    if limits.size_mb is not None and now > limits.size_mb * 1e6:
        text = f"it has {now / 1e6:.1f} MB, more than the limit of {limits.size_mb:g}"
        yield Reason(text, code="snapshot-too-large")
    if before and limits.size_growth is not None and now > before * limits.size_growth:
        yield Reason(
            f"it has {now / before:.2f} x the size of the serving snapshot, "
            f"more than the limit of {limits.size_growth:g} x",
            code="snapshot-has-grown",
        )


def latency_reasons(
    limits: Limits, now: Mapping[str, CheckResult], before: Mapping[str, CheckResult]
) -> Iterator[Reason]:
    """Reasons against the latency of each target; `before` was measured on the same machine."""
    for name, answer in now.items():
        latency_ms = answer.latency_ms
        if limits.latency_ms is not None and latency_ms > limits.latency_ms:
            text = f"{name} takes {latency_ms:.2f} ms, more than the limit of {limits.latency_ms:g}"
            yield Reason(text, code="target-too-slow")
        old = before.get(name)
        if old is None or limits.latency_growth is None:
            continue
        if old.error:
            if old.transient:
                text = f"{name} of the serving snapshot cannot be checked now: {old.error}"
                yield Reason(text, code="target-not-examined")
            continue
        if latency_ms > old.latency_ms * limits.latency_growth:
            yield Reason(
                f"{name} takes {latency_ms / old.latency_ms:.2f} x as long as in the serving "
                f"snapshot, more than the limit of {limits.latency_growth:g} x",
                code="target-has-slowed",
            )


@dataclass(frozen=True)
class TargetCheck:
    """Request to check one target."""

    target: str
    options: Mapping[str, Any]
    files: Mapping[str, str]  # by name; weights, config and golden tensors among them
    factory: str
    folder: str  # of the user's modules


@dataclass(frozen=True)
class CheckResult:
    """Result of a check; if there is an `error` (one clause), the other fields have no meaning."""

    difference: float = 0.0
    finite: bool = True
    latency_ms: float = 0.0
    load_s: float = 0.0
    peak_mb: float = 0.0  # peak memory, including torch and the mapped weights
    error: str = ""
    transient: bool = False  # caused by the machine; another try may succeed


TargetChecker = Callable[[TargetCheck], CheckResult]


def check_in_subprocess(check: TargetCheck) -> CheckResult:
    """Run a check in a new process."""
    with tempfile.TemporaryDirectory(prefix="headway-publish-") as folder:
        result = Path(folder, "answer.json")
        stderr = Path(folder, "stderr")
        try:
            with stderr.open(
                "wb"
            ) as errors:  # a background process of a target may keep a pipe open
                process = subprocess.run(
                    [sys.executable, "-m", "headway.publish.validate", str(result)],
                    input=json.dumps(asdict(check)),
                    text=True,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    timeout=CHECK_LIMIT_S,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                )
        except subprocess.TimeoutExpired:
            return CheckResult(
                error=f"the check took more than {CHECK_LIMIT_S:.0f} s", transient=True
            )
        with contextlib.suppress(OSError, ValueError):
            return CheckResult(**json.loads(result.read_text()))
        last = stderr.read_text(errors="replace").strip().splitlines()[-1:] or ["no error message"]
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        outside = -process.returncode in EXTERNAL_SIGNALS
        return CheckResult(error=f"its process was killed by {name}", transient=outside)
    return CheckResult(error=f"its process failed: {last[0]}")


def check_here(check: TargetCheck) -> CheckResult:
    """Run a check in this process."""
    from headway.publish import golden, safetensors_io
    from headway.publish.model import import_function
    from headway.publish.targets.base import CONFIG, WEIGHTS, SnapshotContent, load_target

    files = {name: Path(path) for name, path in check.files.items()}
    config = json.loads(files[CONFIG].read_text())
    inputs, expected = golden.read_golden(
        safetensors_io.read(files[golden.GOLDEN_FILE]), config["inputs"]
    )
    folder = Path(check.folder)
    started = time.perf_counter()
    content = SnapshotContent(
        files, config, safetensors_io.read(files[WEIGHTS]), import_function(check.factory, folder)
    )
    model = load_target(check.target, check.options).open(content)
    outputs = inputs.call(model)
    loaded = time.perf_counter() - started
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < TIMED_S and len(seconds) < MAX_TIMED_CALLS):
        started = time.perf_counter()
        inputs.call(model)
        seconds.append(time.perf_counter() - started)
    return CheckResult(
        difference=golden.max_difference(outputs, expected),
        finite=golden.all_finite(outputs),
        latency_ms=1000 * statistics.median(seconds),
        load_s=loaded,
        peak_mb=_peak() / 1e6,
    )


def _peak() -> int:
    """Peak memory of this process in bytes; getrusage would include the parent before exec."""
    with open("/proc/self/status") as file:
        values = (line.split()[1] for line in file if line.startswith("VmHWM:"))
        return int(next(values, "0")) * 1024


def _main(result: str) -> None:
    check = TargetCheck(**json.loads(sys.stdin.read()))
    try:
        answer = check_here(check)
    except PublishDeferred as error:
        answer = CheckResult(error=str(error), transient=True)
    except HeadwayError as error:
        answer = CheckResult(error=str(error))
    except Exception as error:
        from headway.publish.failures import describe_error, is_transient

        answer = CheckResult(error=describe_error(error), transient=is_transient(error))
    Path(result).write_text(json.dumps(asdict(answer)))


if __name__ == "__main__":
    _main(sys.argv[1])
    os._exit(0)  # do not wait for background threads of a target
