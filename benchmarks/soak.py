"""Whether a long run grows: memory, descriptors, threads and zombies flat, the journal in a line.

    python benchmarks/soak.py [--minutes 30] [--rate 1000] [--every 30] [--keep] [--out FILE]

A job makes steps at that rate under `headway run --auto`, saves, and kills itself every so many
seconds; the launcher starts it again. The launcher and the processes below it are looked at all the
while. The first quarter of the run is left out: caches fill, and the warm start begins. Exit code 1
if something grew.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from keep import keep, machine

HERE = Path(__file__).resolve().parent
LOOK_S = 5.0
KEPT = 60  # samples in the result
# How much the median of the last quarter may be above that of the second one.
FLAT = {"rss_kb": 4096, "descriptors": 2, "threads": 1, "zombies": 1, "shared_files": 2}
FLAT |= {"processes": 3, "temporary_files": 2}  # the next warm process comes and goes
LINEAR = 0.15  # how much the second half of the journal's growth may differ from the first


def seen() -> dict[int, tuple[int, str]]:
    """Parent and state of every process."""
    found = {}
    for name in os.listdir("/proc"):
        try:
            fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
        except (OSError, ValueError):
            continue
        if name.isdecimal():
            found[int(name)] = (int(fields[1]), fields[0].decode())
    return found


def below(root: int, processes: dict[int, tuple[int, str]]) -> set[int]:
    """All processes below one."""
    found: set[int] = set()
    more = {root}
    while more:
        more = {pid for pid, (parent, _) in processes.items() if parent in more} - found
        found |= more
    return found


def size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())


def sample(launcher: int, run: Path, temporary: Path) -> dict[str, float]:
    """What the launcher needs, and what is around it."""
    processes = seen()
    job = below(launcher, processes)
    status = Path(f"/proc/{launcher}/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    uid = os.getuid()
    shared = [entry for entry in os.scandir("/dev/shm") if entry.stat().st_uid == uid]
    return {
        "rss_kb": int(rss.split()[1]),
        "descriptors": len(os.listdir(f"/proc/{launcher}/fd")),
        "threads": len(os.listdir(f"/proc/{launcher}/task")),
        "processes": len(job),
        "zombies": sum(processes[pid][1] == "Z" for pid in job),
        "shared_files": len(shared),
        "temporary_files": len(os.listdir(temporary)),
        "journal_bytes": size(run / "journal"),
        "journal_files": len(os.listdir(run / "journal")),
    }


def soak(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the job for that long; what was seen."""
    temporary = folder / "tmp"
    temporary.mkdir()
    run = folder / "headway" / "soak"
    restarts = round(args.minutes * 60 / args.every) * 2 + 10
    command = [sys.executable, "-m", "headway", "run", "--name", "soak", "--auto"]
    command += ["--restarts", str(restarts), "--", sys.executable]
    command += [str(HERE / "jobs" / "soaking.py"), str(args.rate), str(args.every)]
    own = {"SOAKING": str(folder), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")} | own
    samples: list[dict[str, float]] = []
    begin = time.monotonic()
    with (folder / "output").open("wb") as output:
        # A pipe, as under Kubernetes: the launcher then copies what the job writes.
        copy = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=output)
        assert copy.stdin is not None
        launcher = subprocess.Popen(
            command, cwd=folder, env=env, stdout=copy.stdin, stderr=copy.stdin
        )
        copy.stdin.close()
        try:
            while (now := time.monotonic() - begin) < args.minutes * 60:
                if launcher.poll() is not None:
                    break
                if (run / "journal").is_dir():
                    try:
                        looked = sample(launcher.pid, run, temporary)
                    except (OSError, StopIteration):  # something ended in the middle of it
                        continue
                    samples.append({"at_s": round(now, 1), **looked})
                time.sleep(LOOK_S)
            (folder / "stop").touch()
            ending = time.monotonic()
            code = launcher.wait(timeout=300)
            copy.wait(timeout=60)
        finally:
            launcher.kill()
    ended = time.monotonic()
    text = (folder / "output").read_text(errors="replace")
    lives = [json.loads(line) for line in (folder / "ranks.jsonl").read_text().splitlines()]
    reported = (run / "ledger.json").exists()
    ledger = json.loads((run / "ledger.json").read_text()) if reported else {}
    return {
        "exit_code": code,
        "reported": reported,
        "end_s": round(ended - ending, 2),
        "ett_percent": ledger.get("ett_percent"),
        "attempts": len(ledger.get("attempts", [])),
        "steps": ledger.get("steps"),
        "steps_per_second": round(statistics.median(life["made"] for life in lives) / args.every),
        "lives": lives,
        "samples": samples,
        "output": [] if code == 0 and reported else text.splitlines()[-40:],
    }


