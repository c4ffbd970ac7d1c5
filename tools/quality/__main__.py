"""Branch coverage of each package by its own tests, and whether they notice a sample of mutants.

    make quality                                measure everything that has changed, or continue
    make quality QUALITY='--packages journal'   these packages only
    make quality QUALITY=--show                 print the result file and the surviving mutants

The result file holds the sample. Once it exists its mutants are measured again, at the place
where their code is now: --renames FILE says what was renamed in between.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tools.quality.mutants import Mutant, Renames, place, sample, shares
from tools.quality.packages import ROOT_MODULES, SOURCE, files_of, package_of, seconds
from tools.quality.plugin import TEST_FILE
from tools.quality.runs import NOTHING_RUN, Tree, judge, working_tree

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "quality.json"
CONFIG = """\
[run]
branch = true
parallel = true
concurrency = thread, multiprocessing
patch = _exit, fork
context = ${{{context}-}}
source = {source}
omit = {omit}
data_file = {data}

[report]
exclude_also =
    if TYPE_CHECKING:
"""
Result = dict[str, Any]


def main() -> int:
    args = parse()
    result: Result = json.loads(args.out.read_text()) if args.out.exists() else {}
    if args.show:
        print_survivors(result)
        print_table(result)
        return 0
    with working_tree(ROOT) as tree:
        measurement = Measurement(tree, result, args.out, read_renames(args.renames))
        if "mutants" not in result:
            measurement.draw(args.mutants, args.seed)
        measurement.place()
        packages = args.packages or sorted(result["packages"])
        if unknown := set(packages) - set(result["packages"]):
            print(f"no package {', '.join(sorted(unknown))} in {SOURCE}", file=sys.stderr)
            return 2
        try:
            for package in packages:
                measurement.package(package, mutants=not args.coverage_only)
        except KeyboardInterrupt:
            print("interrupted; the same command continues where it stopped", file=sys.stderr)
            return 130
    print_survivors(result)
    print_table(result)
    return 1 if any(entry.get("failing") for entry in result["packages"].values()) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.quality", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--packages", type=lambda text: text.split(","), metavar="A,B")
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE")
    parser.add_argument("--renames", type=Path, metavar="FILE", help="TOML: see CONTRIBUTING.md")
    parser.add_argument("--mutants", type=int, default=60, help="size of a new sample")
    parser.add_argument("--seed", type=int, default=20, help="of a new sample")
    parser.add_argument("--coverage-only", action="store_true")
    parser.add_argument("--show", action="store_true", help="print the result file, run nothing")
    return parser.parse_args()


def read_renames(path: Path | None) -> Renames:
    import tomllib

    return Renames(**tomllib.loads(path.read_text())) if path else Renames()


class Measurement:
    """One result file and the tree that it is measured on; written after each step."""

    def __init__(self, tree: Tree, result: Result, out: Path, renames: Renames) -> None:
        self.tree, self.result, self.out, self.renames = tree, result, out, renames
        self.digest = tree.digest()
        self.sources = tree.sources()
        result.setdefault("packages", {})
        for path in self.sources:
            result["packages"].setdefault(package_of(path), {})
        for package in set(result["packages"]) - {package_of(path) for path in self.sources}:
            del result["packages"][package]

    def draw(self, count: int, seed: int) -> None:
        lines: dict[str, int] = {}
        for path, text in self.sources.items():
            lines[package_of(path)] = lines.get(package_of(path), 0) + text.count("\n")
        drawn = sample(self.sources, shares(lines, count), seed)
        mutants = [mutant for package in sorted(drawn) for mutant in drawn[package]]
        self.result["seed"] = seed
        self.result["mutants"] = {f"m{n:02}": asdict(m) for n, m in enumerate(mutants, 1)}
        self.save()

    def place(self) -> None:
        """Find every mutant in the present source, and keep where it is now."""
        self.mutated: dict[str, str] = {}
        for name, entry in self.result["mutants"].items():
            mutant = self.renames.apply(stored(entry))
            mutant = Mutant(**asdict(mutant) | dict(self.renames.mutants.get(name, {})))
            placed = place(mutant, self.sources)
            if placed is None:
                entry.update(outcome="not placed", tree=self.digest)
                entry.pop("killed_by", None)
                print(f"{name}: not placed: {mutant.module}: {mutant.function}: {mutant.line}")
            else:
                entry.update(asdict(placed[0]))
                self.mutated[name] = placed[1]
        self.save()

    def package(self, package: str, *, mutants: bool) -> None:
        tests = files_of(self.tree.path, package)
        entry = self.result["packages"][package]
        names = [
            name
            for name in self.mutated
            if package_of(self.result["mutants"][name]["module"]) == package
        ]
        if entry.get("tree") != self.digest:
            old = entry.get("coverage")
            entry.clear()
            entry.update(self.unmutated(package, tests, names), tree=self.digest, **self.origin())
            self.save()
            before = "" if old is None else f" (before: {old} %)"
            print(f"{package}: {entry['coverage']} % in {entry['seconds']} s{before}", flush=True)
        for test in entry["failing"]:
            print(f"{package}: fails without a mutant: {test}")
        for name in names if mutants and not entry["failing"] else ():
            mutant = self.result["mutants"][name]
            if mutant.get("tree") == self.digest:
                continue
            old = mutant.get("outcome")
            ordered = self.order(tests, mutant)
            limit = 3 * entry["seconds"] + 30
            outcome = judge(self.tree, mutant["module"], self.mutated[name], ordered, limit)
            for key in ("killed_by", "unstable"):
                mutant.pop(key, None)
            mutant.update(outcome, tree=self.digest)
            self.save()
            before = f" (before: {old})" if old else ""
            where = f"{mutant['module']}:{mutant['lineno']}"
            print(f"{name} {where}: {mutant['outcome']}{before}, {mutant['seconds']} s", flush=True)

    def order(self, tests: list[str], mutant: Mapping[str, Any]) -> list[str]:
        """The test files that can notice the mutant, short ones first: a kill ends the run.

        For code of a function these are the files that execute it. Where none was seen to, or the
        code runs when its module is imported, it may be any.
        """
        durations = seconds(self.tree.path)
        covering = mutant.get("covered_by", [])
        if mutant["function"] and covering:
            tests = covering
        return sorted(tests, key=lambda file: (file not in covering, durations.get(file, 0.0)))

    def unmutated(self, package: str, tests: list[str], mutants: Iterable[str]) -> Result:
        """How long the tests take, whether they pass, and what they cover."""
        plain = self.tree.run(tests) if tests else NOTHING_RUN
        # The load of the machine may fail a test once; more than a few are no accident.
        retried = plain.failed if len(plain.failed) <= 5 else ()
        unstable = [test for test in retried if self.tree.run([test]).passed]
        failing = [test for test in plain.failed if test not in unstable]
        if not plain.passed and not plain.failed:
            failing = [f"pytest exit code {plain.code}"]
            print(plain.output)
        coverage, contexts, failed = self.coverage(package, tests)
        for name in mutants:
            entry = self.result["mutants"][name]
            lines = contexts.get(entry["module"], {}).get(entry["lineno"], set())
            entry["executed"] = bool(lines)
            entry["covered_by"] = [file for file in tests if file in lines]
        result = {"seconds": round(plain.seconds, 1), "failing": failing, **coverage}
        if unstable:
            result["unstable"] = unstable
        if set(failed) - set(plain.failed):
            result["fails_with_coverage"] = sorted(set(failed) - set(plain.failed))
        return result

    def coverage(
        self, package: str, tests: list[str]
    ) -> tuple[Result, dict[str, dict[int, set[str]]], tuple[str, ...]]:
        import coverage

        source = self.tree.path / SOURCE
        folder = self.tree.path.parent / "coverage" / package
        folder.mkdir(parents=True)
        config = folder / "config.ini"
        text = CONFIG.format(
            context=TEST_FILE,
            source=source if package == ROOT_MODULES else source / package,
            omit=source / "*" / "*" if package == ROOT_MODULES else "",
            data=folder / "data",
        )
        config.write_text(text)
        outcome = self.tree.run(tests, coverage=config) if tests else NOTHING_RUN
        report = coverage.Coverage(config_file=str(config))
        report.combine() if list(folder.glob("data.*")) else report.save()
        path = folder / "report.json"
        report.json_report(outfile=str(path))
        totals = json.loads(path.read_text())["totals"]
        data = report.get_data()
        contexts: dict[str, dict[int, set[str]]] = {}
        for file in data.measured_files():
            module = str(Path(file).relative_to(self.tree.path))
            by_line = data.contexts_by_lineno(file)
            contexts[module] = {
                line: {part for name in names for part in name.split("|")}
                for line, names in by_line.items()
            }
        return (
            {
                "coverage": round(totals["percent_covered"], 1),
                "lines": totals["num_statements"],
                "lines_covered": totals["covered_lines"],
                "branches": totals["num_branches"],
                "branches_covered": totals["covered_branches"],
                "seconds_with_coverage": round(outcome.seconds, 1),
            },
            contexts,
            outcome.failed,
        )

    def origin(self) -> Result:
        described = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
        commit = subprocess.run(described, check=True, capture_output=True, text=True).stdout
        return {"commit": commit.strip(), "load": round(os.getloadavg()[0], 1)}

    def save(self) -> None:
        self.result["machine"] = f"{os.cpu_count()} cores, {platform.machine()}"
        self.result["versions"] = {"python": platform.python_version()} | {
            name: version(name) for name in ("cosmic-ray", "coverage", "hypothesis", "pytest")
        }
        self.out.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.out.with_suffix(".part")
        scratch.write_text(json.dumps(self.result, indent=1, sort_keys=True) + "\n")
        scratch.replace(self.out)


def stored(entry: Mapping[str, Any]) -> Mutant:
    return Mutant(**{name.name: entry[name.name] for name in fields(Mutant)})


def print_survivors(result: Result) -> None:
    for name, entry in result.get("mutants", {}).items():
        if entry.get("outcome") in ("survived", "timeout", "not placed"):
            executed = "" if entry.get("executed") else ", never executed"
            print(f"\n{name}: {entry['outcome']}{executed}: {entry['function'] or 'module'}")
            print(*diff(entry), sep="\n")


def diff(entry: Mapping[str, Any]) -> list[str]:
    path = entry["module"]
    lines = difflib.unified_diff([entry["line"]], [entry["mutated"]], path, path, lineterm="")
    return [line for line in lines if not line.startswith("@@")]


def print_table(result: Result) -> None:
    print("\n| package | lines | branches | covered | tests | killed | survived | other |")
    print("|---|---|---|---|---|---|---|---|")
    for package, entry in sorted(result.get("packages", {}).items()):
        outcomes = [
            mutant.get("outcome", "not measured")
            for mutant in result["mutants"].values()
            if package_of(mutant["module"]) == package
        ]
        killed, survived = outcomes.count("killed"), outcomes.count("survived")
        other = len(outcomes) - killed - survived
        if "coverage" in entry:
            measured = "{lines} | {branches} | {coverage} % | {seconds} s".format_map(entry)
            print(f"| {package} | {measured} | {killed} | {survived} | {other} |")
    outcomes = [m.get("outcome", "not measured") for m in result.get("mutants", {}).values()]
    print("\nmutants:", ", ".join(f"{n} {outcome}" for outcome, n in Counter(outcomes).items()))


if __name__ == "__main__":
    sys.exit(main())
