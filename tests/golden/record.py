"""Record golden cases with the Headway of this tree: python tests/golden/record.py FORMAT/NAME ...

`FORMAT` alone records all cases of a format; without arguments the cases are listed. The files
must not tell where they were recorded: a case is refused if they name this machine or its folders.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import importlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from unittest import mock

TREE = Path(__file__).parents[2]
sys.path.insert(0, str(TREE))

from tests.golden.cases import ROOT, Case, as_text, listing  # noqa: E402

HOST, USER, BOOT = "node0", "user", "boot-0"
REAL = (os.uname().nodename, getpass.getuser())
Recorder = Callable[[Path], None]


def recorders() -> dict[str, tuple[Recorder, str, tuple[str, ...]]]:
    """By FORMAT/NAME: what writes the files, what they are, and what reading them needs."""
    found = {}
    for path in sorted((ROOT / "recorders").glob("*.py")):
        module = importlib.import_module(f"tests.golden.recorders.{path.stem}")
        for name, entry in getattr(module, "RECORDERS", {}).items():
            found[f"{path.stem}/{name}"] = entry
    return found


def record(name: str, entry: tuple[Recorder, str, tuple[str, ...]], commit: str) -> None:
    """Write the files, what they are, and what reading them gives."""
    write, what, needs = entry
    case = Case(*name.split("/"))
    with tempfile.TemporaryDirectory() as place, neutral(Path(place)):
        files = Path(place) / "files"
        files.mkdir()
        write(files)
        _check(files, place)
        shutil.rmtree(case.files, ignore_errors=True)
        shutil.copytree(files, case.files)
    packages = metadata.packages_distributions()
    told = {
        "what": what,
        "command": f"python tests/golden/record.py {name}",
        "commit": commit,
        "headway": metadata.version("headway"),
        "python": platform.python_version(),
        "needs": list(needs),
        "sealed": case.name in getattr(case.reader, "SEALED", ()),
        **{name: metadata.version(packages[name][0]) for name in needs},
    }
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in told.items())
    (case.folder / "about.toml").write_text("".join(lines))
    with tempfile.TemporaryDirectory() as place:
        case.expected.write_text(as_text(case.read(case.copy(Path(place)))))


@contextlib.contextmanager
def neutral(place: Path) -> Iterator[None]:
    """A machine, a user and a boot that could be anybody's, in a folder of its own."""
    real, here = os.uname(), Path.cwd()
    uname = os.uname_result((real.sysname, HOST, real.release, real.version, real.machine))
    with (
        mock.patch.object(os, "uname", lambda: uname),
        mock.patch.object(socket, "gethostname", lambda: HOST),
        mock.patch.object(getpass, "getuser", lambda: USER),
        mock.patch("headway.journal.writer.boot_id", lambda: BOOT),
        mock.patch("headway.checkpoint.store.layout.boot_id", lambda: BOOT),
        mock.patch.dict(os.environ, {"USER": USER}),
    ):
        for name in [name for name in os.environ if name.startswith(("HEADWAY_", "SLURM_"))]:
            del os.environ[name]
        os.chdir(place)
        try:
            yield
        finally:
            os.chdir(here)


def _check(files: Path, place: str) -> None:
    """Nothing of this machine stands in the files."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    own = [place, str(TREE), str(Path.home()) + "/", sys.prefix, boot]
    words = [f'"{name}"' for name in REAL]
    for path in listing(files):
        content = path.read_bytes()
        for word in (*own, *words):
            if word.encode() in content or word in path.name:
                raise SystemExit(f"{path.relative_to(files)} names {word}; record it without")


def _commit(named: str | None) -> str:
    """The commit whose source wrote the files: that of this tree, unchanged."""
    git = ["git", "-C", str(TREE)]
    log = [*git, "log", "-1", "--format=%h", "--", "src/headway"]
    commit = named or subprocess.check_output(log, text=True).strip()
    if subprocess.run([*git, "diff", "--quiet", commit, "--", "src/headway"]).returncode:
        raise SystemExit(f"src/headway is not that of commit {commit}")
    return commit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="FORMAT[/NAME]")
    parser.add_argument("--commit", help="of the source; by default the last that changed it")
    args = parser.parse_args()
    known = recorders()
    chosen = [
        name for name in known if any(re.match(rf"{wanted}(/|$)", name) for wanted in args.names)
    ]
    if not chosen:
        print(*known, sep="\n")
        raise SystemExit(bool(args.names))
    commit = _commit(args.commit)
    for name in chosen:
        record(name, known[name], commit)
        case = Case(*name.split("/"))
        size = sum(path.stat().st_size for path in listing(case.folder))
        print(f"{name}: {len(listing(case.files))} files, {size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
