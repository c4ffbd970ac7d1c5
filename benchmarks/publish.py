"""What publishing costs the accelerators: inside the trainer, and by a job of its own.

    python benchmarks/publish.py [--megabytes 256,1024] [--device cpu|cuda]

The trainer is a DLRM of `examples/dlrm`, one process, one accelerator. Accelerator-seconds are from
its last step to the end of its process: with nothing to do, which is what Python and torch take to
end, with `torch.export` as train.py does it, with AOTInductor on top, and with an anchor alone.
Beside the anchor the limit, measured in the same run: its bytes written to the same disk with
fsync. Then the anchor is published without an accelerator; the
second one has other weights and the same graph. The memory is that of the publisher and of the
process that examines what it made, whichever has more.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from keep import keep, machine

ROOT = Path(__file__).parents[1]
JOB = ROOT / "benchmarks" / "jobs" / "publishing.py"
RECIPE = ROOT / "examples" / "dlrm" / "publish.toml"
PATHS = os.pathsep.join([str(ROOT / "src"), str(RECIPE.parent)])
INSIDE = ("export", "aoti")
WRITES = 3  # of the limit, of which the fastest counts
PEAK = """
import json, sys
from headway.cli import main
from headway.publish.validate import _peak
code = main(sys.argv[2:])
json.dump({"peak": _peak()}, open(sys.argv[1], "w"))
sys.exit(code)
"""


class Bench:
    """One size of a model on one device."""

    def __init__(self, megabytes: int, device: str, root: Path) -> None:
        self.megabytes, self.device, self.root = megabytes, device, root
        self.told = root / "told.json"

    def run(self, command: list[str], **env: str) -> float:
        """A process to its end; when that was."""
        known = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")}
        known |= {"PYTHONPATH": PATHS, "TORCHINDUCTOR_CACHE_DIR": str(self.root / "inductor")}
        subprocess.run(
            [sys.executable, *command],
            env=known | env,
            cwd=self.root,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
        return time.monotonic()

    def trained(self, way: str, seed: int = 0) -> dict[str, Any]:
        """Seconds from the last step of a training to its release."""
        words = [way, str(self.megabytes), self.device, str(self.root), str(self.told)]
        ended = self.run([str(JOB), *words, "--seed", str(seed)])
        told: dict[str, Any] = json.loads(self.told.read_text())
        (self.root / "model.pt2").unlink(missing_ok=True)
        os.sync()
        return {"release_s": ended - told["last_step"], "model_bytes": told["model_bytes"]} | {
            "work_s": told["done"] - told["last_step"]
        }

    def anchor(self) -> Path:
        """The last one."""
        return max((self.root / "checkpoints").glob("step-*"), key=lambda one: one.name)

    def write_s(self, size: int) -> float:
        """What so many bytes take to the same disk."""
        content = memoryview(bytearray(os.urandom(1 << 20) * (size // (1 << 20) + 1)))[:size]
        return min(self._written(content) for _ in range(WRITES))

    def _written(self, content: memoryview) -> float:
        path = self.root / "plain"
        os.sync()
        begun = time.monotonic()
        with path.open("wb", buffering=0) as file:
            done = 0
            while done < len(content):
                done += file.write(content[done : done + (64 << 20)])
            os.fsync(file.fileno())
        took = time.monotonic() - begun
        path.unlink()
        return took

    def published(self) -> dict[str, Any]:
        """The anchor, published without an accelerator."""
        words = ["publish", str(self.anchor()), "--recipe", str(RECIPE)]
        words += ["--to", str(self.root / "store")]
        begun = time.monotonic()
        ended = self.run(["-c", PEAK, str(self.told), *words], CUDA_VISIBLE_DEVICES="")
        peak = json.loads(self.told.read_text())["peak"]
        store = self.root / "store"
        name = json.loads((store / "latest").read_text())["snapshot"]
        made = json.loads((store / "snapshots" / f"{name}.json").read_text())
        examined = max(one["metrics"]["peak_mb"] for one in made["targets"].values())
        found = {"publish_s": ended - begun, "stages_s": made["seconds"]}
        return {**found, "peak_mb": max(peak / 1e6, examined)}


def measure(megabytes: int, device: str, root: Path) -> dict[str, Any]:
    """All of one size; printed as it comes."""
    bench = Bench(megabytes, device, root)
    nothing = bench.trained("nothing")["release_s"]
    inside = {way: bench.trained(way)["release_s"] for way in INSIDE}
    left = bench.trained("anchor")
    size = sum(file.stat().st_size for file in bench.anchor().iterdir())
    model_mb = left["model_bytes"] / 1e6
    row: dict[str, Any] = {"megabytes": megabytes, "device": device, "model_mb": model_mb}
    row |= {"nothing_s": nothing, "inside_s": inside}
    row |= {"anchor_s": left["release_s"], "anchor_work_s": left["work_s"]}
    row |= {"anchor_mb": size / 1e6, "write_s": bench.write_s(size)}
    row["of_write"] = row["anchor_s"] / row["write_s"]
    row["ratio"] = inside["export"] / row["anchor_s"]
    row["allowed_mb"] = 1.3 * model_mb + 500
    try:
        row |= bench.published()
        bench.trained("anchor", seed=1)
        again = bench.published()
    except subprocess.CalledProcessError as error:
        row["failed"] = error.stderr.strip().splitlines()[-1].rpartition(" is ")[2]
    else:
        row |= {"republish_s": again["publish_s"], "republish_stages_s": again["stages_s"]}
        row["peak_mb"] = max(row["peak_mb"], again["peak_mb"])
    print(told_in_words(row), flush=True)
    return row


def told_in_words(row: dict[str, Any]) -> str:
    """For people."""
    return (
        f"{row['model_mb']:,.0f} MB on {row['device']}: accelerator-seconds after the last step:"
        f" nothing {row['nothing_s']:.2f}, export inside {row['inside_s']['export']:.1f},"
        f" AOTInductor inside {row['inside_s']['aoti']:.1f},"
        f" anchor {row['anchor_s']:.2f} (1/{row['ratio']:.1f})\n"
        f"  the anchor's {row['anchor_mb']:,.0f} MB take {row['write_s']:.2f} s to the disk:"
        f" {row['of_write']:.2f} x; it is durable after {row['anchor_work_s']:.2f} s\n"
        f"  {_published(row)}"
    )


def _published(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"not published elsewhere: {row['failed']}"
    return (
        f"published elsewhere in {row['publish_s']:.1f} s, other weights in"
        f" {row['republish_s']:.1f} s; {row['peak_mb']:,.0f} MB at most, {row['allowed_mb']:,.0f}"
        " allowed"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", default="256,1024", help="of the model")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", metavar="FILE", help="write the result there")
    parser.add_argument("--folder", help="on the disk that is measured; else a temporary one")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/publish.json")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    found = {"python": platform.python_version(), "torch": version("torch")}
    result = {"machine": machine(), "versions": found, "rows": rows}
    for megabytes in map(int, args.megabytes.split(",")):
        with tempfile.TemporaryDirectory(prefix="bench-publish-", dir=args.folder) as folder:
            rows.append(measure(megabytes, args.device, Path(folder)))
        if args.out:
            Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    keep("publish" if args.device == "cpu" else "publish_h200", result)


if __name__ == "__main__":
    main()