def judge(seen: dict[str, Any], every_s: float) -> dict[str, Any]:
    """Each figure in the second and in the last quarter of the run, and whether it grew."""
    samples = seen["samples"]
    quarter = len(samples) // 4
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    figures: dict[str, Any] = {}
    for name, room in FLAT.items():
        early, late = (statistics.median(s[name] for s in some) for some in (second, last))
        most = max(s[name] for s in samples)
        figures[name] = {"second_quarter": early, "last_quarter": late, "most": most}
        figures[name]["flat"] = late - early <= room
    for name in ("rss_kb", "descriptors", "threads"):
        lives = seen["lives"]
        grown = [life["end"][name] - life["middle"][name] for life in lives]
        room = FLAT[name] if name != "rss_kb" else 2048
        figures[f"rank {name}, second half of a life"] = {
            "median": statistics.median(grown),
            "most": max(grown),
            "flat": statistics.median(grown) <= room,
        }
    middle = (quarter + len(samples)) // 2
    halves = samples[quarter : middle + 1], samples[middle:]
    rates = []
    for some in halves:
        grown = some[-1]["journal_bytes"] - some[0]["journal_bytes"]
        rates.append(grown / (some[-1]["at_s"] - some[0]["at_s"]))
    # A half may have one restart more than the other.
    uneven = every_s / (halves[1][-1]["at_s"] - halves[1][0]["at_s"])
    figures["journal bytes a second"] = {
        "first": round(rates[0], 1),
        "second": round(rates[1], 1),
        "flat": abs(rates[1] - rates[0]) <= (LINEAR + uneven) * rates[0],
    }
    return figures


def git(*words: str) -> str:
    """What git says of the sources."""
    done = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True)
    return done.stdout.strip()


def main() -> int:
    """Run, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="steps a second")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between restarts")
    parser.add_argument("--out", help="write the result to this file too")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        found = soak(args, Path(folder))
    figures = judge(found, args.every)
    lives, samples = found.pop("lives"), found.pop("samples")
    flat = found["exit_code"] == 0 and found["reported"]
    flat = flat and all(figure["flat"] for figure in figures.values())
    result = {
        "commit": git("rev-parse", "HEAD"),
        "changed_files": len(git("status", "--porcelain", "--untracked-files=no").splitlines()),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "versions": {name: version(name) for name in ("headway", "torch")},
        "python": platform.python_version(),
        "load": {"before": before, "after": os.getloadavg()},
        "minutes": args.minutes,
        "rate": args.rate,
        "every_s": args.every,
        "restarts": len(lives),
        **found,
        "figures": figures,
        "samples": samples[:: max(len(samples) // KEPT, 1)],
    }
    for name, figure in figures.items():
        grew = "flat" if figure["flat"] else "GREW"
        print(f"{name:<40}{grew:<6}{ {k: v for k, v in figure.items() if k != 'flat'} }")
    for line in found["output"]:
        print(line)
    print(f"{len(lives)} restarts, exit code {found['exit_code']}: {'flat' if flat else 'GREW'}")
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    keep("soak", result)
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
