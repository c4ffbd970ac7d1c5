"""Validate a snapshot before it serves: open each target in a fresh process, compare, time, limit.

A target may be compiled code that kills its process, so it is never opened in the publisher's.
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

# Reasons that another try may not find: what a machine had no room for, or measured when busy.
TRANSIENT_CODES = ("target-not-examined", "target-too-slow", "target-has-slowed")


def target_reasons(name: str, answer: CheckResult, tolerance: float) -> Iterator[Reason]:
    """Of one target: that it answers, with numbers, and with the same ones as the model."""
    if answer.error and answer.transient:
        yield Reason(f"{name} cannot be examined now: {answer.error}", code="target-not-examined")
    elif answer.error:
        yield Reason(f"{name} does not serve: {answer.error}", code="target-does-not-serve")
    elif not answer.finite:
        yield Reason(f"{name} gives numbers that are not finite", code="target-not-finite")
    elif answer.difference > tolerance:
        yield Reason(
            f"{name} differs from the model by {answer.difference:.3g} on the golden inputs, "
            f"and {tolerance:g} is allowed",
            code="target-differs",
        )


def size_reasons(limits: Limits, now: int, before: int | None) -> Iterator[Reason]:
    """Of all files together, in bytes."""
    if limits.size_mb is not None and now > limits.size_mb * 1e6:
        text = f"it has {now / 1e6:.1f} MB, and {limits.size_mb:g} are allowed"
        yield Reason(text, code="snapshot-too-large")
    if before and limits.size_growth is not None and now > before * limits.size_growth:
        yield Reason(
            f"it has {now / before:.2f} x the bytes of the snapshot that serves, "
            f"and {limits.size_growth:g} x is allowed",
            code="snapshot-has-grown",
        )


def latency_reasons(
    limits: Limits, now: Mapping[str, CheckResult], before: Mapping[str, CheckResult]
) -> Iterator[Reason]:
    """Of each target; `before` was measured on this machine too."""
    for name, answer in now.items():
        latency_ms = answer.latency_ms
        if limits.latency_ms is not None and latency_ms > limits.latency_ms:
            text = f"{name} takes {latency_ms:.2f} ms, and {limits.latency_ms:g} are allowed"
            yield Reason(text, code="target-too-slow")
        old = before.get(name)
        if old is None or limits.latency_growth is None:
            continue
        if old.error:
            if old.transient:
                text = f"{name} of the snapshot that serves cannot be examined now: {old.error}"
                yield Reason(text, code="target-not-examined")
            continue
        if latency_ms > old.latency_ms * limits.latency_growth:
            yield Reason(
                f"{name} takes {latency_ms / old.latency_ms:.2f} x as long as the snapshot "
                f"that serves, and {limits.latency_growth:g} x is allowed",
                code="target-has-slowed",
            )


TIMED_S, MAX_TIMED_CALLS = 1.0, 50  # calls are timed for so long, and so many at most
CHECK_LIMIT_S = 1800.0  # for all of it
# By which somebody else ends a process: a lack of memory, a scheduler, a person.
EXTERNAL_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU)


@dataclass(frozen=True)
class TargetCheck:
    """What is opened, and how."""

    target: str
    options: Mapping[str, Any]
    files: Mapping[str, str]  # by name; weights, config and golden tensors among them
    factory: str
    folder: str  # where the user's modules are


@dataclass(frozen=True)
class CheckResult:
    """What it said; `error` is one clause, and then the rest says nothing."""

    difference: float = 0.0
    finite: bool = True
    latency_ms: float = 0.0
    load_s: float = 0.0
    peak_mb: float = 0.0  # of memory, with torch's own and the mapped weights
    error: str = ""
    transient: bool = False  # the machine is to blame: another time it may answer


TargetChecker = Callable[[TargetCheck], CheckResult]


def check_in_subprocess(check: TargetCheck) -> CheckResult:
    """In a process of its own."""
    with tempfile.TemporaryDirectory(prefix="headway-publish-") as folder:
        result = Path(folder, "answer.json")
        stderr = Path(folder, "stderr")
        try:
            with stderr.open("wb") as errors:  # a pipe may be held by what a target leaves running
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
                error=f"it did not answer within {CHECK_LIMIT_S:.0f} s", transient=True
            )
        with contextlib.suppress(OSError, ValueError):
            return CheckResult(**json.loads(result.read_text()))
        last = stderr.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        outside = -process.returncode in EXTERNAL_SIGNALS
        return CheckResult(error=f"it was ended by {name} in a fresh process", transient=outside)
    return CheckResult(error=f"it failed in a fresh process: {last[0]}")


def check_here(check: TargetCheck) -> CheckResult:
    """In this process."""
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
    """The most bytes that this process had; getrusage would count what its parent had."""
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
    os._exit(0)  # what a target leaves running is no part of the answer
