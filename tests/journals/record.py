"""Record runs again: `python tests/journals/record.py NAME...`, or `--list` for the names.

Runs the real job and writes its run folder to tests/journals/NAME, without what is particular to
this machine. Recordings of one job (a first and a second run) are made together.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY))

from headway.journal.writer import SCHEMA  # noqa: E402
from headway.storage.process_identity import boot_id  # noqa: E402
from tests.journals import recorded  # noqa: E402
from tests.journals.scenarios import SCENARIOS, Scenario  # noqa: E402
from tests.journals.session import Session  # noqa: E402

PACKAGES = ("headway", "torch", "lightning", "transformers", "accelerate")
KEPT = ("run.json", "publish.json")  # beside the journals
NEUTRAL_BOOT = "00000000-0000-4000-8000-000000000000"
NEUTRAL_HOST = "node-0"


class Neutral:
    """Rewrites names of this machine: folders, host and boot."""

    def __init__(self, folder: Path) -> None:
        folders = {
            str(folder): "/job",
            str(REPOSITORY): "/opt/headway",
            sys.prefix: "/opt/venv",
            sys.base_prefix: "/opt/python",
            str(Path.home()): "/opt/user",
        }
        longest_first = sorted(folders, key=len, reverse=True)
        self.rules = [(re.escape(old) + r"(?![\w.-])", folders[old]) for old in longest_first]
        self.rules += [
            (re.escape(boot_id()), NEUTRAL_BOOT),
            (rf"(?<![\w./])({re.escape(os.uname().nodename)})(?![\w./])", NEUTRAL_HOST),
        ]

    def text(self, text: str) -> str:
        for pattern, new in self.rules:
            text = re.sub(pattern, new, text)
        return text

    def content(self, content: bytes) -> bytes:
        return self.text(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def record(scenario: Scenario) -> None:
    with tempfile.TemporaryDirectory(prefix="record-") as temporary:
        session = Session(Path(temporary).resolve())
        scenario.job(session)
        for name, about in scenario.about.items():
            _write(name, about, session, Neutral(session.folder))


def _write(name: str, about: str, session: Session, neutral: Neutral) -> None:
    source, target = session.run_folder(name), recorded.FOLDER / name
    shutil.rmtree(target, ignore_errors=True)
    (target / "journal").mkdir(parents=True)
    for file in KEPT:
        if (source / file).exists():
            (target / file).write_bytes(neutral.content((source / file).read_bytes()))
    for path in sorted((source / "journal").iterdir()):
        if path.suffix in (".jsonl", ".pulse"):
            content = path.read_bytes()
            if path.suffix == ".jsonl":
                content = neutral.content(content)
            packed = target / "journal" / f"{neutral.text(path.name)}.gz"
            packed.write_bytes(gzip.compress(content, mtime=0))
    truths = sorted((session.folder / "truth").glob("*.json"))
    if truths:
        found = {path.stem: json.loads(path.read_text()) for path in truths}
        (target / "truth.json").write_text(json.dumps(found, indent=1) + "\n")
    (target / "about.toml").write_text(_about(about, map(neutral.text, session.words())))
    recorded.load.cache_clear()
    for file, content in recorded.rendered(name).items():
        (target / file).write_text(content, encoding="utf-8")
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{name}: {size / 1000:.0f} kB")
    print((target / "summary.txt").read_text())


def _about(about: str, commands: Iterable[str]) -> str:
    lines = [f"what = {json.dumps(about)}"]
    lines += ["commands = [", *(f"    {json.dumps(command)}," for command in commands), "]"]
    lines += [f"commit = {json.dumps(_commit())}", f"schema = {SCHEMA}", "", "[versions]"]
    versions = {"python": sys.version.split()[0]}
    versions |= {name: importlib.metadata.version(name) for name in PACKAGES}
    lines += [f"{name} = {json.dumps(version)}" for name, version in versions.items()]
    return "\n".join(lines) + "\n"


def _commit() -> str:
    """The commit of the main branch that has written it."""

    def git(*words: str) -> str:
        return subprocess.check_output(["git", *words], cwd=REPOSITORY, text=True).strip()

    base = git("merge-base", "HEAD", "main")
    changed = git("diff", "--stat", base, "--", "src")
    return git("rev-parse", "--short", base) + ("+changes" if changed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="a recording")
    parser.add_argument("--list", action="store_true", help="print the names")
    args = parser.parse_args()
    known = [name for scenario in SCENARIOS for name in scenario.about]
    unknown = set(args.names) - set(known)
    if unknown or not (args.names or args.list):
        parser.error(f"no recording {unknown}; try --list" if unknown else "name a recording")
    if args.list:
        print("\n".join(known))
    for scenario in SCENARIOS:
        if scenario.about.keys() & set(args.names):
            record(scenario)


if __name__ == "__main__":
    main()
