"""The cost of the recorder: per step on the host, and per start of an interpreter.

    make bench            or   python benchmarks/recorder.py

Each row is measured in this run, on this machine; the peers are an OpenTelemetry span per step and
ml-goodput-measurement's recorder (with a logger that keeps entries in memory, as it has no offline
one). Minima over rounds, since everything else on the machine only adds.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from keep import keep

HERE = Path(__file__).parent
ROOT = HERE.parent
BOOT = ROOT / "src" / "headway" / "probe" / "boot"
ROUNDS, STEPS = 15, 20_000


def best(call: Callable[[int], None], steps: int = STEPS, rounds: int = ROUNDS) -> float:
    """Nanoseconds per step, the minimum of all rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        call(steps)
        times.append((time.perf_counter_ns() - start) / steps)
    return min(times)


def recorder_cost() -> dict[str, float]:
    """The calls that the probe adds to a step, compared with calls of an empty function."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HEADWAY_DIR"] = folder
        os.environ["RANK"], os.environ["WORLD_SIZE"] = "0", "1"
        import torch

        import headway
        from headway.probe import step_clock
        from headway.probe.recorder import recorder

        step_clock.grad_enabled = torch.is_grad_enabled
        recorder.start(trains=True)
        optimizer = object()
        batches = iter(int, 1)  # endless

        fetch = step_clock.timed_fetch(next)

        def step(steps: int) -> None:
            for _ in range(steps):
                step_clock.optimizer_stepped(optimizer, (), {})

        def sdk_step(steps: int) -> None:
            for _ in range(steps):
                headway.step()

        def batch(steps: int) -> None:
            for _ in range(steps):
                fetch(batches)

        def empty_step(steps: int) -> None:
            for _ in range(steps):
                _nothing(optimizer, (), {})

        def bare_batch(steps: int) -> None:
            for _ in range(steps):
                next(batches)

        costs = {
            "step hook": best(step) - best(empty_step),
            "wait for a batch": best(batch) - best(bare_batch),
        }
        costs["headway, step and batch"] = sum(costs.values())
        costs["headway.step()"] = best(sdk_step) - best(empty_step)  # last: it ends counting
        recorder.finish()
    return costs


def _nothing(*_: object) -> None:
    return None


PEERS = """
import json, sys, time
def best(call, steps=2000, rounds=7):
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns(); call(steps)
        times.append((time.perf_counter_ns() - start) / steps)
    return min(times)
out = {}
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
class Drop(SpanExporter):
    def export(self, spans): return SpanExportResult.SUCCESS
provider = TracerProvider(); provider.add_span_processor(BatchSpanProcessor(Drop()))
tracer = provider.get_tracer("bench")
def spans(steps):
    for _ in range(steps):
        with tracer.start_as_current_span("step"): pass
out["opentelemetry span"] = best(spans)
from ml_goodput_measurement.src.goodput import GoodputRecorder
class Memory:
    def __init__(self): self.entries = []
    def write_cloud_logging_entry(self, entry): self.entries.append(entry)
    def flush(self): pass
recorder = GoodputRecorder("job", "log", True, cloud_logger=Memory())
def steps_(steps):
    for step in range(steps): recorder.record_step_start_time(step)
out["ml-goodput-measurement"] = best(steps_)
print(json.dumps(out))
"""


def peer_cost() -> dict[str, float]:
    """The same for the peers, in their own environment."""
    from peers import python

    done = subprocess.run([python(), "-c", PEERS], capture_output=True, text=True, timeout=300)
    if done.returncode:
        print(f"peers could not be measured: {done.stderr.strip().splitlines()[-1]}")
        return {}
    costs: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return costs


LOOP = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
rows = TensorDataset(torch.zeros(64, 1))
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.grad = torch.zeros(1)
best = 1e9
for _ in range(60):
    start = time.perf_counter_ns()
    for _ in DataLoader(rows, batch_size=1):
        optimizer.step()
    best = min(best, (time.perf_counter_ns() - start) / 64)
print(best)
"""


def loop_cost(rounds: int = 5) -> dict[str, float]:
    """A real loop (DataLoader, SGD on one number) in processes with and without the probe."""
    bare, probed = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            bare.append(float(_python({}, "-c", LOOP)))
            probed.append(float(_python(_probe_env(folder), "-c", LOOP)))
    return {"loop, bare": min(bare), "loop, with the probe": min(probed)}


def start_cost(rounds: int = 40) -> dict[str, float]:
    """Milliseconds of `python -c pass`, bare and with the probe on PYTHONPATH."""
    bare, probed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for env, times in (({}, bare), (_probe_env(folder), probed)):
                start = time.perf_counter_ns()
                _python(env, "-c", "pass")
                times.append((time.perf_counter_ns() - start) / 1e6)
    return {"interpreter, bare": min(bare), "interpreter, with the probe": min(probed)}


def _probe_env(folder: str) -> dict[str, str]:
    return {"PYTHONPATH": str(BOOT), "HEADWAY_DIR": folder, "HEADWAY_LAUNCH": "bench"}


def _python(env: dict[str, str], *words: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY") and k != "RANK"}
    done = subprocess.run(
        [sys.executable, *words], env={**clean, **env}, capture_output=True, text=True, check=True
    )
    return done.stdout


def main() -> None:
    """Print the table and save it."""
    start, loop = start_cost(), loop_cost()
    costs, peers = recorder_cost(), peer_cost()
    step = costs["headway, step and batch"]
    print(f"{'per step, host':<32}{'ns':>10}{'ratio':>8}")
    for name, ns in {**costs, **peers}.items():
        print(f"{name:<32}{ns:>10.0f}{ns / step:>8.1f}")
    print("\na real loop, per step")
    for name, ns in loop.items():
        print(f"{name:<32}{ns:>10.0f}{ns / loop['loop, bare']:>8.3f}")
    print("\ninterpreter start, ms")
    for name, ms in start.items():
        print(f"{name:<32}{ms:>10.2f}")
    added = start["interpreter, with the probe"] - start["interpreter, bare"]
    print(f"{'added':<32}{added:>10.2f}   (limit 5 ms)")
    import torch

    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    result = {
        "machine": machine,
        "ns_per_step": {**costs, **peers},
        "loop_ns": loop,
        "start_ms": start,
    }
    keep("recorder", result)


if __name__ == "__main__":
    main()
